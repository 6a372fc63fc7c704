"""`edgeswarm train --tensorboard` over real agents: the curves have every round."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from . import small_job
from .small_job import layers_of, plan_of, train_on

pytestmark = pytest.mark.e2e


def test_every_round_is_in_the_curves(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    job = dataclasses.replace(
        small_job.CNN, epochs=2, more="clip_gradient_norm=0.5, learning_rate_schedule=lambda r: 1.0 / (1 + r),"
    )
    path = job.write(tmp_path / "job")
    plan = plan_of(cluster, ({"a": 4}, {"b": 4}), layers=layers_of(path), job=job)
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out", tensorboard=tmp_path / "logs")
    curves = EventAccumulator(str(tmp_path / "logs"))
    curves.Reload()
    use = {f"use/{device}" for device in plan.devices}
    assert {
        "loss/training",
        "optimizer/gradient_norm",
        "optimizer/learning_rate_factor",
        "speed/samples_per_second",
    } | use == set(curves.Tags()["scalars"])
    losses = [done["loss"] for done in result.metrics["rounds"]]
    assert [event.step for event in curves.Scalars("loss/training")] == list(range(1, 11))
    assert [event.value for event in curves.Scalars("loss/training")] == pytest.approx(losses)
    factors = [event.value for event in curves.Scalars("optimizer/learning_rate_factor")]
    assert factors == pytest.approx([1 / (1 + number) for number in range(10)])
