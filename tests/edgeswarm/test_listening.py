"""Sockets that listen at one address of a machine, or at all of either kind."""

from __future__ import annotations

import errno
import socket

import pytest

from edgeswarm.listening import bound_socket, only_address, plain_address

from .ipv6_here import has_ipv6


def reaches(listening: socket.socket, host: str) -> bool:
    listening.listen()
    try:
        with socket.create_connection((host, listening.getsockname()[1]), timeout=5):
            listening.accept()[0].close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on loopback here")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_every_address_is_those_of_both_kinds(host: str) -> None:
    with bound_socket(host, 0) as listening:
        assert reaches(listening, "127.0.0.1")
        assert reaches(listening, "::1")


def test_without_ipv6_it_is_every_address_of_the_other_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    make = socket.socket

    def of_ipv4_alone(family: int, *arguments: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return make(family, *arguments)

    monkeypatch.setattr(socket, "socket", of_ipv4_alone)
    with bound_socket("0.0.0.0", 0) as listening:
        assert listening.family == socket.AF_INET


def test_one_address_is_that_alone() -> None:
    with bound_socket("127.0.0.1", 0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_port_that_is_taken_is_so_of_either_kind(host: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind((host, 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            bound_socket("0.0.0.0", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("seen", "plain"), [("::ffff:192.168.1.4", "192.168.1.4"), ("192.168.1.4", "192.168.1.4"), ("fd00::1", "fd00::1")]
)
def test_an_ipv4_address_is_shown_as_such(seen: str, plain: str) -> None:
    assert plain_address(seen) == plain


@pytest.mark.parametrize(
    ("host", "only"),
    [
        ("0.0.0.0", None),
        ("::", None),
        ("", None),
        ("desk", None),
        ("192.168.1.9", "192.168.1.9"),
        ("fd00::9", "fd00::9"),
    ],
)
def test_an_address_in_digits_is_the_only_one_to_be_reached_at(host: str, only: str | None) -> None:
    assert only_address(host) == only
