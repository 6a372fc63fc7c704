"""What this device is when somebody asks: power modes, quotas and versions change while the agent runs. Never imports torch."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from .files import ROOT
from .hardware import Hardware, read_hardware, torch_version


class HardwareNow:
    """Looks anew each time. Any thread may call. slow_down, threads: as for read_hardware.

    What the kernel takes of a hot processor's clocks for a while makes no other device of it: those that were seen first with
    a power mode stay that mode's.
    """

    def __init__(self, *, slow_down: float = 1.0, threads: int | None = None, root: Path = ROOT) -> None:
        self._slow_down, self._threads, self._root = slow_down, threads, root
        self._lock = threading.Lock()
        self._clocks: dict[str, str] = {}  # by power mode
        self._computes_on: dict[str, str] = {}  # by version of torch

    def read(self) -> Hardware:
        with self._lock:
            hardware = read_hardware(
                slow_down=self._slow_down,
                threads=self._threads,
                accelerator=self._computes_on.get(torch_version()),
                root=self._root,
            )
            values = hardware.values
            clocks = self._clocks.setdefault(values["power_mode"], values["clocks"])
            return replace(hardware, values={**values, "clocks": clocks})

    def settle(self, torch: str, accelerator: str) -> None:
        """What a worker with this torch computes on, as it says itself: until then it was a guess."""
        with self._lock:
            self._computes_on[torch] = accelerator
