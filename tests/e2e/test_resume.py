"""Trainings that end before their end and go on from their checkpoint, with real processes.

With the plan of before the resumed training equals the uninterrupted one bit for bit; with another one a model without batch
statistics and dropout equals the plain loop within 1e-9 (float64).
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode
from edgeswarm.plan import Plan
from edgeswarm_coordinator.controller import train
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.events import CheckpointWritten, Event, PlanMade, RoundDone, Warning
from edgeswarm_coordinator.options import DiscoveryOptions, TrainOptions

from . import training_process
from .commands import wait_until_idle, worker_of
from .small_job import ADAMW, CNN, CNN_WITH_BATCH_NORM, SGD, SmallJob, layers_of, plain_training, plan_of, train_on

pytestmark = pytest.mark.e2e

GROUPS = ({"a": 3, "b": 1}, {"c": 4})
ROUNDS = 20
CHECKPOINT_EVERY = 3
WITH_DROPOUT = dataclasses.replace(
    CNN_WITH_BATCH_NORM,
    model="torch.nn.Sequential(small_models.DigitsCNN(batch_norm=True, channels=4), torch.nn.Dropout(0.3))",
    samples=49,
    more="learning_rate_schedule=lambda r: 1.0 / (1 + 0.1 * r), clip_gradient_norm=1.0, data='local', "
    "evaluation_dataset=lambda: [(torch.full((1, 8, 8), index / 9), index) for index in range(9)],",
)


class Training:
    """One job in one folder, and what its events say."""

    def __init__(self, cluster: ThrowawayCluster, folder: Path, job: SmallJob) -> None:
        self.cluster = cluster
        self.job = job
        self.path = job.write(folder / "job")
        self.output = folder / "out"
        self.unfinished = folder / "out.unfinished"
        self.events: list[Event] = []

    @property
    def plan(self) -> Plan:
        return plan_of(self.cluster, GROUPS, layers=layers_of(self.path), job=self.job)

    def plan_file(self) -> Path:
        path = self.output.with_suffix(".plan.json")
        path.write_text(json.dumps(self.plan.to_json()))
        return path

    def killed_at(self, **when: int) -> None:
        """Train in a process that is killed, and wait until the devices have noticed."""
        ended = training_process.run(
            self.cluster,
            self.path,
            self.output,
            plan=self.plan_file(),
            checkpoint_every=CHECKPOINT_EVERY,
            **when,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        wait_until_idle(self.cluster, "a", "b", "c")

    def resumed(self, **more: Any) -> Mapping[str, torch.Tensor]:
        """The weights after the rest."""
        options = TrainOptions(
            job_path=self.path,
            output=self.output,
            resume=True,
            listen_address="127.0.0.1",
            **{"discovery": self.cluster.discovery(), **more},
        )
        train(options, folders=self.cluster.folders, listener=self.events.append)
        assert not self.unfinished.exists()
        return load_file(self.output / "model.safetensors")

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def uninterrupted(cluster: ThrowawayCluster, training: Training, output: Path, **more: Any) -> Path:
    return train_on(cluster, training.path, plan=training.plan, output=output, **more).folder


def assert_same_bits(found: Path, wanted: Path) -> None:
    assert {path.name for path in found.iterdir()} == {path.name for path in wanted.iterdir()}
    for file in found.glob("*.safetensors"):
        mine, theirs = load_file(file), load_file(wanted / file.name)
        assert mine.keys() == theirs.keys()
        for key, tensor in theirs.items():
            assert torch.equal(mine[key], tensor), key
    mine, theirs = (json.loads((folder / "optimizer.json").read_text()) for folder in (found, wanted))
    assert mine == theirs
    mine, theirs = (json.loads((folder / "metrics.json").read_text()) for folder in (found, wanted))
    for part, what in (("rounds", "loss"), ("evaluations", "metrics")):
        assert [(done["round"], done[what]) for done in mine[part]] == [
            (done["round"], done[what]) for done in theirs[part]
        ]
    assert (found / "plan.json").read_text() == (wanted / "plan.json").read_text()


@pytest.mark.parametrize(
    "optimizer", [pytest.param(SGD, marks=pytest.mark.soak, id="sgd"), pytest.param(ADAMW, id="adamw")]
)
def test_a_coordinator_that_was_killed_goes_on_to_the_same_bits(
    cluster: ThrowawayCluster, tmp_path: Path, optimizer: str
) -> None:
    training = Training(cluster, tmp_path, dataclasses.replace(WITH_DROPOUT, optimizer=optimizer))
    kill_at = random.SystemRandom().randint(CHECKPOINT_EVERY + 1, ROUNDS - 2)
    print(f"killed at the end of round {kill_at}")
    training.killed_at(kill_at=kill_at)
    checkpoint = json.loads((training.unfinished / "manifest.json").read_text())["round"]
    assert kill_at + 1 - CHECKPOINT_EVERY <= checkpoint <= kill_at + 1
    training.resumed()
    assert training.of(Warning) == []
    assert training.of(PlanMade)[0].plan == training.plan
    assert [done.round for done in training.of(RoundDone)] == list(range(checkpoint, ROUNDS))
    assert_same_bits(training.output, uninterrupted(cluster, training, tmp_path / "whole"))


def test_a_worker_that_was_killed_ends_it_and_the_message_says_how_to_go_on(
    cluster: ThrowawayCluster, tmp_path: Path
) -> None:
    training = Training(cluster, tmp_path, WITH_DROPOUT)

    def kill_worker(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 7:
            worker_of(cluster, "b").kill()

    options = TrainOptions(
        job_path=training.path,
        output=training.output,
        plan_path=training.plan_file(),
        checkpoint_every=CHECKPOINT_EVERY,
        listen_address="127.0.0.1",
        discovery=cluster.discovery(),
    )
    with pytest.raises(EdgeswarmError) as caught:
        train(options, folders=cluster.folders, listener=kill_worker)
    assert caught.value.code is ErrorCode.WORKER_DIED
    assert f"`edgeswarm train {training.path} --resume --output {training.output}` goes on" in caught.value.remedy
    assert not training.output.exists()
    training.resumed()
    rounds = [done.round for done in training.of(RoundDone)]
    assert rounds == list(range(rounds[0], ROUNDS))
    assert rounds[0] >= 7 - 7 % CHECKPOINT_EVERY


def test_another_plan_gives_the_weights_of_a_plain_loop(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    training = Training(cluster, tmp_path, dataclasses.replace(CNN, dtype="float64", optimizer=ADAMW))
    training.killed_at(kill_at=11)
    weights = training.resumed(discovery=dataclasses.replace(cluster.discovery(), devices=("a", "d")))
    (warning,) = training.of(Warning)
    assert f"{cluster.node_id('b')}, {cluster.node_id('c')} are not at hand" in warning.message
    wanted = plain_training(training.path)[0].state_dict()
    for name, tensor in wanted.items():
        assert float((weights[name] - tensor).norm() / tensor.norm()) < 1e-9, name


@pytest.mark.soak
def test_it_can_go_on_for_longer_than_it_was_to(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    training = Training(cluster, tmp_path, dataclasses.replace(WITH_DROPOUT, epochs=2))
    training.killed_at(kill_at=7)
    training.resumed(epochs=3)
    assert_same_bits(training.output, uninterrupted(cluster, training, tmp_path / "whole", epochs=3))


def test_a_result_that_was_not_written_needs_no_device(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    training = Training(cluster, tmp_path, dataclasses.replace(WITH_DROPOUT, epochs=1))
    training.killed_at(kill_at_checkpoint=5)
    training.resumed(discovery=DiscoveryOptions(mdns=False))
    assert training.of(RoundDone) == []
    assert_same_bits(training.output, uninterrupted(cluster, training, tmp_path / "whole"))


def test_what_hinders_is_one_message_and_hurts_nothing(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    training = Training(cluster, tmp_path, CNN)
    with pytest.raises(EdgeswarmError, match="no unfinished training to resume") as caught:
        training.resumed()
    assert caught.value.code is ErrorCode.CHECKPOINT
    training.killed_at(kill_at=7)
    with pytest.raises(
        EdgeswarmError, match=r"unfinished training after round 6 of 20\. Go on with it: --resume"
    ) as caught:
        train_on(cluster, training.path, plan=training.plan, output=training.output)
    assert caught.value.code is ErrorCode.OUTPUT_EXISTS
    for more, problem in (
        ({"batch_size": 10}, "its batch_size is 10 now, and was 12"),
        ({"seed": 1}, "its seed is 1 now, and was 11"),
        ({"epochs": 1}, "1 epochs have 5 rounds"),
    ):
        with pytest.raises(EdgeswarmError, match=problem) as caught:
            training.resumed(**more)
        assert caught.value.code is ErrorCode.CHECKPOINT
    text = training.path.read_text()
    for old, new, problem in (
        ("return 50", "return 48", "number of samples in the dataset is 48 now, and was 50"),
        ("channels=4", "channels=5", r"is float32 \[5\] now, and was float32 \[4\]"),
        (SGD, ADAMW, r"keeps exp_avg, exp_avg_sq, step of \S+ now, and kept momentum_buffer"),
    ):
        training.path.write_text(text.replace(old, new))
        with pytest.raises(EdgeswarmError, match=problem) as caught:
            training.resumed()
        assert caught.value.code is ErrorCode.CHECKPOINT
    training.path.write_text(text)
    wait_until_idle(cluster, "a", "b", "c")
    layer = training.unfinished / "round-00000006" / "layer-1.safetensors"
    whole = layer.read_bytes()
    layer.write_bytes(whole[:-5])
    with pytest.raises(EdgeswarmError, match=rf"can't be read: {layer}") as caught:
        training.resumed()
    assert caught.value.code is ErrorCode.CHECKPOINT
    layer.write_bytes(whole)
    training.path.write_text(text + "\n# another file, the same job\n")
    training.events.clear()
    training.resumed()
    (warning,) = training.of(Warning)
    assert "The job has changed since the checkpoint" in warning.message
    training.path.write_text(text)
    assert_same_bits(training.output, uninterrupted(cluster, training, tmp_path / "whole"))


@pytest.mark.soak
def test_one_without_a_whole_checkpoint_begins_anew(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    training = Training(cluster, tmp_path, dataclasses.replace(CNN, epochs=1))
    training.killed_at(kill_at=0)
    assert [path.name for path in training.unfinished.iterdir()] == []
    training.resumed()
    assert "holds no whole checkpoint" in training.of(Warning)[0].message
    assert [done.round for done in training.of(RoundDone)] == [0, 1, 2, 3, 4]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs root, for a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_a_disk_that_is_full_leaves_the_checkpoint_before(
    cluster: ThrowawayCluster, tmp_path: Path, small_disk: Path
) -> None:
    job = dataclasses.replace(
        CNN,
        model="torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 1600), torch.nn.Linear(1600, 10))",
        samples=36,
    )
    training = Training(cluster, tmp_path, job)
    options = TrainOptions(
        job_path=training.path,
        output=small_disk / "out",
        checkpoint_every=CHECKPOINT_EVERY,
        plan_path=training.plan_file(),
        listen_address="127.0.0.1",
        discovery=cluster.discovery(),
    )
    filler = small_disk / "filler"

    def fill_up(event: Event) -> None:
        if isinstance(event, CheckpointWritten) and event.round == 2 * CHECKPOINT_EVERY:
            filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 500_000))

    with pytest.raises(EdgeswarmError, match=r"can't be written to .*: No space left on device; .* KiB") as caught:
        train(options, folders=cluster.folders, listener=fill_up)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "--resume" in caught.value.remedy
    assert "goes on after round 6" in caught.value.remedy
    wait_until_idle(cluster, "a", "b", "c")
    assert sorted(path.name for path in (small_disk / "out.unfinished").iterdir()) == [
        "manifest.json",
        "round-00000006",
        "rounds.jsonl",
    ]
    with pytest.raises(EdgeswarmError, match=r"has too little room: .* more than is free") as caught:
        train(dataclasses.replace(options, output=small_disk / "other"), folders=cluster.folders)
    assert not list(small_disk.glob("other*"))
    wait_until_idle(cluster, "a", "b", "c")
    filler.unlink()
    training.output, training.unfinished = small_disk / "out", small_disk / "out.unfinished"
    training.resumed()
    assert_same_bits(training.output, uninterrupted(cluster, training, tmp_path / "whole"))


def test_ctrl_c_keeps_a_checkpoint_and_says_so(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    training = Training(cluster, tmp_path, CNN)

    def interrupt_at(number: int, event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == number:
            raise KeyboardInterrupt

    options = TrainOptions(
        job_path=training.path,
        output=training.output,
        plan_path=training.plan_file(),
        checkpoint_every=CHECKPOINT_EVERY,
        listen_address="127.0.0.1",
        discovery=cluster.discovery(),
    )
    for number in (1, 7):
        with pytest.raises(EdgeswarmError) as caught:
            train(options, folders=cluster.folders, listener=partial(interrupt_at, number))
        assert caught.value.exit_code is ExitCode.INTERRUPTED
        assert ("goes on after round 6" in caught.value.remedy) == (number == 7)
        assert training.unfinished.exists() == (number == 7)
        wait_until_idle(cluster, "a", "b", "c")
