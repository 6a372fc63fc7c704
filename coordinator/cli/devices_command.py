"""`edgeswarm devices`: who is there."""

from __future__ import annotations

from typing import Any

import click

from edgeswarm.cli_errors import json_option

from .console import data_console, print_json, progress_console
from .interrupts import cancelled_by_signals
from .options import FindArguments, find_options, operator_settings


@click.command()
@find_options
@json_option()
def devices(as_json: bool, **found: Any) -> None:
    """List the devices that answer, busy ones too.

    Devices are found by mDNS, at the addresses given with --peer, and at their last known addresses.

    \b
    Examples:
      edgeswarm devices
      edgeswarm devices --peer 192.168.1.20 --no-mdns
      edgeswarm devices --json
    """
    from ..controller import list_devices
    from .device_table import print_devices
    from .progress import Progress

    options = FindArguments(**found).with_settings(operator_settings())
    with cancelled_by_signals("leaving the devices alone") as cancel, Progress(progress_console()) as progress:
        listed = list_devices(options, listener=progress, cancel=cancel)
    if as_json:
        print_json({"devices": [device.to_json() for device in listed]})
    else:
        print_devices(data_console(), listed)
