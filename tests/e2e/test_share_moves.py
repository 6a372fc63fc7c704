"""Shares that move in the middle of a training, over real agents: the workers keep their layers, and the weights are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator import plan_epochs
from edgeswarm_coordinator.command import Command
from edgeswarm_coordinator.demo.cluster import AgentSpec, ThrowawayCluster
from edgeswarm_coordinator.planner.moved_shares import MovedShares
from edgeswarm_coordinator.share_moves import Followed

from ..coordinator.planner.instances import make_instance
from . import small_job
from .small_job import SmallJob, layers_of, plain_training, plan_of, relative_distance, train_on
from .test_evaluation import EVALUATION, evaluated

pytestmark = pytest.mark.e2e

BEFORE: Sequence[Mapping[str, int]] = ({"a": 3, "b": 1}, {"c": 2, "d": 2})
AFTER: Sequence[Mapping[str, int]] = ({"a": 1, "b": 3}, {"c": 3, "d": 1})


def instance_for(plan: Plan, *, layers: int) -> PlanningInstance:
    """Devices that are all as fast as one another, as far as the planner knows."""
    made = make_instance((1.0,) * layers, (1.0,) * len(plan.devices), mini_batch=plan.mini_batch)
    devices = tuple(
        dataclasses.replace(device, name=name) for device, name in zip(made.devices, plan.devices, strict=True)
    )
    return dataclasses.replace(made, devices=devices)


def plan_with(monkeypatch: pytest.MonkeyPatch, plan: Plan, *, layers: int) -> None:
    """Every planner makes this plan, and nothing is measured."""
    instance = instance_for(plan, layers=layers)
    monkeypatch.setattr(Command, "plan", lambda *arguments, **more: (plan, instance))


def shares(plan: Plan) -> list[dict[str, int]]:
    return [dict(stage.shares) for stage in plan.stages]


@pytest.mark.parametrize(
    "optimizer", [small_job.SGD, pytest.param(small_job.ADAMW, marks=pytest.mark.soak)], ids=["sgd", "adamw"]
)
def test_the_weights_are_those_of_a_plain_loop(
    cluster: ThrowawayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """Optimizer state, counters and what an evaluation needs are kept, too."""
    job = dataclasses.replace(
        small_job.CNN, optimizer=optimizer, dtype="float64", more=EVALUATION, inputs=small_job.IMAGES
    )
    path = job.write(tmp_path / "job")
    layers = layers_of(path)
    before, after = (plan_of(cluster, groups, layers=layers, job=job) for groups in (BEFORE, AFTER))
    plan_with(monkeypatch, before, layers=layers)
    asked: list[tuple[Plan, int]] = []

    def move(
        instance: PlanningInstance, followed: Sequence[Followed], done: Sequence[Any], **more: Any
    ) -> MovedShares | None:
        plan = followed[-1].plan
        asked.append((plan, len(done)))
        return MovedShares(after, gain=0.1) if plan is before else None

    monkeypatch.setattr(plan_epochs, "worthwhile_move", move)
    result = train_on(cluster, path, plan=None, output=tmp_path / "out")
    assert [(shares(plan), done) for plan, done in asked] == [(shares(before), 6), (shares(after), 12)]
    model, _ = plain_training(path)
    weights = result.folder / "model.safetensors"
    largest, _ = relative_distance(load_file(weights), model.state_dict())
    assert largest < 1e-9
    assert [each["round"] for each in result.metrics["rounds"]] == list(range(20))
    assert result.metrics["evaluations"][-1]["metrics"] == pytest.approx(evaluated(path, weights), rel=1e-9)
    (moved,) = result.metrics["share_moves"]
    assert (moved["round"], moved["shares"]) == (6, {**shares(after)[0], **shares(after)[1]})
    assert shares(result.plan) == shares(after)


def test_a_plan_of_the_user_keeps_its_shares(
    cluster: ThrowawayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_job.CNN.write(tmp_path / "job")
    layers = layers_of(path)
    plan = plan_of(cluster, BEFORE, layers=layers, job=small_job.CNN)

    def move(*arguments: Any, **more: Any) -> MovedShares | None:
        raise AssertionError("nobody asked for other shares")

    monkeypatch.setattr(plan_epochs, "worthwhile_move", move)
    assert train_on(cluster, path, plan=plan, output=tmp_path / "by-hand").metrics["share_moves"] == []
    plan_with(monkeypatch, plan, layers=layers)
    assert train_on(cluster, path, plan=None, output=tmp_path / "kept", keep_shares=True).metrics["share_moves"] == []


def test_the_one_that_turns_out_slower_gets_fewer_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner takes both for equal; one of them computes five times as long."""
    job = SmallJob(
        model="small_models.SmallTransformer(width=64, blocks=2)",
        inputs=small_job.SEQUENCES,
        samples=640,
        batch_size=64,
        epochs=2,
    )
    path = job.write(tmp_path / "job")
    layers = layers_of(path)
    monkeypatch.setattr(plan_epochs, "moving_seconds", lambda prepared: 0.0)  # so short a training wouldn't move
    with ThrowawayCluster((AgentSpec("quick"), AgentSpec("slow", slow_down=5.0)), mdns=False) as cluster:
        plan = plan_of(cluster, ({"quick": 16, "slow": 16},), layers=layers, job=job)
        plan_with(monkeypatch, plan, layers=layers)
        result = train_on(cluster, path, plan=None, output=tmp_path / "out")
        (stage,) = result.plan.stages
        assert stage.shares[cluster.node_id("slow")] < stage.shares[cluster.node_id("quick")] / 2
    moved = result.metrics["share_moves"][0]
    assert moved["round"] == 6
    assert moved["expected_gain"] > 0.03
