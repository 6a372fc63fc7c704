"""Where the time of the workers' rounds went: means over a training, part by part; the parts add up to the round."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..events import Event, RoundDone

if TYPE_CHECKING:
    from rich.table import Table

COMPUTING = "computing"
SENDING = "sending"
WAITING = "waiting for "
ALL_REDUCE = "all-reduce"
STEP = "step"
OTHER = "other"


@dataclass
class _Sums:
    rounds: int = 0
    seconds: float = 0.0
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class PartsOfRounds:
    """A listener that adds up the parts of every worker's rounds."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RoundDone):
            return
        for device, parts in event.parts.items():
            sums = self._sums.setdefault(device, _Sums())
            sums.rounds += 1
            sums.seconds += parts.seconds
            sums.parts[COMPUTING] += parts.forward + parts.backward
            sums.parts[SENDING] += parts.send
            for what, seconds in parts.waiting.items():
                sums.parts[WAITING + what] += seconds
            sums.parts[ALL_REDUCE] += parts.all_reduce
            sums.parts[STEP] += parts.step
            sums.parts[OTHER] += parts.other

    def means(self) -> dict[str, dict[str, float]]:
        """By device: seconds of each part of a mean round, in the order of the table, and `round` for the whole."""
        result = {}
        for device, sums in self._sums.items():
            waiting = sorted(part for part in sums.parts if part.startswith(WAITING))
            order = (COMPUTING, SENDING, *waiting, ALL_REDUCE, STEP, OTHER)
            mean = {part: sums.parts[part] / sums.rounds for part in order}
            result[device] = {**mean, "round": sums.seconds / sums.rounds}
        return result

    def to_json(self) -> dict[str, Any]:
        return {"unit": "seconds of a mean round", "devices": self.means()}


def parts_table(means: dict[str, dict[str, float]]) -> Table:
    """One column a device, one row a part, in milliseconds of a mean round and as a fraction of it."""
    from rich.table import Table

    table = Table(title="Where a round's time goes (mean, ms)", title_justify="left")
    table.add_column("part")
    for device in means:
        table.add_column(device, justify="right", overflow="fold")
    rows = list(dict.fromkeys(part for mean in means.values() for part in mean if part != "round"))
    rows.sort(key=_place)
    for part in rows:
        table.add_row(part, *(_cell(mean.get(part), mean["round"]) for mean in means.values()))
    table.add_section()
    table.add_row("round", *(_cell(mean["round"], mean["round"]) for mean in means.values()))
    return table


def _place(part: str) -> tuple[int, str]:
    order = (COMPUTING, SENDING, WAITING, ALL_REDUCE, STEP, OTHER)
    return (order.index(WAITING if part.startswith(WAITING) else part), part)


def _cell(seconds: float | None, whole: float) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.1f}  {100 * seconds / whole:3.0f} %" if whole > 0 else f"{seconds * 1000:.1f}"
