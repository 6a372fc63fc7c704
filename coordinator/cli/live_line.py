"""The one line that a terminal shows of what goes on now, and how long that will still take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..planner.units import readable_bytes

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_SECONDS_TO_SAY_NOTHING = 2.0  # what is done sooner needs no figure


@dataclass
class Pace:
    """Of what is counted: how much of it a second, since `began`. From it the time left."""

    began: float
    done: float = 0.0
    total: float = 0.0

    def seconds_left(self, now: float) -> float | None:
        """None until it can be said."""
        if self.done <= 0 or now <= self.began:
            return None
        return (self.total - self.done) * (now - self.began) / self.done

    def rate(self, now: float) -> float | None:
        """A second; None until it can be said."""
        return self.done / (now - self.began) if self.done > 0 and now > self.began else None


@dataclass
class _Step:
    name: str
    began: float
    pace: Pace | None = None
    detail: str = ""
    notes: dict[str, str] = field(default_factory=dict)


class RunningSteps:
    """The steps that run now, and a line about them; steps overlap. clock: seconds that only grow.

    `text` may be asked for from another thread than the one that tells of steps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._steps: list[_Step] = []

    def begin(self, name: str) -> None:
        self._steps.append(_Step(name, self._clock()))

    def end(self, name: str) -> None:
        """The oldest one of that name."""
        step = self._find(name)
        if step is not None:
            self._steps.remove(step)

    def count(self, name: str, done: int, total: int) -> float | None:
        """So many of so many parts of the step are done; returns the seconds left, None until they can be said."""
        step = self._find(name)
        if step is None:
            return None
        step.pace = Pace(step.began, done, total)
        step.detail = f"{done}/{total}"
        return step.pace.seconds_left(self._clock())

    def count_bytes(self, name: str, device: str, done: int, total: int) -> None:
        """So many bytes have left for the device."""
        step = self._find(name)
        if step is None:
            return
        now = self._clock()
        pace = Pace(step.began, done, total)
        rate, left = pace.rate(now), pace.seconds_left(now)
        text = f"{device} {readable_bytes(done)} of {readable_bytes(total)}"
        if rate is not None and left is not None:
            text += f", {readable_bytes(rate)}/s, {clock_time(left)} left"
        step.notes[device] = text

    def note(self, name: str, device: str, text: str) -> None:
        """What the device is at, in this step."""
        step = self._find(name)
        if step is not None:
            step.notes[device] = f"{device}: {text}"

    def text(self) -> str:
        """`export model 12 s, profile layers 3/9, 0:40 left`"""
        return ", ".join(self._told(step) for step in list(self._steps))

    def _told(self, step: _Step) -> str:
        now = self._clock()
        parts = [step.name]
        if step.detail:
            parts.append(step.detail)
        if step.notes:
            parts.append(f"({'; '.join(list(step.notes.values()))})")
        left = step.pace.seconds_left(now) if step.pace is not None else None
        if left is not None:
            return f"{' '.join(parts)}, {clock_time(left)} left"
        if now - step.began >= _SECONDS_TO_SAY_NOTHING:
            parts.append(f"{now - step.began:.0f} s")
        return " ".join(parts)

    def _find(self, name: str) -> _Step | None:
        return next((step for step in self._steps if step.name == name), None)


class LiveText:
    """Text that is asked for anew at each frame, so that seconds pass, in one line of whatever width there is."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(self._text(), no_wrap=True, overflow="crop", end="")


def clock_time(seconds: float) -> str:
    """0:41, 2:00:05"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def readable_rate(per_second: float) -> str:
    """845, 9.88, 0.4: whole, and below 10 three significant digits, since a large model trains less than one sample a second."""
    return f"{per_second:.3g}" if per_second < 10 else f"{per_second:.0f}"
