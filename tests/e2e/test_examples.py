"""The examples as a newcomer runs them: `edgeswarm train FILE` over three agents, and what comes out."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import load_file

from edgeswarm.job import Job, model_arguments
from edgeswarm.job_file import load_job
from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import Layer
from edgeswarm.plan import Plan, Stage
from edgeswarm.wire.fetch import fetch_blob
from edgeswarm.wire.tensor_samples import collate_items
from edgeswarm.wire.v1 import data_pb2
from edgeswarm_coordinator import gather
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from .commands import EDGESWARM, RunningCommand, wait_until_idle
from .small_job import train_on

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
DEVICES = ("a", "b", "c")
STUCK_SECONDS = 280.0


@dataclass(frozen=True)
class Trained:
    """What `edgeswarm train` wrote."""

    metrics: Mapping[str, Any]
    plan: Plan
    model: Mapping[str, torch.Tensor]

    @property
    def losses(self) -> list[float]:
        return [done["loss"] for done in self.metrics["rounds"]]

    def evaluated(self, name: str) -> list[float]:
        """A metric after each epoch."""
        return [done["metrics"][name] for done in self.metrics["evaluations"]]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the folder, as somebody has it who copies from it."""
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
    return folder


def train(cluster: ThrowawayCluster, job: Path, *arguments: str) -> Trained:
    """The command over three of the agents, which are free again afterwards."""
    output = job.parent.with_name("out")
    peers = [part for name in DEVICES for part in ("--peer", cluster.address(name), "--device", cluster.node_id(name))]
    ended = RunningCommand(
        [EDGESWARM, "train", job, "--output", output, *peers, "--no-mdns", *arguments],
        environment=cluster.environment,
        temporary=job.parent.with_name("temporary"),
    ).end(STUCK_SECONDS)
    assert ended.code == 0, ended.said
    wait_until_idle(cluster, *DEVICES)
    return Trained(
        metrics=json.loads((output / "metrics.json").read_text()),
        plan=Plan.from_json(json.loads((output / "plan.json").read_text())),
        model=load_file(output / "model.safetensors"),
    )


@pytest.mark.soak
def test_digits(cluster: ThrowawayCluster, examples: Path) -> None:
    """On all devices: on a machine that they share the default planner may find fewer to be faster."""
    trained = train(cluster, examples / "digits_cnn.py", "--planner", "data-parallel")
    assert len(trained.plan.devices) == len(DEVICES)
    assert trained.evaluated("accuracy")[-1] >= 0.97


@pytest.mark.soak
def test_what_a_data_set_holds_that_devices_open_is_in_the_plan(cluster: ThrowawayCluster, examples: Path) -> None:
    """scikit-learn's modules, a third of such a worker."""
    job = examples / "digits_cnn.py"
    job.write_text(job.read_text().replace("    batch_size=64", '    data="local",\n    batch_size=64'))
    trained = train(cluster, job, "--planner", "data-parallel", "--epochs", "1")
    assert trained.plan.predicted is not None
    for device, expected in trained.plan.predicted.memory_bytes.items():
        peak = max(done["parts"][device]["peak_memory_bytes"] for done in trained.metrics["rounds"])
        assert 0.9 <= expected / peak <= 1.2


@pytest.mark.soak
def test_character_gpt(cluster: ThrowawayCluster, examples: Path) -> None:
    trained = train(cluster, examples / "char_gpt.py")
    assert trained.evaluated("loss")[-1] < 2.5
    assert torch.equal(trained.model["head.weight"], trained.model["characters.weight"])


@pytest.mark.soak
def test_segmentation(cluster: ThrowawayCluster, examples: Path) -> None:
    trained = train(cluster, examples / "segmentation_unet.py")
    assert trained.evaluated("iou")[-1] >= 0.8


@pytest.mark.soak
@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b1", "resnet_50", "bert_small"])
def test_a_full_size_model_learns(cluster: ThrowawayCluster, examples: Path, name: str) -> None:
    """One epoch: enough to see the loss fall, not to be good."""
    trained = train(cluster, examples / f"{name}.py", "--epochs", "1")
    losses = trained.losses
    quarter = len(losses) // 4
    assert quarter >= 4
    assert all(map(math.isfinite, losses))
    assert sum(losses[-quarter:]) < sum(losses[:quarter])
    assert len(trained.evaluated("accuracy")) == 1
    assert all(bool(torch.isfinite(tensor).all()) for tensor in trained.model.values())


# --- fine-tuning ------------------------------------------------------------------------------------------------------

FROZEN = "backbone."
MICRO_BATCH = 16
OVERHEAD_BYTES = 512  # at most, of a frame besides its tensor


