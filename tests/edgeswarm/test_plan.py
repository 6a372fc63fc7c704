"""Plans: what they refuse, and that JSON gives them back."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import IdleDevice, Plan, Prediction, Stage, StagePrediction

SHORT: dict[str, Any] = {
    "micro_batch": 8,
    "micro_batches": 2,
    "stages": [
        {"first_layer": 0, "end_layer": 4, "shares": {"b": 5, "a": 3}},
        {"first_layer": 4, "end_layer": 9, "shares": {"c": 8}},
    ],
}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Whole random plans."""
    micro_batch = draw(st.integers(1, 12))
    names = [f"device-{number}" for number in draw(st.permutations(range(8)))]
    stages: list[Stage] = []
    layer = 0
    count = draw(st.integers(1, 3))
    for _ in range(count):
        size = draw(st.integers(1, min(2, micro_batch)))
        first = draw(st.integers(1, micro_batch - 1)) if size == 2 else micro_batch
        parts = [first, micro_batch - first][:size]
        end = layer + draw(st.integers(1, 9))
        shares = dict(zip([names.pop() for _ in parts], parts, strict=True))
        owners = tuple(draw(st.lists(st.sampled_from(list(shares)), unique=True)))
        passes = {
            name: draw(st.integers(1, share)) for name, share in shares.items() if count == 1 and draw(st.booleans())
        }
        stages.append(Stage(layer, end, shares, draw(st.integers(1, 5)), owners, passes))
        layer = end
    seconds = st.floats(0, 1e6)
    devices = [device for stage in stages for device in stage.devices]
    predicted = Prediction(
        round_seconds=draw(seconds),
        samples_per_second=draw(seconds),
        memory_bytes={device: draw(st.integers(0, 2**40)) for device in devices},
        stages=tuple(StagePrediction(draw(seconds), draw(seconds), draw(seconds), draw(seconds)) for _ in stages),
        dominant=draw(st.text()),
    )
    return Plan(
        planner=draw(st.text(min_size=1)),
        micro_batch=micro_batch,
        micro_batches=draw(st.integers(1, 9)),
        last_micro_batch=draw(st.none() | st.integers(1, micro_batch - 1)) if micro_batch > 1 else None,
        stages=tuple(stages),
        idle=tuple(IdleDevice(name, draw(st.text())) for name in names),
        backup={draw(st.integers(0, len(stages) - 1)): draw(st.sampled_from(devices))},
        predicted=draw(st.none() | st.just(predicted)),
    )


@given(plans())
def test_json_gives_the_plan_back(plan: Plan) -> None:
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert [stage.devices for stage in again.stages] == [stage.devices for stage in plan.stages]


def test_a_round_that_takes_no_time_is_json_too() -> None:
    plan = Plan.from_json(SHORT)
    instant = replace(
        plan, predicted=Prediction(0.0, math.inf, {}, (StagePrediction(0.0, 0.0, 0.0, 0.0),) * 2, "nothing")
    )
    document = json.dumps(instant.to_json(), allow_nan=False)
    assert Plan.from_json(json.loads(document)) == instant


def test_a_short_plan_written_by_hand() -> None:
    plan = Plan.from_json({**SHORT, "comment": "unknown keys are passed over"})
    assert plan.planner == "by hand"
    assert plan.predicted is None
    assert [stage.in_flight for stage in plan.stages] == [3, 1]
    assert plan.stages[0].devices == ("b", "a")
    assert (plan.mini_batch, plan.layer_count, plan.stage_of("a"), plan.stage_of("c")) == (16, 9, 0, 1)
    assert plan.devices == ("b", "a", "c")
    with pytest.raises(KeyError):
        plan.stage_of("d")


