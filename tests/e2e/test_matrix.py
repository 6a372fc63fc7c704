"""The models that people bring, over real agents: what comes out is what plain PyTorch trains, whatever the plan.

Every model of the zoo, in its small size, over one, two and three stages, and over a replicated one: two rounds of 10
and 8 samples, in micro-batches of 4, so that the last one of the first round is ragged. Most of what is not replicated, and some
of what is, is in `make soak`.

Without batch statistics the reference is the loop that anyone would write. float64: every tensor within 1e-9 relative L2,
float32: the whole model within 1e-5.

A BatchNorm normalises over what a device computes at once, and no such loop does that in parts. So, all in float64, within
1e-9 for every tensor, running statistics among them:

- over one, two and three stages the whole mini-batch is one micro-batch, and the reference is the same loop;
- over the replicated stage there are micro-batches and shares, and the reference is a loop that normalises each replica's
  part for itself and merges the statistics once a round; and the same plan once more gives the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from edgeswarm.job import Job
from edgeswarm.job_file import load_job
from edgeswarm.model.export import ExportedModel, export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm_coordinator import preparation
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from tests.zoo import ZOO

from .small_job import plan_of, relative_distance, train_on
from .zoo_job import ADAMW, BATCH_SIZE, SGD, ZooJob, plain_training, training_by_shares

pytestmark = pytest.mark.e2e

Tensors = Mapping[str, torch.Tensor]
Groups = tuple[Mapping[str, int], ...]

PIPELINES: dict[str, tuple[str, ...]] = {"one stage": ("a",), "two stages": ("a", "b"), "three stages": ("a", "b", "c")}
SHARES = {"a": 3, "b": 1}
REPLICATED: Groups = (SHARES, {"c": 4})
WITH_BATCH_STATISTICS = ("efficientnet_b1", "mobilenet_v2", "resnet_50")
WITHOUT_BATCH_STATISTICS = tuple(name for name in ZOO if name not in WITH_BATCH_STATISTICS)
# Whose later stages need what others than the one before them have, or hold weights with them; and one with batch norms.
STRAIGHT_IN_CI = ("gpt2", "unet", "mobilenet_v2")
# The others have nothing over replicas that these have not.
REPLICATED_ELSEWHERE = (
    "swin", "efficientnet_b1", "resnet_50", "frozen_backbone", "convnext", "lstm", "vit", "bert_small"
)  # fmt: skip
IMAGE_MODELS = (*WITH_BATCH_STATISTICS, "convnext", "unet", "frozen_backbone")


def straight(names: Iterable[str]) -> list[Any]:
    """(model, pipeline) without replicas. What one or two stages do wrong, three do, too: the others take too long for CI."""
    return [
        pytest.param(
            name, groups, marks=[] if name in STRAIGHT_IN_CI and groups == "three stages" else [pytest.mark.soak]
        )
        for name in names
        for groups in PIPELINES
    ]


def replicated(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.soak] if name in REPLICATED_ELSEWHERE else []) for name in names]


def job_of(name: str, dtype: str = "float64") -> ZooJob:
    # In float32 Adam turns the noise of gradients that are zero by symmetry, as attention has them, into steps.
    with_sgd = name in IMAGE_MODELS or (dtype == "float32" and name != "lstm")
    return ZooJob(name, optimizer=SGD if with_sgd else ADAMW, dtype=dtype)


@dataclass(frozen=True)
class Example:
    """A job that is written, and what stays the same for all of its plans."""

    path: Path
    job: Job
    graph: LayerGraph
    initial: Tensors
    frozen: tuple[str, ...]

    @functools.cached_property
    def plain(self) -> Tensors:
        """Of the loop that anyone would write; it moves the weights by far more than what is compared."""
        weights = plain_training(self.job).state_dict()
        assert relative_distance(weights, self.initial)[1] > 1e-3
        return weights


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[ZooJob], Example]]:
    """By job. A model is exported once for all of its plans: that is what takes the time."""
    exports: dict[tuple[type, torch.dtype], ExportedModel] = {}

    def export_once(model: torch.nn.Module, args: Any, kwargs: Any, **_: Any) -> ExportedModel:
        key = (type(model), next(model.parameters()).dtype)
        if key not in exports:
            exports[key] = export_model(model, args, kwargs)
        return exports[key]

    @functools.cache
    def example(zoo_job: ZooJob) -> Example:
        path = zoo_job.write(tmp_path_factory.mktemp(zoo_job.name))
        job = load_job(path.parent, path.name)
        torch.manual_seed(job.seed)
        model = job.model()
        initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
        loaded = preparation.load(path)
        folder = tmp_path_factory.mktemp("layers")
        graph = preparation.prepare(loaded, preparation.open_data(loaded), snapshot_folder=folder).layer_graph
        return Example(path, job, graph, initial, frozen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "export_model", export_once)
        yield example


def trained(
    cluster: ThrowawayCluster, example: Example, zoo_job: ZooJob, groups: Groups, output: Path
) -> dict[str, torch.Tensor]:
    """The result's weights. Two rounds were trained, by the plan that was given."""
    plan = plan_of(cluster, groups, layers=len(example.graph.layers), job=zoo_job)
    result = train_on(cluster, example.path, plan=plan, output=output)
    assert result.plan.stages == plan.stages
    assert [done["samples"] for done in result.metrics["rounds"]] == [10, 8]
    found: dict[str, torch.Tensor] = load_file(result.folder / "model.safetensors")
    for name in example.frozen:
        assert torch.equal(found[name], example.initial[name]), f"{name} is frozen"
    return found


