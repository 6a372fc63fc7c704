from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import IdleDevice, Plan, Prediction, Stage, StagePrediction
from edgeswarm_coordinator.plan_by_hand import fitted, read_plan

from .small_graphs import small_graph

IDS = ("nano-1-00000a", "nano-2-00000b")
GRAPH = small_graph([["a"], ["b"], ["c"]])
SHORT = {
    "micro_batch": 4,
    "micro_batches": 2,
    "stages": [
        {"first_layer": 0, "end_layer": 2, "shares": {"nano-2": 4}},
        {"first_layer": 2, "end_layer": 3, "shares": {"nano-1-00000a": 4}},
    ],
    "backup": {"0": "nano-1-00000a", "1": "nano-2"},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "plan.json").write_text(json.dumps(SHORT))
    return tmp_path / "plan.json"


def test_names_become_node_ids(path: Path) -> None:
    plan = fitted(read_plan(path), node_ids=IDS, layer_graph=GRAPH, batch_size=8)
    assert plan.devices == ("nano-2-00000b", "nano-1-00000a")
    assert plan.backup == {0: "nano-1-00000a", 1: "nano-2-00000b"}
    assert [stage.in_flight for stage in plan.stages] == [3, 1]


def test_owners_of_chunks_become_node_ids(tmp_path: Path) -> None:
    stage = {"first_layer": 0, "end_layer": 3, "shares": {"nano-2": 3, "nano-1": 1}, "owners": ["nano-1"]}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"micro_batch": 4, "micro_batches": 2, "stages": [stage]}))
    plan = fitted(read_plan(path), node_ids=IDS, layer_graph=GRAPH, batch_size=8)
    assert plan.stages[0].owners == ("nano-1-00000a",)


def made_for_one(*, in_flight: int = 1) -> Plan:
    """As a planner makes it: of two devices one is left out."""
    stage = Stage(0, 3, {"nano-1-00000a": 4}, in_flight=in_flight)
    predicted = Prediction(
        round_seconds=3.0,
        samples_per_second=8 / 3.0,
        memory_bytes={"nano-1-00000a": 5},
        stages=(StagePrediction(1.0, 2.0, 0.0, 0.0),),
        dominant="",
    )
    idle = (IdleDevice("nano-2-00000b", "slow"), IdleDevice("nano-3-00000c", "busy"))
    return Plan("edgeswarm", 4, 2, (stage,), idle=idle, predicted=predicted)


@pytest.mark.parametrize("name", ["nano-2", "nano-2-00000b"])
def test_what_was_told_of_other_stages_is_left_out_of_a_plan_that_was_edited(tmp_path: Path, name: str) -> None:
    """`edgeswarm plan --json` wrote it for one device, and a person gave the other one a stage."""
    stages = [{**SHORT["stages"][0], "shares": {name: 4}}, SHORT["stages"][1]]  # type: ignore[index]
    path = tmp_path / "plan.json"
    edited = {**made_for_one().to_json(), "stages": stages, "backup": {"0": "nano-3-00000c", "2": "nano-1-00000a"}}
    path.write_text(json.dumps(edited))
    plan = fitted(read_plan(path), node_ids=IDS, layer_graph=GRAPH, batch_size=8)
    assert plan.devices == ("nano-2-00000b", "nano-1-00000a")
    assert ([idle.name for idle in plan.idle], plan.backup, plan.predicted) == (["nano-3-00000c"], {}, None)


def test_what_is_predicted_is_of_the_plan_that_it_was_predicted_of(tmp_path: Path) -> None:
    plan, path = made_for_one(), tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_json()))
    assert read_plan(path) == plan
    other = {**plan.to_json(), "stages": made_for_one(in_flight=2).to_json()["stages"]}
    path.write_text(json.dumps(other))
    assert read_plan(path).predicted is None
    del other["predicted"]["of"]
    path.write_text(json.dumps(other))
    assert read_plan(path).predicted == plan.predicted, "a person's own is left alone"


@pytest.mark.parametrize(("layers", "batch_size"), [(4, 8), (3, 16)])
def test_a_plan_for_another_model_or_batch_is_refused(path: Path, layers: int, batch_size: int) -> None:
    graph = small_graph([[f"w{layer}"] for layer in range(layers)])
    with pytest.raises(EdgeswarmError) as caught:
        fitted(read_plan(path), node_ids=IDS, layer_graph=graph, batch_size=batch_size)
    assert caught.value.code is ErrorCode.PLAN_INVALID


def test_a_device_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="nano-2 was not found"):
        fitted(read_plan(path), node_ids=IDS[:1], layer_graph=GRAPH, batch_size=8)


@pytest.mark.parametrize("content", [None, b"{", b"\xff", b"[]", b'{"stages": []}'])
def test_a_file_that_is_no_plan_is_one_message(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EdgeswarmError) as caught:
        read_plan(path)
    assert caught.value.code is ErrorCode.PLAN_INVALID


def test_passes_become_those_of_node_ids(tmp_path: Path) -> None:
    stage = {"first_layer": 0, "end_layer": 3, "shares": {"nano-2": 3, "nano-1": 1}, "passes": {"nano-2": 2}}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"micro_batch": 4, "micro_batches": 2, "stages": [stage]}))
    plan = fitted(read_plan(path), node_ids=IDS, layer_graph=GRAPH, batch_size=8)
    assert plan.stages[0].passes == {"nano-2-00000b": 2}


@pytest.mark.parametrize(
    "stages",
    [
        [
            {"first_layer": 0, "end_layer": 2, "shares": {"nano-1": 4}},
            {"first_layer": 2, "end_layer": 3, "shares": {"nano-1-00000a": 4}},
        ],
        [{"first_layer": 0, "end_layer": 3, "shares": {"nano-1": 3, "nano-1-00000a": 1}}],
    ],
)
def test_a_device_by_two_names_is_told(tmp_path: Path, stages: list[object]) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"micro_batch": 4, "micro_batches": 2, "stages": stages}))
    with pytest.raises(EdgeswarmError, match="nano-1 and nano-1-00000a, which are one device") as caught:
        fitted(read_plan(tmp_path / "plan.json"), node_ids=IDS, layer_graph=GRAPH, batch_size=8)
    assert caught.value.code is ErrorCode.PLAN_INVALID
