"""Whether this machine has IPv6, for tests that need it."""

from __future__ import annotations

import socket


def has_ipv6() -> bool:
    """On loopback."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
