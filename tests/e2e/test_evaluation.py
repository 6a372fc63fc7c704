"""Evaluation over real agents: after each epoch the loss and the metrics are those of plain PyTorch with the same weights."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgeswarm.job_file import load_job
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from .small_job import CNN_WITH_BATCH_NORM, SmallJob, layers_of, plan_of, train_on

pytestmark = pytest.mark.e2e

GROUPS = ({"a": 4}, {"b": 1, "c": 3})
EVALUATION = """
    evaluation_dataset=lambda: [
        (value.to(DTYPE), int(label))
        for value, label in zip(
            torch.randn(23, 1, 8, 8, generator=torch.Generator().manual_seed(9)), torch.arange(23) % 10, strict=True
        )
    ],
    evaluation_transform=lambda sample, generator: (sample[0] * 0.5, sample[1]),
    metrics={
        "accuracy": lambda output, targets: (output.argmax(1) == targets).to(DTYPE).mean(),
        "odd": lambda output, targets: ((output.argmax(1) % 2 * (targets % 2)).sum(), (targets % 2).sum()),
    },
    data="local",
"""
JOB = dataclasses.replace(
    CNN_WITH_BATCH_NORM,
    model="torch.nn.Sequential(small_models.DigitsCNN(batch_norm=True, channels=4), torch.nn.Dropout(0.3))",
    dtype="float64",
    samples=48,
    epochs=2,
    more=EVALUATION,
)


def trained(cluster: ThrowawayCluster, folder: Path, job: SmallJob, *, name: str = "out") -> Path:
    path = job.write(folder / "job")
    plan = plan_of(cluster, GROUPS, layers=layers_of(path), job=job)
    return train_on(cluster, path, plan=plan, output=folder / name).folder


def evaluated(path: Path, weights: Path) -> dict[str, float]:
    """The metrics of plain PyTorch over the whole set at once."""
    job = load_job(path.parent, path.name)
    model = job.model()
    model.load_state_dict(load_file(weights), strict=True)
    model.eval()
    assert job.evaluation_dataset is not None
    assert job.evaluation_transform is not None
    dataset = job.evaluation_dataset()
    items = [job.evaluation_transform(dataset[index], torch.Generator()) for index in range(len(dataset))]
    inputs, targets = torch.stack([item[0] for item in items]), torch.tensor([item[1] for item in items])
    with torch.no_grad():
        output = model(inputs)
        found: dict[str, float] = {}
        for metric, function in {"loss": job.loss, **job.metrics}.items():
            value = function(output, targets)
            found[metric] = float(value[0]) / float(value[1]) if isinstance(value, tuple) else float(value)
    return found


def test_loss_and_metrics_of_each_epoch_are_plain_pytorchs(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    """The weights after an epoch are those of a training of so many epochs: dropout and order depend on the round alone."""
    whole = trained(cluster, tmp_path, JOB)
    evaluations = json.loads((whole / "metrics.json").read_text())["evaluations"]
    assert [(e["round"], e["epoch"], e["samples"]) for e in evaluations] == [(4, 0, 23), (8, 1, 23)]
    path = tmp_path / "job" / "small_job.py"
    for epochs, evaluation in enumerate(evaluations, start=1):
        folder = whole
        if epochs < JOB.epochs:
            folder = trained(cluster, tmp_path, dataclasses.replace(JOB, epochs=epochs), name=f"after-{epochs}")
        wanted = evaluated(path, folder / "model.safetensors")
        assert evaluation["metrics"] == pytest.approx(wanted, rel=1e-9)
        if evaluation["round"] == max(e["round"] for e in evaluations if e["best"]):
            best, last = load_file(whole / "best.safetensors"), load_file(folder / "model.safetensors")
            assert best.keys() == last.keys()
            assert all(torch.equal(tensor, last[name]) for name, tensor in best.items())


def test_it_stops_early_and_gives_back_the_best_weights(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    """By a metric that stays as it is, nothing is ever better than after the first epoch."""
    same = "        'same': lambda output, targets: (1.0, 1),\n"
    job = dataclasses.replace(
        JOB,
        epochs=9,
        more=EVALUATION.replace("    metrics={\n", "    metrics={\n" + same)
        + "    best_metric='same', best_is='highest', early_stop_epochs=2,\n",
    )
    folder = trained(cluster, tmp_path, job)
    document = json.loads((folder / "metrics.json").read_text())
    assert [evaluation["best"] for evaluation in document["evaluations"]] == [True, False, False]
    assert len(document["rounds"]) == 12
    assert evaluated(tmp_path / "job" / "small_job.py", folder / "best.safetensors") == pytest.approx(
        document["evaluations"][0]["metrics"], rel=1e-9
    )
    assert not (tmp_path / "out.unfinished").exists()
