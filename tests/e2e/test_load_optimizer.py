"""What a training leaves goes on in plain PyTorch as it would have gone on here: the weights, and the optimizer's state."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import edgeswarm
from edgeswarm.job_file import load_job
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from . import small_job
from .small_job import layers_of, plain_rounds, plan_of, relative_distance, train_on

pytestmark = pytest.mark.e2e

GROUPS = (
    "[{{'params': [p for _, p in named if p.dim() > 1], 'weight_decay': 0.01}}, "
    "{{'params': [p for _, p in named if p.dim() == 1], 'lr': {rate}}}]"
)
SGD = f"torch.optim.SGD({GROUPS.format(rate=0.02)}, lr=0.05, momentum=0.9)"
ADAMW = f"torch.optim.AdamW({GROUPS.format(rate=0.001)}, lr=0.003)"
SCHEDULE = "learning_rate_schedule=lambda r: 1.0 / (1 + r),"


@pytest.mark.parametrize(
    ("optimizer", "more"),
    [
        pytest.param(SGD, "", marks=pytest.mark.soak, id="sgd"),
        pytest.param(ADAMW, SCHEDULE, id="adamw with a schedule"),
    ],
)
def test_an_epoch_here_and_one_in_plain_pytorch_are_two_epochs_here(
    cluster: ThrowawayCluster, tmp_path: Path, optimizer: str, more: str
) -> None:
    job = dataclasses.replace(small_job.CNN, dtype="float64", optimizer=optimizer, epochs=2, more=more)
    path = job.write(tmp_path / "job")
    plan = plan_of(cluster, ({"a": 3, "b": 1}, {"c": 2, "d": 2}), layers=layers_of(path), job=job)
    both = train_on(cluster, path, plan=plan, output=tmp_path / "both")
    first = train_on(cluster, path, plan=plan, output=tmp_path / "first", epochs=1)

    loaded = load_job(path.parent, path.name)
    model = loaded.model()
    model.load_state_dict(load_file(first.folder / "model.safetensors"))
    plain = loaded.optimizer(list(model.named_parameters()))
    rounds = edgeswarm.load_optimizer(first.folder, model, plain)
    assert rounds == 5
    plain_rounds(loaded, model, plain, range(rounds, 2 * rounds))

    wanted = load_file(both.folder / "model.safetensors")
    assert relative_distance(model.state_dict(), wanted)[0] < 1e-9
    # The state too, not only what it did to the weights.
    again = loaded.optimizer(list(model.named_parameters()))
    edgeswarm.load_optimizer(both.folder, model, again)
    for parameter, state in again.state.items():
        for key, value in state.items():
            torch.testing.assert_close(plain.state[parameter][key], value, rtol=1e-7, atol=1e-12)
    kept = [{key: value for key, value in group.items() if key != "params"} for group in again.param_groups]
    assert kept == [{key: value for key, value in group.items() if key != "params"} for group in plain.param_groups]
