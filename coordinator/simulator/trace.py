"""A simulated round as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing read.

A process for each device, with tracks for what it computes, for the all-reduce that it waits for, and for each peer that
it sends to or receives from; the memory that it holds as a counter. Times are in microseconds, and begin with 0.
"""

from __future__ import annotations

from typing import Any

from .simulation import Simulation, TimelineEvent

SOURCE = "data source"
_TRACKS = ("compute", "all-reduce", "egress", "ingress")


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """One JSON object in the Trace Event Format. Needs a simulation with its timeline."""
    names = [*simulation.devices, *([""] if any(event.device == "" for event in simulation.events) else [])]
    process = {name: number + 1 for number, name in enumerate(names)}
    begin = min([0.0, *(event.start_seconds for event in simulation.events)])
    described: list[dict[str, Any]] = []
    for name, number in process.items():
        described.append(_metadata("process_name", number, 0, {"name": name or SOURCE}))
        described.append(_metadata("process_sort_index", number, 0, {"sort_index": number}))
    tracks: dict[tuple[str, str, str], int] = {}
    for event in sorted(simulation.events, key=lambda one: (process[one.device], _TRACKS.index(one.track), one.peer)):
        key = _track(event)
        if key not in tracks:
            tracks[key] = number = len(tracks) + 1
            named = event.track if event.track in ("compute", "all-reduce") else _transfer_track(event)
            described.append(_metadata("thread_name", process[event.device], number, {"name": named}))
            described.append(_metadata("thread_sort_index", process[event.device], number, {"sort_index": number}))
    spans = [_span(event, process[event.device], tracks[_track(event)], begin) for event in simulation.events]
    counters = [
        {
            "name": "memory",
            "ph": "C",
            "pid": process[name],
            "ts": _microseconds(seconds - begin),
            "args": {"bytes": level},
        }
        for name, memory in simulation.memory.items()
        for seconds, level in memory.over_time
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"round_seconds": simulation.round_seconds},
        "traceEvents": [*described, *spans, *counters],
    }


def _track(event: TimelineEvent) -> tuple[str, str, str]:
    """Transfers to different peers overlap, so each peer has a track; on one stream they follow or contain one another."""
    return event.device, event.track, event.peer


def _transfer_track(event: TimelineEvent) -> str:
    return f"{event.track} {'to' if event.track == 'egress' else 'from'} {event.peer or SOURCE}"


def _span(event: TimelineEvent, process: int, track: int, begin: float) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if event.micro_batch >= 0:
        arguments["micro_batch"] = event.micro_batch
    if event.track in ("egress", "ingress"):
        arguments["bytes"] = event.size_bytes
    name = event.kind if event.micro_batch < 0 else f"{event.kind} {event.micro_batch}"
    return {
        "name": name,
        "cat": event.track,
        "ph": "X",
        "pid": process,
        "tid": track,
        "ts": _microseconds(event.start_seconds - begin),
        "dur": _microseconds(event.end_seconds - event.start_seconds),
        "args": arguments,
    }


def _metadata(name: str, process: int, track: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": track, "args": arguments}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
