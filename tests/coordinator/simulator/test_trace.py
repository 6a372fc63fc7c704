"""Trace files: times in microseconds, a process for each device, spans that a viewer can draw."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from hypothesis import given, settings

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.simulator.simulate import simulate
from edgeswarm_coordinator.simulator.trace import chrome_trace

from .plans import make_instance, make_plan, planned


def test_a_round_by_hand() -> None:
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, bandwidth=10.0, cut_bytes=10, mini_batch=1, saved_bytes=5)
    plan = make_plan((1, {"a": 1}, 1), (1, {"b": 1}, 1), micro_batches=1)
    document = chrome_trace(simulate(instance, plan, timeline=True))
    events = document["traceEvents"]
    processes = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert set(processes) == {"a", "b"}
    tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = {
        (event["name"], tracks[event["pid"], event["tid"]]): (event["ts"], event["dur"])
        for event in events
        if event["ph"] == "X" and event["pid"] == processes["a"]
    }
    assert spans["forward 0", "compute"] == (0, 1e6)
    assert spans["forward 0", "egress to b"] == (1e6, 1e6)
    assert spans["backward 0", "ingress from b"] == (5e6, 1e6)
    assert spans["backward 0", "compute"] == (6e6, 2e6)
    memory = [(event["ts"], event["args"]["bytes"]) for event in events if event["ph"] == "C" and event["pid"] == 1]
    assert memory == [(0, 5), (8e6, 0)]


@settings(max_examples=40, deadline=None)
@given(planned())
def test_spans_of_a_track_follow_or_contain_one_another(case: tuple[PlanningInstance, Plan]) -> None:
    document = json.loads(json.dumps(chrome_trace(simulate(*case, timeline=True))))
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in document["traceEvents"]:
        check_fields(event)
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        open_until: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start + 0.01:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.01
            open_until.append(end)


def check_fields(event: dict[str, Any]) -> None:
    assert event["ph"] in ("X", "M", "C")
    assert isinstance(event["pid"], int)
    if event["ph"] == "X":
        assert event["ts"] >= 0
        assert event["dur"] >= 0
