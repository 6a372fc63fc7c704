"""The explanation says who does what, what it costs and what limits it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.plan import IdleDevice, Plan, Stage
from edgeswarm.schedule.policies import ZERO_BUBBLE
from edgeswarm_coordinator.planner.explain import HEADINGS, backup_sentence, explain, layer_text
from edgeswarm_coordinator.planner.units import readable_bytes, readable_seconds

from .instances import make_instance

INSTANCE = make_instance(slower=(1.0, 2.0, 1.0, 3.0), memory_bytes=[4096, 4096, 300, 10**6], latency=0.001)
PLAN = Plan(
    planner="by hand",
    micro_batch=4,
    micro_batches=4,
    stages=(Stage(0, 3, {"a": 3, "b": 1}, 3), Stage(3, 4, {"c": 4}, 1)),
    idle=(IdleDevice("d", "too slow"),),
    backup={1: "a"},
)


def test_rows_and_sentences() -> None:
    explanation = explain(PLAN, INSTANCE)
    assert explanation.headline == (
        "2 stages on 3 devices (planner by hand): 16 samples a round in 4 micro-batches of 4 samples."
    )
    assert [(row.stage, row.device, row.samples, row.over_budget) for row in explanation.rows] == [
        (0, "a", 3, False),
        (0, "b", 1, False),
        (1, "c", 4, True),
    ]
    assert explanation.rows[0].layers == "0-2 (layer0 ... layer2)"
    assert "all-reduce" in explanation.stages[0]
    assert "to send on" in explanation.stages[0]
    assert "to send on" not in explanation.stages[1]
    assert explanation.expectation[1] == "What limits the round: computing in stage 0 (a, b) for 100% of it."
    assert explanation.notes == ("d stays idle: too slow.",)
    assert (
        explanation.backups
        == "Planned backups, where nothing is kept yet: of stage 0 on its own replicas, of stage 1 (c) on a."
    )
    assert explanation.backups in explanation.text.splitlines()


def test_another_schedule_is_told() -> None:
    notes = explain(replace(PLAN, schedule=ZERO_BUBBLE), INSTANCE).notes
    assert notes[0] == (
        "Gradients of weights are computed apart from the rest of a backward, in gaps (schedule zero-bubble)."
    )


def test_a_stage_that_nobody_else_keeps_is_named() -> None:
    assert backup_sentence(replace(PLAN, backup={})) == (
        "Planned backups, where nothing is kept yet: of stage 0 on its own replicas, of stage 1 nowhere."
    )
    alone = Plan(planner="by hand", micro_batch=4, micro_batches=4, stages=(Stage(0, 4, {"a": 4}, 1),))
    assert backup_sentence(alone) == "Planned backups: none."


def test_text_has_a_table_with_aligned_columns() -> None:
    lines = explain(PLAN, INSTANCE).text.splitlines()
    header = next(line for line in lines if line.lstrip().startswith("stage "))
    assert all(heading in header for heading in HEADINGS)
    rows = lines[lines.index(header) + 1 : lines.index(header) + 4]
    assert [row[header.index("device")] for row in rows] == ["a", "b", "c"]
    assert "(too much)" in rows[2]


def test_layer_text_of_one_layer() -> None:
    assert layer_text(INSTANCE, 1, 2) == "1 (layer1)"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB")]
)
def test_readable_bytes(count: int, text: str) -> None:
    assert readable_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0001, "100 us"), (0.0123, "12.3 ms"), (83.4, "83.4 s"), (900, "15.0 min"), (7200, "2.0 h")]
)
def test_readable_seconds(seconds: float, text: str) -> None:
    assert readable_seconds(seconds) == text
