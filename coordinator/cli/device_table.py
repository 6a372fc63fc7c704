"""The table of devices, and what stands for it where the terminal is too narrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..planner.units import readable_bytes
from .narrow import table_or_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
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
            _memory_of(device),
            _accelerator_of(device),
            device.torch_version,
            state_of(device),
        )
    return table


def devices_view(console: Console, devices: Sequence[Device]) -> RenderableType:
    """The table; a few lines for each device where it would be cut."""
    lines = []
    for device in devices:
        lines.append(device.node_id)
        lines.append(f"    {device.address}, {state_of(device)}")
        lines.append(f"    {device.board}, {_accelerator_of(device)}, {device.cpu_cores:g} cores")
        lines.append(f"    {_memory_of(device)} for training, torch {device.torch_version}")
    return table_or_lines(console, device_table(devices), lines)


def print_devices(console: Console, devices: Sequence[Device]) -> None:
    console.print(devices_view(console, devices), soft_wrap=True)


def _memory_of(device: Device) -> str:
    return f"{readable_bytes(device.memory_budget_bytes)} of {readable_bytes(device.memory_total_bytes)}"


def _accelerator_of(device: Device) -> str:
    name = device.hardware.get("card") or device.accelerator
    return name if device.slow_down == 1.0 else f"{name}, {device.slow_down:g} x slower"


def state_of(device: Device) -> str:
    if device.idle:
        return "idle"
    since = f" since {device.busy_since}" if device.busy_since else ""
    return f"busy with {device.busy_with_job}{since}"
