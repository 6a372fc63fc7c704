from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.plan import IdleDevice, Prediction, StagePrediction
from edgeswarm_coordinator.options import TrainOptions
from edgeswarm_coordinator.resuming import (
    check_job_is_the_same,
    job_to_resume,
    narrow_wire_dtype,
    new_devices,
    plan_to_follow,
    warnings_on_resuming,
)

from .checkpoints import PLAN, manifest

BEFORE = manifest(8, seed=3)
SAME = BEFORE.bundle_sha256


def nothing(*_: Any) -> Any:
    return None


def job(**more: Any) -> Job:
    fields: dict[str, Any] = {"batch_size": 12, "epochs": 4, "seed": 3, **more}
    return Job(model=nothing, dataset=nothing, loss=nothing, optimizer=nothing, **fields)


def options(**more: Any) -> TrainOptions:
    return TrainOptions(Path("job.py"), resume=True, **more)


def settings(job: Job) -> tuple[int, int, int, str | None]:
    return job.epochs, job.batch_size, job.seed, job.wire_dtype


def test_what_the_command_line_said_before_need_not_be_said_again() -> None:
    before = manifest(8, epochs=9, batch_size=6, seed=0, wire_dtype="bfloat16")
    resumed = job_to_resume(job(), before, options(), bundle_sha256=SAME)
    assert settings(resumed) == (9, 6, 0, "bfloat16")
    now = options(epochs=4, batch_size=12, seed=3, wire_dtype="float32")
    resumed = job_to_resume(job(wire_dtype="float32"), before, now, bundle_sha256=SAME)
    assert settings(resumed) == (4, 12, 3, "float32")


def test_a_job_file_that_was_changed_speaks_for_itself() -> None:
    changed = job(epochs=50)
    assert job_to_resume(changed, BEFORE, options(), bundle_sha256="other") is changed


@pytest.mark.parametrize(
    ("more", "length", "problem"),
    [
        ({"seed": 4}, 50, "its seed is 4 now, and was 3"),
        ({"batch_size": 10}, 50, "its batch_size is 10 now, and was 12"),
        ({"drop_last": True}, 50, "its drop_last is True now, and was False"),
        ({}, 51, "number of samples in the dataset is 51 now, and was 50"),
        ({"epochs": 1}, 50, "after round 8, and 1 epochs have 5 rounds"),
    ],
)
def test_what_makes_it_another_training_is_named(more: dict[str, Any], length: int, problem: str) -> None:
    with pytest.raises(EdgeswarmError, match=problem) as caught:
        check_job_is_the_same(BEFORE, job(**more), dataset_length=length)
    assert caught.value.code is ErrorCode.CHECKPOINT
    assert caught.value.remedy


def test_the_same_training_may_be_longer() -> None:
    for epochs in (2, 4, 9):
        check_job_is_the_same(BEFORE, job(epochs=epochs), dataset_length=50)


def test_what_changed_and_does_not_hinder_is_a_warning() -> None:
    assert warnings_on_resuming(BEFORE, job(), bundle_sha256=SAME) == []
    assert warnings_on_resuming(BEFORE, job(wire_dtype="float32"), bundle_sha256=SAME) == []
    (warning,) = warnings_on_resuming(BEFORE, job(wire_dtype="float16"), bundle_sha256="other")
    assert "The job has changed" in warning
    assert "wire_dtype is float16 now, and was None" in warning
    assert [narrow_wire_dtype(job(wire_dtype=name)) for name in (None, "float32", "bfloat16")] == ["", "", "bfloat16"]


def test_the_plan_of_before_where_it_can_be() -> None:
    devices = dict.fromkeys(PLAN.devices, 10**9)
    assert plan_to_follow(BEFORE, options(), memory_bytes={**devices, "other-000009": 0}) == (PLAN, "")
    plan, why = plan_to_follow(BEFORE, options(), memory_bytes={PLAN.devices[0]: 10**9})
    assert (plan, why) == (None, "nano-2-000002 is not at hand")
    for more in ({"micro_batch": 4}, {"planner": "data-parallel"}, {"new_plan": True}, {"fresh_profiles": True}):
        plan, why = plan_to_follow(BEFORE, options(**more), memory_bytes=devices)
        assert (plan, why) == (None, "the command line asks for another one")


def test_the_plan_of_before_is_left_where_a_device_has_less_memory_by_now() -> None:
    """One that ran out of it, and was started again with a limit, would run out of it once more."""
    first, second = PLAN.devices
    stage = StagePrediction(1.0, 1.0, 0.0, 0.0)
    needs = Prediction(1.0, 1.0, {first: 1000, second: 500}, (stage, stage), "nothing")
    before = dataclasses.replace(BEFORE, plan=dataclasses.replace(PLAN, predicted=needs))
    assert plan_to_follow(before, options(), memory_bytes={first: 960, second: 500})[1] == ""
    plan, why = plan_to_follow(before, options(), memory_bytes={first: 900, second: 500})
    assert (plan, why) == (None, f"{first} may use less memory now than it takes")


def test_devices_that_came_since_are_named() -> None:
    needs = Prediction(1.0, 1.0, {}, (StagePrediction(1.0, 1.0, 0.0, 0.0),) * 2)
    plan = dataclasses.replace(PLAN, idle=(IdleDevice("slow-000003", "slower with it"),), predicted=needs)
    assert new_devices(plan, (*PLAN.devices, "slow-000003")) == []
    assert new_devices(plan, (*PLAN.devices, "new-000004")) == ["new-000004"]
    assert new_devices(PLAN, (*PLAN.devices, "new-000004")) == [], "a plan by hand names those that it uses alone"
