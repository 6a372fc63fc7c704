"""The commands as a person types them, over real agents: plan, train by the plan, look at the result."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgeswarm.job_file import load_job
from edgeswarm.plan import Plan
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.profile_cache import DATA_SOURCE, FILE_NAME, Profiles

from . import small_job
from .commands import EDGESWARM, Ended, RunningCommand, wait_until_idle
from .small_job import SmallJob, plain_training, plan_of, relative_distance, train_on

pytestmark = pytest.mark.e2e


def run(cluster: ThrowawayCluster, tmp_path: Path, *arguments: str | Path) -> Ended:
    """`edgeswarm ARGUMENTS --json` for this cluster."""
    peers = [part for address in cluster.addresses for part in ("--peer", address)]
    command = RunningCommand(
        [EDGESWARM, *arguments, *peers, "--no-mdns", "--json"],
        environment=cluster.environment,
        temporary=tmp_path / "t",
    )
    return command.end(120)


def output_bytes(instance: Path) -> list[int]:
    """What each layer's results for a sample take on their way to the next one, but for the model's own ones."""
    return [layer["output_bytes"] for layer in json.loads(instance.read_text())["model"]["layers"]][:-1]


def test_plan_then_train_by_that_plan(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    job = dataclasses.replace(small_job.CNN_WITH_BATCH_NORM, epochs=2)
    path = job.write(tmp_path / "job")

    planned = run(cluster, tmp_path, "plan", path, "--write-instance", tmp_path / "float32.json")
    assert planned.code == 0, planned.said
    document = json.loads(planned.output)
    assert document["format"] == "edgeswarm-plan/1"
    plan = Plan.from_json(document)
    assert plan.mini_batch == job.batch_size
    assert plan.predicted is not None
    assert plan.predicted.round_seconds > 0
    wait_until_idle(cluster, *cluster.names)
    narrow = ("--wire-dtype", "bfloat16", "--write-instance", tmp_path / "bfloat16.json")
    assert run(cluster, tmp_path, "plan", path, *narrow).code == 0
    wait_until_idle(cluster, *cluster.names)
    as_it_is, halved = (output_bytes(tmp_path / f"{name}.json") for name in ("float32", "bfloat16"))
    assert as_it_is == [2 * size for size in halved] != halved

    plan_file = tmp_path / "plan.json"
    plan_file.write_text(planned.output)
    output = tmp_path / "out"
    trained = run(cluster, tmp_path, "train", path, "--plan", plan_file, "--output", output, "--parts")
    assert trained.code == 0, trained.said
    json.loads(trained.output)
    wait_until_idle(cluster, *cluster.names)

    model = load_job(path.parent, path.name).model()
    model.load_state_dict(load_file(output / "model.safetensors"), strict=True)
    assert Plan.from_json(json.loads((output / "plan.json").read_text())) == plan
    metrics = json.loads((output / "metrics.json").read_text())
    assert len(metrics["rounds"]) == 10
    for done in metrics["rounds"]:
        for device in plan.devices:
            parts = done["parts"][device]
            named = [v for name, v in parts.items() if name.endswith("_seconds") and not name.endswith("cpu_seconds")]
            seconds = sum(sum(value.values()) if isinstance(value, dict) else value for value in named)
            assert seconds == pytest.approx(parts["seconds"], rel=1e-6, abs=1e-6)
            assert 0 < parts["model_cpu_seconds"] < parts["cpu_seconds"]
    assert {"optimizer.json", "optimizer.safetensors"} <= {file.name for file in output.iterdir()}


@pytest.mark.soak
@pytest.mark.parametrize("planner", ["data-parallel", "pipeline"])
def test_every_planners_plan_trains(cluster: ThrowawayCluster, tmp_path: Path, planner: str) -> None:
    path = dataclasses.replace(small_job.CNN_WITH_BATCH_NORM, epochs=1).write(tmp_path / "job")
    output = tmp_path / "out"
    ended = run(cluster, tmp_path, "train", path, "--planner", planner, "--output", output, "--micro-batch", "4")
    assert ended.code == 0, ended.said
    plan = Plan.from_json(json.loads((output / "plan.json").read_text()))
    assert plan.planner == planner
    assert (len(plan.stages) == 1) == (planner == "data-parallel")
    links = Profiles.from_json(json.loads((cluster.folders.cache_dir / FILE_NAME).read_text())).links
    from_here = {receiver: link for (sender, receiver), link in links.items() if sender == DATA_SOURCE}
    assert set(plan.devices) <= set(from_here), "the samples are served: by links that were measured"
    assert all(link.bandwidth_bytes_per_second > 1e6 for link in from_here.values())


SHIFTED = SmallJob(
    model="small_models.DigitsCNN(batch_norm=False, channels=4)",
    inputs=small_job.IMAGES,
    dtype="float64",
    epochs=2,
    more="transform=lambda sample, g: (sample[0] + torch.rand((), generator=g, dtype=DTYPE), sample[1]), data='{mode}',",
)


@pytest.mark.parametrize("mode", ["served", pytest.param("local", marks=pytest.mark.soak)])
def test_data_served_or_local_and_a_transform_that_draws(cluster: ThrowawayCluster, tmp_path: Path, mode: str) -> None:
    """Whoever computes a sample draws the same for it: one stage and a replicated pipeline end with the same weights."""
    job = dataclasses.replace(SHIFTED, more=SHIFTED.more.replace("{mode}", mode))
    path = job.write(tmp_path / "job")
    layers = small_job.layers_of(path)
    results = []
    for index, groups in enumerate((({"a": 4},), ({"b": 3, "a": 1}, {"c": 2, "d": 2}))):
        plan = plan_of(cluster, groups, layers=layers, job=job)
        result = train_on(cluster, path, plan=plan, output=tmp_path / f"out-{index}")
        results.append(load_file(result.folder / "model.safetensors"))
    largest, _ = relative_distance(results[0], results[1])
    assert largest < 1e-9
    untransformed, _ = plain_training(dataclasses.replace(job, more="").write(tmp_path / "plain"))
    assert relative_distance(results[0], untransformed.state_dict())[0] > 1e-6


def test_frozen_weights_stay_as_they_are(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    job = dataclasses.replace(
        small_job.CNN,
        model="small_models.DigitsCNN(batch_norm=False, channels=4)",
        optimizer="torch.optim.SGD([p for _, p in named], lr=0.05)",
        epochs=1,
    )
    path = job.write(tmp_path / "job")
    text = (
        path.read_text()
        .replace("model=lambda: ", "model=lambda: frozen(")
        .replace(".to(DTYPE),\n", ".to(DTYPE)),\n", 1)
    )
    frozen = "def frozen(model):\n    model.features.requires_grad_(False)\n    return model\n\n\njob = edgeswarm"
    path.write_text(text.replace("job = edgeswarm", frozen))
    built = load_job(path.parent, path.name)
    torch.manual_seed(built.seed)
    before = built.model().state_dict()
    layers = small_job.layers_of(path)
    plan = plan_of(cluster, ({"a": 2, "b": 2}, {"c": 4}), layers=layers, job=job)
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out")
    after = load_file(result.folder / "model.safetensors")
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) == name.startswith("features."), name
