"""Measuring the ablations, the testbed and the training replaced: what is trained, what a broken run leaves, the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import measured_ablations
from bench.ablated_plans import variants
from bench.cell import with_names
from bench.measured_ablations import cell_of, measure, measured_report, missing, new_document, trained_as
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_to_json
from edgeswarm_coordinator.controller import TrainOptions
from edgeswarm_coordinator.options import DiscoveryOptions
from tests.coordinator.planner.instances import make_instance

UNEQUAL = make_instance((1.0, 2.0, 1.0, 2.0), slower=(1.0, 2.0, 4.0), param_bytes=10_000, bandwidth=2000.0)
NAMES = {"a": "nx-1", "b": "tx2-1", "c": "nano-1"}
CELL = cell_of("bert_small")


def profiled() -> tuple[PlanningInstance, dict[str, Any]]:
    instance = with_names(UNEQUAL, NAMES)
    return instance, {"instance": instance_to_json(instance)}


class Bed:
    """Both the LAN and its cluster."""

    def __init__(self, *_: object, folder: Path | None = None, ready_worker_seconds: float = 0.0) -> None:
        self.names = tuple(NAMES.values())
        self.folders = None
        self.operator_home = Path()
        if folder is not None:
            self.folder = folder
            folder.mkdir()

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def discovery(self) -> DiscoveryOptions:
        return DiscoveryOptions()


class Training:
    """In place of agents: counts what is profiled and trained, and breaks off where told."""

    def __init__(self) -> None:
        self.profiled = 0
        self.trained: list[Plan] = []
        self.breaks_at = -1

    def profile(self, cluster: Bed, options: object) -> tuple[PlanningInstance, dict[str, Any]]:
        self.profiled += 1
        return profiled()

    def run(self, cluster: Bed, options: TrainOptions, plan: Plan, folder: Path) -> dict[str, Any]:
        if len(self.trained) == self.breaks_at:
            raise KeyboardInterrupt
        assert options.job_path.is_file()
        self.trained.append(plan)
        assert plan.predicted is not None
        seconds = plan.predicted.round_seconds
        return {
            "predicted_seconds": seconds,
            "round_seconds": [9 * seconds, 9 * seconds, 2 * seconds],
            "peak_bytes": dict.fromkeys(plan.devices, 3 << 20),
        }


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    replaced = Training()
    monkeypatch.setattr(measured_ablations, "EmulatedLan", Bed)
    monkeypatch.setattr(measured_ablations, "BedCluster", Bed)
    monkeypatch.setattr(measured_ablations, "profile_anew", replaced.profile)
    monkeypatch.setattr(measured_ablations, "run", replaced.run)
    return replaced


def test_a_broken_measurement_goes_on_where_it_was(tmp_path: Path, training: Training) -> None:
    training.breaks_at = 2
    with pytest.raises(KeyboardInterrupt):
        measure(CELL, tmp_path)
    assert "not yet" in {row[3] for row in measured_report(tmp_path).rows}
    training.breaks_at = -1
    document = measure(CELL, tmp_path)
    assert training.profiled == 1
    assert missing(document) == []
    assert len(training.trained) == len(document["runs"]) == len(set(document["runs"]))
    assert list(document["runs"])[-1] == "asteroid, again"
    assert measure(CELL, tmp_path) == document, "there is nothing left to do"
    assert len(training.trained) == len(document["runs"])


def test_the_same_plan_is_trained_once_and_one_that_does_not_fit_never(tmp_path: Path) -> None:
    document = new_document(CELL, *profiled())
    of_plan = trained_as(document)
    assert list(of_plan) == list(variants(UNEQUAL))
    # Asteroid's own rule for K again.
    assert of_plan["K = 2(P-p)-1"] == "asteroid"
    small = json.loads(json.dumps(document))
    for device in small["profilings"][0]["instance"]["devices"]:
        device["memory_bytes"] = 0
    assert set(trained_as(small).values()) == {None}
    assert missing(small) == []
    (tmp_path / "ablations-small.json").write_text(json.dumps(small))
    assert {row[3] for row in measured_report(tmp_path).rows} == {"fits no memory"}


def test_the_table(tmp_path: Path, training: Training) -> None:
    document = measure(CELL, tmp_path)
    rows = {row[1]: row for row in measured_report(tmp_path).rows}
    assert list(rows) == [*document["plans"], "asteroid, again"]
    seconds = document["plans"]["asteroid"]["predicted"]["round_seconds"]
    assert rows["asteroid"] == (
        CELL.name,
        "asteroid",
        f"{seconds:.3f}",
        f"{2 * seconds:.3f}",
        "1.00",
        "1.00",
        "3.0 MiB",
    )
    assert rows["K = 2(P-p)-1"][2:] == rows["asteroid"][2:]
    document["runs"]["naive"] = {"predicted_seconds": 1.0, "error": "worker-died: out of memory"}
    (tmp_path / f"ablations-{CELL.name}.json").write_text(json.dumps(document))
    assert {row[1]: row for row in measured_report(tmp_path).rows}["naive"][3] == "failed (worker-died)"


def test_where_asteroid_has_one_stage_the_rules_for_k_are_on_a_pipeline() -> None:
    instance = make_instance((1.0, 1.0), slower=(1.0, 1.0), param_bytes=0, output_bytes=10**6, bandwidth=1.0)
    plans = variants(instance)
    asteroid, pipeline = plans["asteroid"], plans["pipeline, K = M"]
    assert asteroid is not None
    assert pipeline is not None
    assert len(asteroid.stages) == 1
    assert len(pipeline.stages) == 2
    assert pipeline.stages[0].in_flight == pipeline.micro_batches
