"""The table of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..planner.units import readable_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from ..device import Device


def device_table(devices: Sequence[Device]) -> Table:
    """One row a device: name, address, board, what it has, and whether it is free."""
    from rich.table import Table

    table = Table(title_justify="left")
    for name in ("device", "address", "board"):
        table.add_column(name)
    for name in ("cores", "memory for training"):
        table.add_column(name, justify="right")
    for name in ("accelerator", "torch", "state"):
        table.add_column(name)
    for device in devices:
        table.add_row(
            device.node_id,
            device.address,
            device.board,
            f"{device.cpu_cores:g}",
            f"{readable_bytes(device.memory_budget_bytes)} of {readable_bytes(device.memory_total_bytes)}",
            device.accelerator if device.slow_down == 1.0 else f"{device.accelerator}, {device.slow_down:g} x slower",
            device.torch_version,
            state_of(device),
        )
    return table


def state_of(device: Device) -> str:
    if device.idle:
        return "idle"
    since = f" since {device.busy_since}" if device.busy_since else ""
    return f"busy with {device.busy_with_job}{since}"
