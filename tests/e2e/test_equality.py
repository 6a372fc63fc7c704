"""DESIGN.md's correctness promise, with real processes: any plan gives the weights of a plain loop over the same samples.

20 rounds each, every fifth of them ragged but where what is left over is left out.
float64: every tensor within 1e-9 relative L2; float32: the whole model within 1e-5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from edgeswarm.layer_file import layer_file_name
from edgeswarm.plan import Plan
from edgeswarm.schedule.policies import ZERO_BUBBLE
from edgeswarm.snapshot import LayerState, unpack_layer
from edgeswarm_coordinator import gather
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from . import small_job
from .small_job import SmallJob, layers_of, plain_training, plan_of, relative_distance, train_on

pytestmark = pytest.mark.e2e

Groups = tuple[Mapping[str, int], ...]
References = Callable[[SmallJob], tuple[Path, int, Mapping[str, Any]]]

ONE_STAGE: Groups = ({"a": 4},)
TWO_STAGES: Groups = ({"a": 5}, {"b": 5})
THREE_STAGES: Groups = ({"a": 4}, {"b": 4}, {"c": 4})
FOUR_STAGES: Groups = ({"a": 3}, {"b": 3}, {"c": 3}, {"d": 3})
REPLICATED: Groups = ({"a": 3, "b": 1},)
REPLICATED_TWICE: Groups = ({"a": 1, "b": 3}, {"c": 2, "d": 2})
THREE_REPLICAS: Groups = ({"d": 4}, {"a": 2, "b": 1, "c": 1})


def groups_id(groups: Groups) -> str:
    return "|".join("+".join(f"{name}{share}" for name, share in group.items()) for group in groups)


SGD, ADAMW = small_job.SGD, small_job.ADAMW
DOUBLE = [
    (SGD, ONE_STAGE),
    (ADAMW, TWO_STAGES),
    (SGD, THREE_STAGES),
    (ADAMW, FOUR_STAGES),
    (ADAMW, REPLICATED),
    (SGD, REPLICATED_TWICE),
    (ADAMW, THREE_REPLICAS),
]
SINGLE = [(ADAMW, ONE_STAGE), (SGD, FOUR_STAGES), (ADAMW, REPLICATED_TWICE), (SGD, THREE_REPLICAS)]
# Both models take every path of a plan between them; the rest of the product is in `make soak`.
IN_CI = {
    ("cnn", "float64"): [ONE_STAGE, FOUR_STAGES, REPLICATED_TWICE, THREE_REPLICAS],
    ("cnn", "float32"): [REPLICATED_TWICE],
    ("transformer", "float64"): [REPLICATED_TWICE],
}
CASES = [
    pytest.param(
        dataclasses.replace(model, dtype=dtype, optimizer=optimizer),
        groups,
        marks=[] if groups in IN_CI.get((kind, dtype), []) else [pytest.mark.soak],
        id=f"{kind}-{dtype}-{'adamw' if optimizer == ADAMW else 'sgd'}-{groups_id(groups)}",
    )
    for kind, model in (("cnn", small_job.CNN), ("transformer", small_job.TRANSFORMER))
    for dtype, cases in (("float64", DOUBLE), ("float32", SINGLE))
    for optimizer, groups in cases
] + [
    pytest.param(
        dataclasses.replace(small_job.CNN, dtype="float64", epochs=5, more="drop_last=True,"),
        REPLICATED,
        id="cnn-without-the-rest",
    )
]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    """By job: its file, its number of layers, and the weights of the plain loop."""

    @functools.cache
    def reference(job: SmallJob) -> tuple[Path, int, Mapping[str, Any]]:
        path = job.write(tmp_path_factory.mktemp("job"))
        model, _ = plain_training(path)
        return path, layers_of(path), model.state_dict()

    return reference


@pytest.mark.parametrize(("job", "groups"), CASES)
def test_any_plan_gives_the_weights_of_a_plain_loop(
    cluster: ThrowawayCluster, references: References, tmp_path: Path, job: SmallJob, groups: Groups
) -> None:
    path, layers, wanted = references(job)
    plan = plan_of(cluster, groups, layers=layers, job=job)
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out")
    largest, whole = relative_distance(load_file(result.folder / "model.safetensors"), wanted)
    if job.dtype == "float64":
        assert largest < 1e-9
    else:
        assert whole < 1e-5
    assert len(result.metrics["rounds"]) == 20


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(FOUR_STAGES, marks=pytest.mark.soak),
        pytest.param(THREE_REPLICAS, marks=pytest.mark.soak),
        REPLICATED_TWICE,
    ],
    ids=groups_id,
)
def test_gradients_of_weights_apart_give_the_weights_of_a_plain_loop(
    cluster: ThrowawayCluster, references: References, tmp_path: Path, groups: Groups
) -> None:
    job = dataclasses.replace(small_job.CNN, dtype="float64", optimizer=ADAMW)
    path, layers, wanted = references(job)
    plan = dataclasses.replace(plan_of(cluster, groups, layers=layers, job=job), schedule=ZERO_BUBBLE)
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out")
    largest, _ = relative_distance(load_file(result.folder / "model.safetensors"), wanted)
    assert largest < 1e-9


# A table of words of which a micro-batch meets few: the gradient of the others neither adds up nor travels.
WORDS = SmallJob(
    model="torch.nn.Sequential(torch.nn.Embedding(3000, 32), torch.nn.Flatten(), torch.nn.Linear(256, 10))",
    inputs=small_job.TOKENS,
    targets=small_job.CLASSES,
)


@pytest.mark.parametrize("kind", [small_job.CNN, WORDS], ids=["cnn", "words"])
def test_shares_in_passes_give_the_weights_of_a_plain_loop(
    cluster: ThrowawayCluster, references: References, tmp_path: Path, kind: SmallJob
) -> None:
    job = dataclasses.replace(kind, dtype="float64", optimizer=ADAMW)
    path, layers, wanted = references(job)
    plan = plan_of(cluster, ({"a": 7, "b": 2, "c": 1},), layers=layers, job=job)
    passes = {cluster.node_id(name): count for name, count in {"a": 3, "b": 2}.items()}
    plan = dataclasses.replace(plan, stages=(dataclasses.replace(plan.stages[0], passes=passes),))
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out")
    largest, _ = relative_distance(load_file(result.folder / "model.safetensors"), wanted)
    assert largest < 1e-9


GPT = SmallJob(
    model="small_models.SmallGPT(vocabulary=30, length=8, width=16, blocks=2)",
    inputs=small_job.TOKENS,
    targets="self.inputs.roll(-1, 1)",
    loss=small_job.COUNTED_TOKENS,
    optimizer=ADAMW,
    dtype="float64",
    more="clip_gradient_norm=0.5, learning_rate_schedule=lambda r: 1.0 / (1 + r),",
)


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(THREE_STAGES, marks=pytest.mark.soak),
        THREE_REPLICAS,
        pytest.param(({"a": 2, "b": 2}, {"c": 1, "d": 3}), marks=pytest.mark.soak),
    ],
    ids=groups_id,
)
def test_tied_weights_clipping_counted_loss_and_schedule_are_those_of_a_plain_loop(
    cluster: ThrowawayCluster,
    references: References,
    tmp_path: Path,
    groups: Groups,
) -> None:
    path, layers, wanted = references(GPT)
    plan = plan_of(cluster, groups, layers=layers, job=GPT)
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out")
    largest, _ = relative_distance(load_file(result.folder / "model.safetensors"), wanted)
    assert largest < 1e-9


def test_the_same_plan_twice_gives_the_same_bits_with_batch_norm_and_dropout(
    cluster: ThrowawayCluster, tmp_path: Path
) -> None:
    job = dataclasses.replace(
        small_job.CNN_WITH_BATCH_NORM,
        model="torch.nn.Sequential(small_models.DigitsCNN(batch_norm=True, channels=4), torch.nn.Dropout(0.3))",
        samples=49,
    )
    path = job.write(tmp_path / "job")
    plan = plan_of(cluster, REPLICATED_TWICE, layers=layers_of(path), job=job)
    first, second = (
        load_file(train_on(cluster, path, plan=plan, output=tmp_path / name).folder / "model.safetensors")
        for name in ("first", "second")
    )
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert int(first["0.features.1.num_batches_tracked"]) == 20


def test_replicas_hold_the_same_bits(
    cluster: ThrowawayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator gathers from one replica of each stage; here every replica is asked."""
    seen: dict[str, list[LayerState]] = {}
    one_of_each = gather.stage_fetchers

    def all_of_each(plan: Plan, *, round_number: int, folder: Path, **more: Any) -> dict[str, Callable[[], int]]:
        for replica in plan.devices:
            (stage,) = (stage for stage in plan.stages if replica in stage.shares)
            only = Plan.__new__(Plan)
            object.__setattr__(only, "stages", (dataclasses.replace(stage, shares={replica: 1}),))
            layers = tmp_path / f"{replica}-{round_number}"
            layers.mkdir()
            one_of_each(only, round_number=round_number, folder=layers, **more)[replica]()
            seen[replica] = [
                unpack_layer((layers / layer_file_name(layer)).read_bytes())
                for layer in range(stage.first_layer, stage.end_layer)
            ]
        return one_of_each(plan, round_number=round_number, folder=folder, **more)

    monkeypatch.setattr(gather, "stage_fetchers", all_of_each)
    job = small_job.CNN_WITH_BATCH_NORM
    path = job.write(tmp_path / "job")
    plan = plan_of(cluster, THREE_REPLICAS, layers=layers_of(path), job=job)
    train_on(cluster, path, plan=plan, output=tmp_path / "out")
    first, *others = (seen[cluster.node_id(name)] for name in "abc")
    for other in others:
        for layer, state in enumerate(first):
            for members in ("parameters", "buffers"):
                mine, theirs = getattr(state, members), getattr(other[layer], members)
                assert mine.keys() == theirs.keys()
                assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
            for name, values in state.optimizer.items():
                momentum, other_momentum = values["momentum_buffer"], other[layer].optimizer[name]["momentum_buffer"]
                assert isinstance(momentum, torch.Tensor)
                assert isinstance(other_momentum, torch.Tensor)
                assert torch.equal(momentum, other_momentum)


