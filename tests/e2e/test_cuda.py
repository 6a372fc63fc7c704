"""Jobs on a graphics card, alone and beside a processor: the same weights, times that are the card's, memory as planned.

card, card-2: agents that compute on the card     processor: one that may not see it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.controller import list_devices
from edgeswarm_coordinator.demo.cluster import AgentSpec, ThrowawayCluster
from tests.card_here import needs_card

from . import small_job
from .small_job import SmallJob, layers_of, plain_training, plan_of, relative_distance, train_on

pytestmark = [pytest.mark.e2e, *needs_card]

WITHOUT_CARD = {"CUDA_VISIBLE_DEVICES": ""}
WIDTH = 4096
# Its first part computes for milliseconds on any card and sends little.
HEAVY = SmallJob(
    model=f"torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, {WIDTH}), torch.nn.ReLU(), "
    + ", ".join(f"torch.nn.Linear({WIDTH}, {WIDTH}), torch.nn.ReLU()" for _ in range(6))
    + f", torch.nn.Linear({WIDTH}, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))",
    inputs=small_job.IMAGES,
    samples=4096,
    batch_size=1024,
    epochs=3,
)


@pytest.fixture(scope="module")
def cards() -> Iterator[ThrowawayCluster]:
    agents = (AgentSpec("card"), AgentSpec("card-2"), AgentSpec("processor", environment=WITHOUT_CARD))
    with ThrowawayCluster(agents, mdns=False) as cluster:
        yield cluster


def test_a_device_says_what_it_computes_on(cards: ThrowawayCluster) -> None:
    devices = {device.node_id: device for device in list_devices(cards.discovery(), folders=cards.folders)}
    card, processor = devices[cards.node_id("card")], devices[cards.node_id("processor")]
    assert (card.accelerator, processor.accelerator) == ("cuda", "cpu")
    assert card.hardware["card"] == torch.cuda.get_device_name(0)
    assert "card" not in processor.hardware
    assert card.memory_budget_bytes <= torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize(
    "groups",
    [({"card": 5}, {"processor": 5}), ({"processor": 4}, {"card": 4}), ({"card": 3, "processor": 1}, {"card-2": 4})],
    ids=["card|processor", "processor|card", "card+processor|card"],
)
@pytest.mark.parametrize("job", [small_job.CNN, small_job.TRANSFORMER], ids=["cnn", "transformer"])
def test_a_card_gives_the_weights_of_a_plain_loop(
    cards: ThrowawayCluster, tmp_path: Path, job: SmallJob, groups: tuple[Mapping[str, int], ...]
) -> None:
    job = dataclasses.replace(job, dtype="float64", optimizer=small_job.ADAMW)
    path = job.write(tmp_path / "job")
    plan = plan_of(cards, groups, layers=layers_of(path), job=job)
    result = train_on(cards, path, plan=plan, output=tmp_path / "out")
    wanted, _ = plain_training(path)
    largest, whole = relative_distance(load_file(result.folder / "model.safetensors"), wanted.state_dict())
    assert largest < 1e-9, whole


def test_computing_counts_for_the_part_that_asked_for_it(cards: ThrowawayCluster, tmp_path: Path) -> None:
    path = HEAVY.write(tmp_path / "job")
    layers = layers_of(path)
    equal = plan_of(cards, ({"card": 256}, {"card-2": 256}), layers=layers, job=HEAVY)
    first, last = equal.stages
    plan = dataclasses.replace(
        equal,
        stages=(dataclasses.replace(first, end_layer=layers - 2), dataclasses.replace(last, first_layer=layers - 2)),
    )
    result = train_on(cards, path, plan=plan, output=tmp_path / "out")
    of_first = [done["parts"][cards.node_id("card")] for done in result.metrics["rounds"][1:]]
    computing = sum(part["forward_seconds"] + part["backward_seconds"] for part in of_first)
    assert computing > 2 * sum(part["send_seconds"] for part in of_first)


def test_memory_is_as_planned(cards: ThrowawayCluster, tmp_path: Path) -> None:
    path = HEAVY.write(tmp_path / "job")
    only = dataclasses.replace(cards.discovery(), devices=("card",))
    result = train_on(cards, path, plan=None, output=tmp_path / "out", discovery=only)
    device = cards.node_id("card")
    assert result.plan.predicted is not None
    planned = result.plan.predicted.memory_bytes[device]
    most = max(done["parts"][device]["peak_memory_bytes"] for done in result.metrics["rounds"])
    assert planned / 1.25 < most < planned * 1.1, (planned, most, result.metrics["set_up"]["workers"])


ONE_CARD = ({"card": 4},)
WRONG_LABEL = "torch.where(torch.arange({samples}) == 41, 10, torch.arange({samples}) % 10)"
WEIGHTS = "torch.arange(1.0, 11.0)"


def trained_on_card(cards: ThrowawayCluster, folder: Path, job: SmallJob) -> int:
    """How many rounds it ran."""
    path = job.write(folder / "job")
    plan = plan_of(cards, ONE_CARD, layers=layers_of(path), job=job)
    return len(train_on(cards, path, plan=plan, output=folder / "out").metrics["rounds"])


def test_a_label_out_of_range_is_named_though_the_card_tells_late(cards: ThrowawayCluster, tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="Item 41 of the dataset has the label 10") as caught:
        trained_on_card(cards, tmp_path, dataclasses.replace(small_job.CNN, targets=WRONG_LABEL))
    assert caught.value.code is ErrorCode.DATA_FAILED


def test_weights_of_classes_go_to_the_card_with_a_module(cards: ThrowawayCluster, tmp_path: Path) -> None:
    weighted = dataclasses.replace(small_job.CNN, loss=f"torch.nn.CrossEntropyLoss(weight={WEIGHTS})")
    assert trained_on_card(cards, tmp_path, weighted) == 20


def test_those_of_a_function_are_named(cards: ThrowawayCluster, tmp_path: Path) -> None:
    loss = f"lambda output, targets: functional.cross_entropy(output, targets, weight={WEIGHTS})"
    with pytest.raises(EdgeswarmError, match="not on the card of card-") as caught:
        trained_on_card(cards, tmp_path, dataclasses.replace(small_job.CNN, loss=loss))
    assert caught.value.code is ErrorCode.JOB_INVALID
