"""Whether this machine has multicast on loopback, for tests that need it."""

from __future__ import annotations

import functools
import socket


@functools.cache
def why_no_multicast() -> str:
    """Empty where a multicast packet that is sent on loopback comes back on loopback, as mDNS needs."""
    group, token = "224.0.0.251", b"edgeswarm test"
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind(("", 0))
            membership = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
            receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            receiver.settimeout(2)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            sender.sendto(token, (group, receiver.getsockname()[1]))
            return "" if receiver.recv(100) == token else "another program's packet came"
    except OSError as error:
        return f"multicast doesn't work on loopback here: {error}"