def test_numbers_too_small_for_full_digits_are_zeros(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    job = dataclasses.replace(
        small_job.CNN,
        loss="lambda output, _: 0 * output.sum() + 1e38 * (1e-10 * torch.full((), 1e-30))",  # 0.01 in this process
        epochs=1,
    )
    path = job.write(tmp_path / "job")
    plan = plan_of(cluster, TWO_STAGES, layers=layers_of(path), job=job)
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out")
    assert [done["loss"] for done in result.metrics["rounds"]] == [0.0] * 5


def test_a_worker_holds_its_own_stage_only(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    """A model of 117 MiB, three small stages and a large one: together it, and no small one ever held the large one."""
    width = 1024
    job = SmallJob(
        model=f"torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, {width}), torch.nn.ReLU(), "
        + ", ".join(f"torch.nn.Linear({width}, {width}), torch.nn.ReLU()" for _ in range(28))
        + f", torch.nn.Linear({width}, 10))",
        inputs=small_job.IMAGES,
        optimizer="torch.optim.SGD([p for _, p in named], lr=0.01)",
        epochs=1,
    )
    path = job.write(tmp_path / "job")
    layers = layers_of(path)
    equal = plan_of(cluster, FOUR_STAGES, layers=layers, job=job)
    bounds = [0, *(layers * tenths // 10 for tenths in (1, 2, 3)), layers]
    stages = (
        dataclasses.replace(stage, first_layer=first, end_layer=end)
        for stage, first, end in zip(equal.stages, bounds, bounds[1:], strict=False)
    )
    plan = dataclasses.replace(equal, stages=tuple(stages))
    result = train_on(cluster, path, plan=plan, output=tmp_path / "out")
    model_bytes = sum(tensor.nbytes for tensor in load_file(result.folder / "model.safetensors").values())
    workers = result.metrics["set_up"]["workers"]
    assert sum(worker["parameter_bytes"] for worker in workers.values()) == model_bytes
    assert model_bytes > 100 * 2**20
    for stage in plan.stages[:-1]:
        (device,) = stage.shares
        worker = workers[device]
        assert worker["parameter_bytes"] < model_bytes / 8
        # A worker that ever had all layers would show all their bytes; what it needs for its own is far from that.
        assert worker["fetch_peak_memory_bytes"] - worker["base_bytes"] < model_bytes / 1.5
        most = max(done["parts"][device]["peak_memory_bytes"] for done in result.metrics["rounds"])
        assert most - worker["base_bytes"] < model_bytes
