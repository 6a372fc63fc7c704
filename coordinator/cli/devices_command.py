"""`edgeswarm devices`: who is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edgeswarm.cli_errors import json_option
from edgeswarm.errors import EdgeswarmError, ErrorCode

from .console import data_console, print_json, progress_console
from .interrupts import cancelled_by_signals
from .options import FindArguments, find_options, operator_settings
from .watching import check_watch, show_again_and_again

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..options import DiscoveryOptions

WATCH_EVERY_SECONDS = 2.0


@click.command()
@find_options
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@json_option()
def devices(*, as_json: bool, watch: bool, **found: Any) -> None:
    """List the devices that answer, busy ones too.

    Devices are found by mDNS, at the addresses given with --peer, and at their last known addresses.

    \b
    Examples:
      edgeswarm devices
      edgeswarm devices --peer 192.168.1.20 --no-mdns
      edgeswarm devices --watch                until Ctrl-C
      edgeswarm devices --json
    """
    from ..controller import list_devices
    from .device_table import print_devices
    from .progress import Progress

    check_watch(watch=watch, as_json=as_json)
    options = FindArguments(**found).with_settings(operator_settings())
    if watch:
        _watch(options)
        return
    with cancelled_by_signals("leaving the devices alone") as cancel, Progress(progress_console()) as progress:
        listed = list_devices(options, listener=progress, cancel=cancel)
    if as_json:
        print_json({"devices": [device.to_json() for device in listed]})
    else:
        print_devices(data_console(), listed)


def _watch(options: DiscoveryOptions) -> None:
    from rich.text import Text

    from ..controller import list_devices
    from .device_table import devices_view

    console = data_console()

    def view() -> RenderableType:
        try:
            return devices_view(console, list_devices(options))
        except EdgeswarmError as error:
            if error.code is not ErrorCode.NO_DEVICES:
                raise
            return Text(f"{error.message} Looking again.")

    show_again_and_again(console, view, every_seconds=WATCH_EVERY_SECONDS)
