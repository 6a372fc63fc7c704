"""Where servers listen: one way for gRPC's own, for those of streams, and for the one that devices join through.

Every address of a machine means those of IPv6, too, as it does for gRPC: a name that a network's DNS knows leads to either, and
whoever reached one server of a device there calls the others at the same address.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any

EVERY_ADDRESS = ("0.0.0.0", "::", "")
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


def bound_socket(host: str, port: int) -> socket.socket:
    """A TCP socket bound to this address, of EVERY_ADDRESS to all of both kinds that the machine has; port 0: any free one.

    Raises OSError, and OverflowError for a port beyond the last.
    """
    if host in EVERY_ADDRESS:
        try:
            return _bound(socket.AF_INET6, ("::", port))
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
        return _bound(socket.AF_INET, ("0.0.0.0", port))
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return _bound(family, target)


def only_address(host: str) -> str | None:
    """The one address at which a server with this host is reached; None for EVERY_ADDRESS, and for a name, which may mean
    another machine elsewhere.
    """
    if host in EVERY_ADDRESS:
        return None
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _bound(family: socket.AddressFamily, target: tuple[Any, ...]) -> socket.socket:
    with contextlib.ExitStack() as failing:
        bound = failing.enter_context(socket.socket(family, socket.SOCK_STREAM))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(target)
        failing.pop_all()
    return bound


def plain_address(address: str) -> str:
    """An IPv4 address as such, where it came to a socket that takes both kinds: 192.168.1.4 of ::ffff:192.168.1.4."""
    return address.removeprefix("::ffff:") if "." in address else address
