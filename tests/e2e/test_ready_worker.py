"""The worker that waits for the next job trains it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgeswarm_coordinator.demo.cluster import AgentSpec, ThrowawayCluster
from edgeswarm_coordinator.events import Event, PlanMade, RoundDone

from . import small_job
from .commands import wait_until, worker_of

pytestmark = pytest.mark.e2e


def test_a_second_training_begins_in_the_worker_that_waits(tmp_path: Path) -> None:
    path = small_job.CNN.write(tmp_path / "job")
    with ThrowawayCluster((AgentSpec("a", ready_worker_seconds=600.0),), mdns=False) as cluster:
        plan = small_job.plan_of(cluster, [{"a": 12}], layers=small_job.layers_of(path), job=small_job.CNN)
        trained_by: list[int] = []

        def listen(event: Event) -> None:
            if isinstance(event, RoundDone) and event.round == 0:
                trained_by.append(worker_of(cluster, "a").pid)

        def trained(name: str) -> dict[str, torch.Tensor]:
            small_job.train_on(cluster, path, plan=plan, output=tmp_path / name, listener=listen)
            return load_file(tmp_path / name / "model.safetensors")

        first = trained("first")
        waiting = worker_of(cluster, "a")
        second = trained("second")
        assert trained_by[0] != trained_by[1] == waiting.pid
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
        wait_until(lambda: not waiting.is_running(), seconds=5, what="the worker of a job that is over has ended")
        assert worker_of(cluster, "a").pid != waiting.pid


def test_it_has_opened_the_data_sets_before_there_is_a_plan(tmp_path: Path) -> None:
    """As the last training of that file did there; the optimizer is another one now."""
    opened = tmp_path / "opened"
    opened.mkdir()
    note = f"open({str(opened)!r} + '/' + str(__import__('os').getpid()), 'a').write('x')"
    inputs = f"({note}, {small_job.IMAGES})[1]"
    job = replace(small_job.CNN, inputs=inputs, more="data='local'", epochs=1)
    path = job.write(tmp_path / "job")
    with ThrowawayCluster((AgentSpec("a", ready_worker_seconds=600.0),), mdns=False) as cluster:
        plan = small_job.plan_of(cluster, [{"a": 12}], layers=small_job.layers_of(path), job=job)

        def opened_by(pid: int) -> str:
            file = opened / str(pid)
            return file.read_text() if file.exists() else ""

        small_job.train_on(cluster, path, plan=plan, output=tmp_path / "first")
        waiting = worker_of(cluster, "a").pid
        replace(job, optimizer=small_job.ADAMW).write(tmp_path / "job")
        looked_at: list[str] = []

        def wait_for_the_data_set(event: Event) -> None:
            if isinstance(event, PlanMade):  # nobody has told the worker of it yet
                wait_until(lambda: opened_by(waiting) == "x", seconds=60, what="the data set is opened")
                looked_at.append("before")

        small_job.train_on(cluster, path, plan=plan, output=tmp_path / "second", listener=wait_for_the_data_set)
        assert looked_at == ["before"]
        assert opened_by(waiting) == "x", "once"
