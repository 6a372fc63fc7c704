"""Which of this machine's addresses another device sees."""

from __future__ import annotations

import socket

from edgeswarm.config import host_and_port


def own_host_towards(address: str) -> str:
    """The local address from which packets to `address` ("host:port") leave; nothing is sent. Raises OSError."""
    host, port = host_and_port(address)
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # a datagram socket: this asks the routing table only
        return str(probe.getsockname()[0])
