"""A training that is stopped after a round, packed, and prepared anew goes on with the bits of one that never stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.job import Job
from edgeswarm.model.export import export_model
from edgeswarm.plan import Stage
from edgeswarm.snapshot import unpack_layer

from .lan import Lan
from .stage_run import StageRun, layer_states

A, B, C = "a-000001", "b-000002", "c-000003"
SAMPLES, BATCH, EPOCHS, SEED = 22, 8, 3, 7  # a ragged round of 6 ends each epoch
STOPS = (1, 4)  # in the middle of an epoch, and one round after one began
Groups = Sequence[Mapping[str, int]]


class Data:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator)
        self.labels = torch.randint(0, 3, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


class Model(nn.Module):
    """Batch statistics by momentum and by cumulative average, dropout, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.norm, self.second = nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.drop, self.average = nn.Dropout(0.4), nn.BatchNorm1d(8, momentum=None)
        self.third = nn.Linear(8, 3)

    def forward(self, value: Tensor) -> Tensor:
        value = torch.tanh(self.norm(self.frozen(value)))
        value = self.average(self.drop(torch.tanh(self.second(value))))
        scores: Tensor = self.third(value)
        return scores


def momentum(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.1, momentum=0.9, nesterov=True)


def adamw(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    weights = [parameter for name, parameter in named if name.endswith("weight")]
    others = [parameter for name, parameter in named if not name.endswith("weight")]
    return torch.optim.AdamW([{"params": weights, "lr": 0.02}, {"params": others, "weight_decay": 0.0}], amsgrad=True)


def noisy(sample: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return sample[0] + 0.1 * torch.randn(6, generator=generator), sample[1]


def layers_at_the_end(
    folder: Path,
    groups: Groups,
    job: Job,
    *,
    first_round: int = 0,
    layers: Mapping[int, bytes] | None = None,
    stops: Sequence[int] = (),
) -> dict[int, dict[int, bytes]]:
    """Trains to the end; the packed layers there and at each of `stops`, by round. layers: what it begins with."""
    torch.manual_seed(SEED)
    model = job.model()
    graph = export_model(model, (torch.zeros(4, 6),)).layer_graph
    bounds = [round(len(graph.layers) * stage / len(groups)) for stage in range(len(groups) + 1)]
    stages = [Stage(first, end, shares, 2) for first, end, shares in zip(bounds[:-1], bounds[1:], groups, strict=True)]
    packed = {}
    with Lan(folder, [name for group in groups for name in group]) as lan:
        lan.connect()
        run = StageRun(
            lan, job, graph, stages, layer_states(graph, model) if layers is None else layers, first_round=first_round
        )
        begin = first_round
        for end in (*stops, run.rounds):
            lan.at_once(partial(run.train, first_round=begin, end_round=end))
            packed[end] = run.packed_layers(end)
            begin = end
        run.close()
    return packed


@pytest.mark.thorough
@pytest.mark.parametrize("groups", [[{A: 4}], [{A: 4}, {B: 4}], [{A: 4}, {B: 2, C: 2}]])
@pytest.mark.parametrize("optimizer", [momentum, adamw])
def test_what_is_resumed_has_the_bits_of_what_never_stopped(
    tmp_path: Path, groups: Groups, optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    job = Job(
        model=Model,
        dataset=Data,
        loss=functional.cross_entropy,
        optimizer=optimizer,
        batch_size=BATCH,
        epochs=EPOCHS,
        seed=SEED,
        transform=noisy,
        learning_rate_schedule=lambda number: 1 / (1 + 0.3 * number),
        clip_gradient_norm=0.5,
        data="local",
    )
    whole = layers_at_the_end(tmp_path / "whole", groups, job, stops=STOPS)
    (end,) = whole.keys() - set(STOPS)
    for stop in STOPS:
        folder = tmp_path / f"from {stop}"
        resumed = layers_at_the_end(folder, groups, job, first_round=stop, layers=whole[stop])
        assert resumed[end] == whole[end]
    states = [unpack_layer(layer) for layer in whole[STOPS[0]].values()]
    assert any(state.optimizer for state in states)  # it was there to be lost
