"""What real agents measure of themselves, as the planner gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm_coordinator.controller import make_plan_for_job, train
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.events import Event, ProfileProgress
from edgeswarm_coordinator.options import TrainOptions

from . import small_job

pytestmark = pytest.mark.e2e


def test_devices_measure_all_that_a_plan_needs_and_nothing_twice(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    path = small_job.CNN_WITH_BATCH_NORM.write(tmp_path / "job")
    measured: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, ProfileProgress):
            measured.append(event.detail)

    options = TrainOptions(
        job_path=path, listen_address="127.0.0.1", discovery=cluster.discovery(), fresh_profiles=True
    )
    _, instance = make_plan_for_job(options, folders=cluster.folders, listener=listen)
    assert any(" to " in each and " on " in each for each in measured), "whole stages, too"
    assert len(instance.profiles) == 1, "the devices are one machine, and one of them measures for all"
    (profile,) = instance.profiles.values()
    assert profile.overheads.frame_seconds > 0
    assert sum(profile.update_seconds) > 0
    assert all(device.base_bytes > 64 << 20 for device in instance.devices), "a worker with torch in it"
    assert instance.training.frames_held > 0

    measured.clear()
    again = TrainOptions(job_path=path, listen_address="127.0.0.1", discovery=cluster.discovery())
    _, cached = make_plan_for_job(again, folders=cluster.folders, listener=listen)
    assert measured == []
    assert cached.profiles == instance.profiles


@pytest.mark.soak
def test_what_measures_and_trains_in_one_go_trains_in_new_workers(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    def workers() -> int:
        logs = (cluster.folder / "logs").glob("*.log")
        return sum(log.read_text().count("started worker") for log in logs)

    path = small_job.CNN_WITH_BATCH_NORM.write(tmp_path / "job")
    before = workers()
    options = TrainOptions(
        job_path=path,
        output=tmp_path / "out",
        listen_address="127.0.0.1",
        discovery=cluster.discovery(),
        planner="data-parallel",
        fresh_profiles=True,
    )
    train(options, folders=cluster.folders)
    assert workers() - before == len(cluster.names) + 1, "one device measures for all, which are alike"