@pytest.fixture
def fine_tuning(examples: Path) -> Path:
    """The job beside the backbone that it starts from, made as its page says."""
    made = subprocess.run(
        [sys.executable, "make_backbone.py"],
        cwd=examples,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=STUCK_SECONDS,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return examples / "fine_tuning.py"


def layers_of(job: Job) -> tuple[Layer, ...]:
    dataset, transform = job.dataset(), job.transform
    assert transform is not None
    inputs, _ = collate_items([transform(dataset[index], torch.Generator()) for index in range(4)])
    args, kwargs = model_arguments(inputs)
    return export_model(job.model(), args, kwargs).layer_graph.layers


def backbone_on_two_head_on_one(cluster: ThrowawayCluster, job: Job) -> Plan:
    layers = layers_of(job)
    cut = next(layer.index for layer in layers if any(not name.startswith(FROZEN) for name in layer.parameters))
    a, b, c = (cluster.node_id(name) for name in DEVICES)
    return Plan(
        planner="hand",
        micro_batch=MICRO_BATCH,
        micro_batches=job.batch_size // MICRO_BATCH,
        stages=(
            Stage(first_layer=0, end_layer=cut, shares={a: 8, b: 8}, in_flight=2),
            Stage(first_layer=cut, end_layer=len(layers), shares={c: 16}, in_flight=1),
        ),
    )


@pytest.mark.soak
def test_fine_tuning_leaves_the_frozen_weights_alone_and_sends_nothing_for_them(
    cluster: ThrowawayCluster, fine_tuning: Path
) -> None:
    job = load_job(fine_tuning.parent, fine_tuning.name)
    plan = backbone_on_two_head_on_one(cluster, job)
    plan_file = fine_tuning.with_name("plan.json")
    plan_file.write_text(json.dumps(plan.to_json()))
    trained = train(cluster, fine_tuning, "--plan", str(plan_file))
    assert trained.evaluated("accuracy")[-1] >= 0.95

    before = load_file(fine_tuning.with_name("backbone.safetensors"))
    assert before.keys() == trained.model.keys()
    for name, tensor in before.items():
        assert torch.equal(trained.model[name], tensor) == name.startswith(FROZEN), name
    kept = load_file(fine_tuning.parent.with_name("out") / "optimizer.safetensors")
    averages = {name.removesuffix(".exp_avg").removeprefix("state.") for name in kept if name.endswith(".exp_avg")}
    assert averages == {name for name in before if not name.startswith(FROZEN)}

    # What crosses the cut is the features of each sample. Nothing comes back, and the two backbones have no sum to make.
    feature_bytes = 4 * before["head.1.weight"].shape[1]
    a, b, c = plan.devices
    rounds = trained.metrics["rounds"]
    for before_it, done in itertools.pairwise(rounds):
        if done["epoch"] != before_it["epoch"]:
            continue  # what the evaluation between the two sent counts here
        sent = {device: parts["sent_bytes"] for device, parts in done["parts"].items()}
        frames = 2 * plan.micro_batches
        features = done["samples"] * feature_bytes
        assert features <= sent[a] + sent[b] <= features + frames * OVERHEAD_BYTES
        assert sent[c] <= frames * OVERHEAD_BYTES


def test_no_checkpoint_of_fine_tuning_sends_the_frozen_weights_again(
    cluster: ThrowawayCluster, fine_tuning: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They went out once, at the start; what comes back for checkpoints and the result is the head and its optimizer."""
    job = load_job(fine_tuning.parent, fine_tuning.name)
    layers = layers_of(job)
    frozen = {layer.index for layer in layers if layer.parameters and not layer.trainable_param_bytes}
    assert frozen
    answers: list[tuple[int, int]] = []

    def recorded(channel: grpc.Channel, method: str, request: data_pb2.FetchLayerRequest, **more: Any) -> bytearray:
        blob = fetch_blob(channel, method, request, **more)
        answers.append((request.layer, len(blob)))
        return blob

    monkeypatch.setattr(gather, "fetch_blob", recorded)
    result = train_on(
        cluster,
        fine_tuning,
        plan=backbone_on_two_head_on_one(cluster, job),
        output=fine_tuning.with_name("out"),
        epochs=3,
        checkpoint_every=10,
    )
    times = len(answers) // len(layers)
    assert times >= 3, "several checkpoints were made"
    assert {index for index, _ in answers} == set(range(len(layers)))
    for index, size in answers:
        if index in frozen:
            assert size < OVERHEAD_BYTES < layers[index].param_bytes
        else:
            assert size >= layers[index].trainable_param_bytes
    before = load_file(fine_tuning.with_name("backbone.safetensors"))
    for name, tensor in load_file(result.folder / "model.safetensors").items():
        assert torch.equal(before[name], tensor) == name.startswith(FROZEN), name
