"""What the machine's processors used, by the counters that Linux keeps where the hardware has any (RAPL: Intel, AMD).

A counter is of a whole package with everything that ran on it; of emulated devices, which share one, only the sum can be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")
_PACKAGE = "package-"
_MICRO = 1e-6


@dataclass(frozen=True)
class Counter:
    """microjoules: since some time; begins again at 0 beyond `largest`."""

    microjoules: int
    largest: int


def read_counters(folder: Path = _POWERCAP) -> dict[str, Counter]:
    """By package; none where there is no sensor, or where only root may read it.

    Of a package's parts none, and not `psys`, the whole board, in which the packages are once more.
    """
    found = {}
    for package in sorted(folder.glob("*-rapl:*")):
        try:
            if not (package / "name").read_text().startswith(_PACKAGE):
                continue
            numbers = [int((package / name).read_text()) for name in ("energy_uj", "max_energy_range_uj")]
        except (OSError, ValueError):
            continue
        found[package.name] = Counter(*numbers)
    return found


def joules_between(before: Mapping[str, Counter], after: Mapping[str, Counter]) -> float | None:
    """None where no counter was read both times. A counter may have begun again once in between."""
    used = [_used(before[name], counter) for name, counter in after.items() if name in before]
    return _MICRO * sum(used) if used else None


def _used(before: Counter, after: Counter) -> int:
    more = after.microjoules - before.microjoules
    return more if more >= 0 else more + after.largest
