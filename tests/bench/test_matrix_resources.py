"""Bytes, processor and memory of edgeswarm's rounds, read off a cell's document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.matrix_resources import read_resources, resources_table
from edgeswarm.profile_json import instance_to_json
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.planner.prediction import with_prediction
from edgeswarm_coordinator.simulator.simulate import simulate
from tests.coordinator.planner.instances import make_instance

CELL = "C-100-mobilenet_v2"


def document(sent_factor: float = 1.0) -> dict[str, Any]:
    made = make_instance(memory_bytes=[10**6, 10**6])
    instance = replace(
        made,
        devices=tuple(
            replace(device, name=name) for device, name in zip(made.devices, ("nx-1", "nano-1"), strict=True)
        ),
    )
    plan = make_plan(instance, "pipeline")
    sent = simulate(instance, plan).sent_bytes
    assert plan.predicted is not None
    devices = {
        name: {
            "peak_bytes": round(plan.predicted.memory_bytes[name] / 1.05),
            "cpu_seconds": 4.0,
            "model_cpu_seconds": 3.0 if name == "nano-1" else 3.92,
            "sent_bytes": sent_factor * sent[name],
        }
        for name in plan.devices
    }
    seconds = plan.predicted.round_seconds
    return {
        "cell": CELL,
        "mini_batch": 16,
        "profilings": [{"instance": instance_to_json(instance)}],
        "plans": {"edgeswarm": plan.to_json()},
        "peers": {"DDP": {}},
        "runs": [
            {"method": "edgeswarm", "round_seconds": [2 * seconds, 2 * seconds], "devices": devices},
            {"method": "DDP", "round_seconds": [9.0], "devices": {"nx-1": {"cpu_seconds": 16.0}}, "joules": 40.0},
            {"method": "DDP", "problem": "nano-1 ended with 1"},
        ],
    }


def test_joules_are_those_of_both_runs_of_ours() -> None:
    told = document()
    ours = {**told["runs"][0], "joules": 16.0 * 2 * 3.0}
    told["runs"] = [ours, {**ours, "method": "edgeswarm, again", "joules": 16.0 * 2 * 5.0}, *told["runs"][1:]]
    found = read_resources(told)
    assert found is not None
    assert found.joules_per_sample == {"edgeswarm": 4.0, "DDP": 40.0 / 16}


def test_what_a_cell_used() -> None:
    found = read_resources(document())
    assert found is not None
    assert found.measured_seconds == pytest.approx(2 * found.predicted_seconds)
    assert found.bytes_off == pytest.approx(0.0)
    assert found.outside == {"nx-1": pytest.approx(0.02), "nano-1": pytest.approx(0.25)}
    assert found.outside_seconds_per_sample == pytest.approx(1.08 / 16)
    assert found.peer_cpu_seconds_per_sample == {"DDP": pytest.approx(1.0)}
    assert found.joules_per_sample == {"DDP": pytest.approx(2.5)}


def test_what_passes_between_rounds_is_beside_the_peers() -> None:
    told = document()
    assert resources_table([found for found in [read_resources(told)] if found is not None]).rows[0][10] == ""
    told["runs"][0] |= {"round_seconds": [2.0, 2.0, 3.0], "round_ends": [10.0, 12.01, 15.03]}
    told["runs"][1] |= {"round_seconds": [9.0, 9.0], "round_ends": [10.0, 19.005]}
    (row,) = resources_table([found for found in [read_resources(told)] if found is not None]).rows
    assert row[10] == "15 (DDP 5)"


def test_what_left_the_cards_is_beside_the_plan_where_it_is_known() -> None:
    told = document()
    assert resources_table([found for found in [read_resources(told)] if found is not None]).rows[0][6] == ""
    for device in told["runs"][0]["devices"].values():
        device["card_sent_bytes"] = 1.03 * device["sent_bytes"]
    assert resources_table([found for found in [read_resources(told)] if found is not None]).rows[0][6] == "+3.0%"


def test_what_does_not_hold_is_said() -> None:
    table = resources_table([found for found in [read_resources(document(1.05))] if found is not None])
    assert table.rows[0][:4] == (CELL, *table.rows[0][1:3], "-50.0%")
    assert table.rows[0][7] in ("nx 2%, nano 25%", "nano 25%, nx 2%")
    assert table.verdicts == [
        (f"{CELL}: bytes +5.00% beside the plan", False),
        (f"{CELL}: 25.0% of a nano's CPU outside of the model", False),
    ]


def test_zeros_that_were_left_out_are_told_apart_from_bytes_that_are_missing() -> None:
    told = document(0.9)
    name = f"{CELL}: bytes -10.00% beside the plan"
    table = resources_table([found for found in [read_resources(told)] if found is not None])
    assert table.verdicts[0] == (name, False)
    devices = told["runs"][0]["devices"].values()
    for part, shown, holds in ((0.1, "+0.00%", True), (0.05, "-5.00%", False), (0.2, "+10.00%", False)):
        for device in devices:
            device["left_out_bytes"] = part / 0.9 * device["sent_bytes"]
        table = resources_table([found for found in [read_resources(told)] if found is not None])
        assert table.verdicts[0] == (f"{CELL}: bytes -10.00% ({shown} with zeros) beside the plan", holds)
    few_rounds = {
        name: {"left_out_bytes": used.pop("left_out_bytes") / 2} for name, used in told["runs"][0]["devices"].items()
    }
    told["left_out"] = {"devices": few_rounds}
    table = resources_table([found for found in [read_resources(told)] if found is not None])
    assert table.verdicts[0] == (f"{CELL}: bytes -10.00% (+0.00% with zeros) beside the plan", True)
    for device in devices:
        device["sent_bytes"] *= 1.05 / 0.9
    table = resources_table([found for found in [read_resources(told)] if found is not None])
    assert table.verdicts[0] == (f"{CELL}: bytes +5.00% beside the plan", False)


def test_zeros_that_a_plan_reckons_with_make_up_for_nothing() -> None:
    told = document(0.9)
    for device in told["runs"][0]["devices"].values():
        device["left_out_bytes"] = device["sent_bytes"] / 9
    table_of_words = told["profilings"][0]["instance"]["model"]["layers"][0]
    table_of_words["met_gradient_bytes"] = [[16, table_of_words["param_bytes"]]]
    found = read_resources(told)
    assert found is not None
    assert found.left_out_bytes is None
    assert not found.bytes_as_planned


def test_what_peers_sent_and_held_is_beside_it_where_it_is_known() -> None:
    told = document()
    of_peer = told["runs"][1]["devices"]
    of_peer["nx-1"]["peak_bytes"] = 1 << 30  # of the command that started it
    (row,) = resources_table([found for found in [read_resources(told)] if found is not None]).rows
    assert row[9].endswith(" (DDP 1000.0)")
    assert "DDP" not in row[4] + row[10] + row[11]
    for name, mebibytes in (("nx-1", 500), ("nano-1", 400)):
        of_peer[name] = {"cpu_seconds": 8.0, "own_peak_bytes": mebibytes << 20, "sent_bytes": 3e6}
    (row,) = resources_table([found for found in [read_resources(told)] if found is not None]).rows
    assert row[4].endswith(" (DDP 6.0)")
    assert row[9].endswith(" (DDP 1000.0)")
    assert row[11].endswith(" MiB (DDP 500)")


def test_memory_is_beside_what_was_predicted_for_the_shares_of_each_run() -> None:
    instance = make_instance(memory_bytes=[10**6, 10**6])
    plan = make_plan(instance, "data-parallel")
    (stage,) = plan.stages
    few, many = sorted(stage.shares, key=lambda device: stage.shares[device])
    moved = {few: stage.shares[few] + 1, many: stage.shares[many] - 1}
    moved_plan = with_prediction(instance, replace(plan, stages=(replace(stage, shares=moved),)))
    assert plan.predicted is not None
    assert moved_plan.predicted is not None
    planned, most = plan.predicted.memory_bytes, moved_plan.predicted.memory_bytes
    assert most[few] > planned[few]
    plain: dict[str, Any] = {
        "method": "edgeswarm",
        "round_seconds": [1.0],
        "devices": {
            device: {"peak_bytes": size, "cpu_seconds": 4.0, "model_cpu_seconds": 3.0, "sent_bytes": 1.0}
            for device, size in {few: most[few], many: planned[many]}.items()
        },
    }
    of_moved = plain | {"share_moves": [{"round": 6, "shares": moved, "expected_gain": 0.05}]}
    told = document() | {
        "profilings": [{"instance": instance_to_json(instance)}],
        "plans": {"edgeswarm": plan.to_json()},
        "runs": [plain, of_moved],
    }
    found = read_resources(told)
    assert found is not None
    assert list(found.memory_off[few]) == [pytest.approx(planned[few] / most[few] - 1), pytest.approx(0.0)]
    assert list(found.memory_off[many]) == [pytest.approx(0.0), pytest.approx(0.0)]


def test_a_cell_that_has_not_run() -> None:
    assert read_resources({**document(), "runs": []}) is None