def changed(**changes: Any) -> dict[str, Any]:
    """SHORT with some fields set: stages__0__shares=... sets document["stages"][0]["shares"]."""
    document = copy.deepcopy(SHORT)
    for path, value in changes.items():
        place: Any = document
        *way, last = (int(part) if part.isdigit() else part for part in path.split("__"))
        for part in way:
            place = place[part]
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "JSON object"),
        (changed(format="edgeswarm-plan/2"), "format is 'edgeswarm-plan/2'"),
        (changed(micro_batch=None), "micro_batch is missing"),
        (changed(micro_batch="8"), "micro_batch must be a whole number"),
        (changed(micro_batches=0), "micro_batches must be a whole number of at least 1"),
        (changed(micro_batches=True), "micro_batches must be a whole number"),
        (changed(stages=[]), "stages is empty"),
        (changed(stages={}), "stages must be a list"),
        (changed(stages__1=3), r"stages\[1\] must be an object"),
        (changed(stages__0__first_layer=1), r"stages\[0\].first_layer is 1, expected 0"),
        (changed(stages__1__first_layer=5), r"stages\[1\].first_layer is 5, expected 4"),
        (changed(stages__1__end_layer=4), r"stages\[1\]: layers \[4, 4\) hold no layer"),
        (changed(stages__0__shares__a=2), r"stages\[0\].shares add up to 7, but micro_batch is 8"),
        (changed(stages__0__shares__a=2.5), r"stages\[0\].shares.a must be a whole number"),
        (changed(stages__0__shares__a=0), r"stages\[0\].shares.a must be a whole number of at least 1"),
        (changed(stages__0__shares={}), r"stages\[0\]: shares names no device"),
        (changed(stages__1__shares={"a": 8}), r"stages\[1\].shares names a, which is in stage 0"),
        (changed(stages__1__in_flight=0), r"stages\[1\].in_flight must be a whole number of at least 1"),
        (changed(last_micro_batch=8), "last_micro_batch is 8"),
        (changed(schedule="zigzag"), "schedule is 'zigzag'"),
        (changed(idle=[{"name": "a"}]), "idle names a"),
        (changed(backup={"first": "a"}), "backup: has the key 'first'"),
        (changed(backup={"2": "a"}), "backup names stage 2"),
        (changed(backup={"0": "z"}), "backup of stage 0 is z"),
        (changed(predicted={"round_seconds": -1}), "predicted.round_seconds must be a number of at least 0"),
        (
            changed(predicted={"round_seconds": 1, "samples_per_second": 1, "memory_bytes": {}, "stages": []}),
            "predicted.stages has 0 entries",
        ),
    ],
)
def test_from_json_names_the_field(document: object, words: str) -> None:
    with pytest.raises(EdgeswarmError, match=words) as caught:
        Plan.from_json(document)
    assert caught.value.code is ErrorCode.PLAN_INVALID
    assert caught.value.remedy


def test_whole_numbers_written_with_a_point_are_taken() -> None:
    assert Plan.from_json(changed(micro_batch=8.0)).micro_batch == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_count": 10}, "end at layer 9, but the model has 10 layers"),
        ({"mini_batch": 32}, "round has 16 samples in 2 micro-batches of up to 8, but the batch size is 32"),
        ({"devices": ["a", "b"]}, "uses c"),
        ({"least_batch": [1, 1, 4, 1, 1, 1, 1, 1, 1]}, "In stage 0 a takes 3 of a micro-batch's 8 samples"),
    ],
)
def test_validate_for(changes: dict[str, Any], words: str) -> None:
    fitting: dict[str, Any] = {"layer_count": 9, "mini_batch": 16, "devices": ["a", "b", "c", "d"]}
    plan = Plan.from_json(SHORT)
    plan.validate_for(**fitting, least_batch=[3] * 4 + [8] * 5)
    with pytest.raises(EdgeswarmError, match=words) as caught:
        plan.validate_for(**{**fitting, **changes})
    assert caught.value.code is ErrorCode.PLAN_INVALID


def test_constructors_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="takes at least 1 sample"):
        Stage(0, 1, {"a": 0}, 1)
    with pytest.raises(ValueError, match="in_flight is 0"):
        Stage(0, 1, {"a": 1}, 0)
    with pytest.raises(ValueError, match="add up to 1"):
        Plan(planner="x", micro_batch=2, micro_batches=1, stages=(Stage(0, 1, {"a": 1}, 1),))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("owners", ["c"], "owners names c, which has no share"),
        ("owners", ["a", "a"], "owners names a device twice"),
        ("passes", {"c": 2}, "passes names c, which has no share"),
        ("passes", {"a": 4}, "passes of a is 4; it must be from 1 to its share, 3"),
        ("passes", {"a": 0}, r"passes.a must be a whole number of at least 1"),
        ("passes", {"a": 2}, "passes are for a plan of one stage"),
    ],
)
def test_owners_and_passes_are_those_of_replicas_of_the_stage(field: str, value: object, told: str) -> None:
    document = copy.deepcopy(SHORT)
    document["stages"][0][field] = value
    with pytest.raises(EdgeswarmError, match=told) as caught:
        Plan.from_json(document)
    assert caught.value.code is ErrorCode.PLAN_INVALID


@pytest.mark.parametrize(
    ("schedule", "held"), [("1f1b", [(5, 0), (4, 0), (3, 0)]), ("zero-bubble", [(5, 0), (4, 0), (1, 2)])]
)
def test_with_a_zero_bubble_the_last_stage_holds_one_micro_batch_in_full(
    schedule: str, held: list[tuple[int, int]]
) -> None:
    stages = (Stage(0, 1, {"a": 2}, 6), Stage(1, 2, {"b": 2}, 4), Stage(2, 3, {"c": 2}, 3))
    plan = Plan("by hand", 2, 5, stages, schedule=schedule)
    assert [plan.held_micro_batches(index) for index in range(3)] == held


def test_samples_at_once_are_those_of_the_largest_pass() -> None:
    stage = Stage(0, 4, {"a": 7, "b": 5}, 1, passes={"a": 3})
    assert (stage.passes_of("a"), stage.at_once("a")) == (3, 3)
    assert (stage.passes_of("b"), stage.at_once("b")) == (1, 5)
