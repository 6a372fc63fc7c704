"""A simulated round as rows of characters, for a terminal.

    nx1    compute |F0--F1--....B0======F2--B1======S|     F forward, B backward, with the micro-batch; S the step
           sends   |   >>> >>>          >>>          |     > activations, < gradients, ~ all-reduce; A waiting for it
    tx1    compute |.......F0-B0====F1-B1====AAAAAA.S|     . waiting
           sends   |              <<<     <<<~~~~~   |
                   0 ms                          40 ms

A cell stands for a stretch of time, and shows what took most of it. What began before the round, in the one before it, is drawn
at the round's end, too: there the next one begins early just so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..planner.units import readable_seconds
from .log import TIED_SUM
from .simulation import Simulation, TimelineEvent

LEAST_CELLS = 20
LEGEND = (
    "F forward, B backward, W weights' gradients with their micro-batch, S optimizer step, A waits for the all-reduce, "
    ". waits, > activations, < gradients, ~ all-reduce, s samples sent"
)
SOURCE = "data source"

_LETTERS = {"forward": "F", "backward": "B", "weights": "W", "step": "S", "all-reduce": "A"}
_REST = {"forward": "-", "backward": "=", "weights": "+", "step": "S", "all-reduce": "A"}
_SENT = {"forward": ">", "backward": "<", "all-reduce": "~", TIED_SUM: "~", "samples": "s"}


def gantt(simulation: Simulation, *, width: int) -> list[str]:
    """Lines of at most `width` characters, but never fewer than 20 cells of time. Needs a simulation with its timeline."""
    names = list(simulation.devices)
    by_device: dict[str, list[TimelineEvent]] = {name: [] for name in ("", *names)}
    seconds = simulation.round_seconds
    for event in simulation.events:
        by_device[event.device].append(event)
        if event.start_seconds < 0:
            again = replace(event, start_seconds=event.start_seconds + seconds, end_seconds=event.end_seconds + seconds)
            by_device[event.device].append(again)
    label = max(len(name) for name in (*names, SOURCE if by_device[""] else "")) + len(" compute |")
    cells = max(LEAST_CELLS, width - label - 1)
    lines = []
    for name in names:
        computing = [event for event in by_device[name] if event.track in ("compute", "all-reduce")]
        sending = [event for event in by_device[name] if event.track == "egress"]
        lines.append(_row(f"{name} compute", label, _computed(computing, cells, seconds)))
        if sending:
            lines.append(_row("sends", label, _sent(sending, cells, seconds)))
    if by_device[""]:
        lines.append(_row(f"{SOURCE} sends", label, _sent(by_device[""], cells, seconds)))
    end = readable_seconds(seconds)
    lines.append(" " * label + "0" + end.rjust(cells - 1))
    return lines


def _row(name: str, label: int, cells: str) -> str:
    head, _, track = name.rpartition(" ")
    room = label - len(" |")
    return f"{head:<{max(0, room - 7)}}{track:>7} |{cells}|"


def _computed(events: Sequence[TimelineEvent], cells: int, seconds: float) -> str:
    """The letter of the event that takes most of each cell; the micro-batch's digits follow where there is room."""
    row = ["."] * cells
    owners = _owners(events, cells, seconds)
    for cell, owner in enumerate(owners):
        if owner is None:
            continue
        event = events[owner]
        first = cell
        while first and owners[first - 1] == owner:
            first -= 1
        place = cell - first
        text = _LETTERS[event.kind] + (str(event.micro_batch) if event.micro_batch >= 0 else "")
        length = cell - first + 1
        while first + length < cells and owners[first + length] == owner:
            length += 1
        shown = text if len(text) <= length else text[:1]
        row[cell] = shown[place] if place < len(shown) else _REST[event.kind]
    return "".join(row)


def _sent(events: Sequence[TimelineEvent], cells: int, seconds: float) -> str:
    return "".join(
        " " if owner is None else _SENT[events[owner].kind] for owner in _owners(events, cells, seconds, least=0.25)
    )


def _owners(events: Sequence[TimelineEvent], cells: int, seconds: float, *, least: float = 0.5) -> list[int | None]:
    """Which event takes most of each cell; None where all together take less than the part `least` of it."""
    taken: list[dict[int, float]] = [{} for _ in range(cells)]
    a_cell = seconds / cells
    if a_cell <= 0:
        return [None] * cells
    for number, event in enumerate(events):
        first = max(0, int(event.start_seconds / a_cell))
        last = min(cells - 1, int(event.end_seconds / a_cell))
        for cell in range(first, last + 1):
            begin, end = max(event.start_seconds, cell * a_cell), min(event.end_seconds, (cell + 1) * a_cell)
            if end > begin:
                taken[cell][number] = end - begin
    return [
        max(parts, key=lambda number: parts[number]) if parts and sum(parts.values()) >= least * a_cell else None
        for parts in taken
    ]