@pytest.mark.parametrize(
    ("name", "groups"),
    straight(WITHOUT_BATCH_STATISTICS),
)
def test_a_pipeline_gives_the_weights_of_a_plain_loop(
    cluster: ThrowawayCluster,
    examples: Callable[[ZooJob], Example],
    tmp_path: Path,
    name: str,
    groups: str,
) -> None:
    example = examples(job_of(name))
    plan = tuple({device: 4} for device in PIPELINES[groups])
    found = trained(cluster, example, job_of(name), plan, tmp_path / "out")
    assert relative_distance(found, example.plain)[0] < 1e-9


@pytest.mark.parametrize("name", replicated(WITHOUT_BATCH_STATISTICS))
def test_replicas_give_the_weights_of_a_plain_loop(
    cluster: ThrowawayCluster, examples: Callable[[ZooJob], Example], tmp_path: Path, name: str
) -> None:
    example = examples(job_of(name))
    found = trained(cluster, example, job_of(name), REPLICATED, tmp_path / "out")
    assert relative_distance(found, example.plain)[0] < 1e-9


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("vit", REPLICATED),
        pytest.param("gpt2", tuple({device: 4} for device in "abc"), marks=pytest.mark.soak),
        pytest.param("lstm", ({"a": 4}, {"b": 4}), marks=pytest.mark.soak),
    ],
    ids=["vit", "gpt2", "lstm"],
)
def test_in_single_precision_the_whole_model_is_as_close_as_its_digits_allow(
    cluster: ThrowawayCluster, examples: Callable[[ZooJob], Example], tmp_path: Path, name: str, groups: Groups
) -> None:
    zoo_job = job_of(name, "float32")
    example = examples(zoo_job)
    assert relative_distance(trained(cluster, example, zoo_job, groups, tmp_path / "out"), example.plain)[1] < 1e-5


@pytest.mark.parametrize(("name", "groups"), straight(WITH_BATCH_STATISTICS))
def test_whole_mini_batches_have_the_batch_statistics_of_a_plain_loop(
    cluster: ThrowawayCluster,
    examples: Callable[[ZooJob], Example],
    tmp_path: Path,
    name: str,
    groups: str,
) -> None:
    example = examples(job_of(name))
    plan = tuple({device: BATCH_SIZE} for device in PIPELINES[groups])
    found = trained(cluster, example, job_of(name), plan, tmp_path / "out")
    assert relative_distance(found, example.plain)[0] < 1e-9


@pytest.mark.parametrize("name", replicated(WITH_BATCH_STATISTICS))
def test_replicas_normalise_their_own_samples_and_merge_the_statistics(
    cluster: ThrowawayCluster, examples: Callable[[ZooJob], Example], tmp_path: Path, name: str
) -> None:
    zoo_job = job_of(name)
    example = examples(zoo_job)
    found, again = (trained(cluster, example, zoo_job, REPLICATED, tmp_path / folder) for folder in ("one", "two"))
    assert all(torch.equal(again[key], tensor) for key, tensor in found.items())
    replicated = example.graph.names_held(0, len(example.graph.layers) // 2)
    wanted = training_by_shares(example.job, shares=SHARES, replicated=replicated).state_dict()
    assert relative_distance(found, wanted)[0] < 1e-9
    # Two rounds of normalising in parts are no longer those of the plain loop.
    assert relative_distance(found, example.plain)[0] > 1e-6


def test_the_matrix_has_every_model() -> None:
    """Which has batch statistics is known of the models themselves."""
    for name, model in ZOO.items():
        norms = [m for m in model.small.make().train().modules() if isinstance(m, torch.nn.BatchNorm2d) and m.training]
        assert bool(norms) == (name in WITH_BATCH_STATISTICS), name
