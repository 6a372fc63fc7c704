"""`Job(weights=FILE)` through the command and real agents: training goes on from the file; a file that doesn't fit is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeswarm.job_file import load_job
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from . import small_job
from .commands import EDGESWARM, RunningCommand, wait_until_idle
from .small_job import layers_of, plain_training, plan_of, relative_distance, train_on

pytestmark = pytest.mark.e2e

WEIGHTS = "initial.safetensors"
JOB = dataclasses.replace(small_job.CNN, dtype="float64", epochs=1, more=f"weights='{WEIGHTS}',")


def write_weights(path: Path, *, seed: int = 99) -> Mapping[str, torch.Tensor]:
    """The weights of the job's model under another seed, beside the job."""
    torch.manual_seed(seed)
    weights = load_job(path.parent, path.name).model().state_dict()
    save_file(weights, path.parent / WEIGHTS)
    return weights


def test_training_begins_with_the_weights_of_the_file(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    path = JOB.write(tmp_path / "job")
    write_weights(path)
    wanted, _ = plain_training(path)
    plan = plan_of(cluster, ({"a": 2, "b": 2}, {"c": 4}), layers=layers_of(path), job=JOB)
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out")
    found = load_file(result.folder / "model.safetensors")
    assert relative_distance(found, wanted.state_dict())[0] < 1e-9
    # A result is weights for the next job, as it is.
    (path.parent / WEIGHTS).write_bytes((result.folder / "model.safetensors").read_bytes())
    further, _ = plain_training(path)
    again = train_on(cluster, path, plan=plan, output=tmp_path / "again")
    assert relative_distance(load_file(again.folder / "model.safetensors"), further.state_dict())[0] < 1e-9


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("missing", "doesn't exist"),
        ("cut off", "can't be read: "),
        ("names", "lack 2 of the model's 12 tensors (head.0.weight, head.0.bias)"),
        ("shapes", "(head.2.bias is [11], not [10])"),
    ],
)
def test_a_file_that_does_not_fit_is_one_message_and_the_agents_are_free(
    cluster: ThrowawayCluster, tmp_path: Path, fault: str, said: str
) -> None:
    path = JOB.write(tmp_path / "job")
    file = path.parent / WEIGHTS
    weights = dict(write_weights(path))
    if fault == "missing":
        file.unlink()
    elif fault == "cut off":
        file.write_bytes(file.read_bytes()[:-100])
    elif fault == "names":
        save_file({name: value for name, value in weights.items() if not name.startswith("head.0")}, file)
    else:
        save_file({**weights, "head.2.bias": torch.zeros(11)}, file)
    output = tmp_path / "out"
    command = RunningCommand(
        [EDGESWARM, "train", path, "--output", output, "--peer", cluster.addresses[0], "--no-mdns"],
        environment=cluster.environment,
        temporary=tmp_path / "temporary",
        warm=True,
    )
    ended = command.end()
    assert ended.code == 1
    assert f"The job's weights {file}" in ended.message
    assert said in ended.message
    assert "remedy: " in ended.message
    assert not list(tmp_path.glob("*out*"))
    assert not list(command.temporary.iterdir())
    wait_until_idle(cluster, *cluster.names)
