"""`edgeswarm token create`: lets devices join."""

from __future__ import annotations

import contextlib
import datetime
import math
import queue
import socket
import time
from collections.abc import Callable

import click

from edgeswarm.cli_errors import json_option, report
from edgeswarm.errors import EdgeswarmError, ErrorCode

from .console import hint, print_json
from .interrupts import cancelled_by_signals
from .options import operator_settings

_LOOK_EVERY_SECONDS = 0.1
_MOST_MINUTES = 365 * 24 * 60.0
_SOMEWHERE_ELSE = "198.51.100.1:9"  # an address for documentation: nothing is sent there, only the route is asked for


@click.group()
def token() -> None:
    """Tokens with which devices join the cluster."""


@token.command()
@click.option(
    "--uses",
    type=click.IntRange(min=1),
    default=1,
    metavar="NUMBER",
    help="How many devices may join with it.  [default: 1]",
)
@click.option(
    "--valid-minutes",
    type=click.FloatRange(min=0, max=_MOST_MINUTES, min_open=True),
    default=30.0,
    metavar="MINUTES",
    help="How long it can be used.  [default: 30]",
)
@click.option(
    "--listen",
    "listen_address",
    metavar="ADDRESS",
    help="Address to wait on.  [default: all of this machine's]",
)
@click.option(
    "--join-port", type=click.IntRange(0, 65535), metavar="PORT", help="Port to wait on, 0 for any.  [default: 7599]"
)
@json_option(help_text="print the token as one JSON document")
def create(
    *, uses: int, valid_minutes: float, listen_address: str | None, join_port: int | None, as_json: bool
) -> None:
    """Make a token, and wait here for devices to join with it.

    Prints the token on standard output and, on standard error, the command to type on the device. Waits until as many
    devices have joined as --uses says, the time is over, or you press Ctrl-C.

    \b
    Examples:
      edgeswarm token create                  one device, within 30 minutes
      edgeswarm token create --uses 4         the same command on four devices
    """
    from edgeswarm.config import Folders, join_host_and_port
    from edgeswarm.listening import EVERY_ADDRESS
    from edgeswarm.security.authority import CertificateAuthority
    from edgeswarm.security.join import DEFAULT_JOIN_PORT, JoinServer
    from edgeswarm.security.token import TokenStore

    lifetime_seconds = valid_minutes * 60.0
    if math.isnan(lifetime_seconds):
        raise click.BadParameter("nan is no number of minutes.", param_hint="--valid-minutes")
    settings = operator_settings({"listen_address": listen_address, "join_port": join_port})
    folder = Folders.find().authority_dir
    authority = CertificateAuthority.load(folder)
    joined: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    server = JoinServer(
        authority,
        folder,
        host=settings.listen_address,
        port=settings.join_port,
        on_joined=lambda node_id, address: joined.put((node_id, address)),
    )
    with server, cancelled_by_signals("no device can join any more") as cancel:
        store = TokenStore(folder)
        made = store.create(authority.fingerprint, uses=uses, lifetime_seconds=lifetime_seconds)
        everywhere = settings.listen_address in EVERY_ADDRESS
        host, *others = _likely_addresses() if everywhere else (settings.listen_address,)
        is_plain = server.port == DEFAULT_JOIN_PORT and ":" not in host
        target = host if is_plain else join_host_and_port(host, server.port)
        command = f"edgeswarm-agent join {target} {made}"
        expires = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=lifetime_seconds)
        if as_json:
            print_json(
                {
                    "token": str(made),
                    "command": command,
                    "host": host,
                    "other_hosts": others,
                    "port": server.port,
                    "uses": uses,
                    "expires": expires.isoformat(timespec="seconds"),
                }
            )
        else:
            click.echo(str(made))
        hint(f"Type this on {'the device' if uses == 1 else f'each of up to {uses} devices'}:\n\n  {command}\n")
        if others:
            hint(f"On another of this machine's networks type {' or '.join(others)} in place of {host}.")
        hint(f"Waiting until {expires:%H:%M} for {'it' if uses == 1 else 'them'} to join; Ctrl-C ends that.")
        try:
            names = _wait_for_devices(joined, uses, expires.timestamp(), cancel.is_set)
        finally:
            # The next `token create` would let in whoever has it.
            with contextlib.suppress(OSError):
                store.withdraw(made)
    if cancel.is_set() or not names:
        # Standard output has its one document already: what went wrong is told on standard error, --json or not.
        raise click.exceptions.Exit(report(_why_it_ended(len(names), interrupted=cancel.is_set())))
    hint(f"{_counted(len(names))} joined. Start each with `edgeswarm-agent run`; `edgeswarm devices` then lists them.")


def _wait_for_devices(
    joined: queue.SimpleQueue[tuple[str, str]], uses: int, expires: float, cancelled: Callable[[], bool]
) -> set[str]:
    """Says who joins until all have, the token has expired or it is cancelled; returns the node ids.

    expires: by the clock that the token goes by, which goes on while this machine sleeps.
    """
    names: set[str] = set()
    while len(names) < uses and time.time() < expires and not cancelled():
        try:
            node_id, address = joined.get(timeout=_LOOK_EVERY_SECONDS)
        except queue.Empty:
            continue
        names.add(node_id)  # a device whose answer got lost asks again, and counts once
        hint(f"joined: {node_id} from {address}")
    return names


def _why_it_ended(devices: int, *, interrupted: bool) -> EdgeswarmError:
    if interrupted:
        return EdgeswarmError(
            ErrorCode.INTERRUPTED,
            f"Stopped waiting; {_counted(devices)} joined.",
            "Run `edgeswarm token create` again for more.",
        )
    return EdgeswarmError(
        ErrorCode.TOKEN,
        "The token expired and no device has joined.",
        "Make another one with `edgeswarm token create`; --valid-minutes gives it more time.",
    )


def _counted(devices: int) -> str:
    return f"{devices} device" if devices == 1 else f"{devices} devices"


def _likely_addresses() -> tuple[str, ...]:
    """The addresses under which other boxes may reach this one, the likeliest first; its host name where it has none."""
    from edgeswarm.discovery import choose_addresses, interface_addresses

    from ..own_address import own_host_towards

    of_networks = choose_addresses(interface_addresses())
    try:
        towards = own_host_towards(_SOMEWHERE_ELSE)
    except OSError:  # a LAN that leads nowhere else has no route to there
        towards = ""
    # A tunnel's address is out of the other boxes' reach, whatever leads through it.
    if towards in of_networks:
        return (towards, *(address for address in of_networks if address != towards))
    return of_networks or (towards or socket.gethostname(),)
