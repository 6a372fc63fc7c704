"""How many rows of a table of words samples meet, and what of its gradient the planner takes to travel."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm_coordinator.met_rows import count_met_rows, tables_of_inputs
from edgeswarm_coordinator.model_facts import model_costs
from edgeswarm_coordinator.preparation import load, open_data, prepare
from edgeswarm_coordinator.simulator.accounting import unmet_gradient_bytes

WORDS, WIDTH = 5000, 64


class Reader(nn.Module):
    """words: looked up by the input alone. positions: by places, which no input tells. kinds: a small table."""

    def __init__(self, *, tied: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.words.weight.requires_grad_(not frozen)
        self.positions = nn.Embedding(WORDS, WIDTH)
        self.kinds = nn.Embedding(7, WIDTH)
        self.last = nn.Linear(WIDTH, WORDS)
        if tied:
            self.last.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens.view(-1, tokens.shape[1], 1)).squeeze(2)
        places = self.positions(torch.arange(tokens.shape[1]))
        scores: torch.Tensor = self.last((words + places + self.kinds(kinds)).mean(1))
        return scores


BATCH = (torch.zeros(4, 6, dtype=torch.int64), torch.zeros(4, 6, dtype=torch.int64))


@functools.cache
def graph_of_reader() -> LayerGraph:
    return export_model(Reader(), BATCH).layer_graph


def test_tables_are_those_that_an_input_alone_looks_up() -> None:
    assert tables_of_inputs(graph_of_reader()) == {"words.weight": 0}


@pytest.mark.parametrize("why", ["tied", "frozen"])
def test_a_table_with_another_gradient_or_none_is_no_such_table(why: str) -> None:
    model = Reader(tied=why == "tied", frozen=why == "frozen")
    assert tables_of_inputs(export_model(model, BATCH).layer_graph) == {}


def test_a_table_that_a_buffer_looks_up_is_no_such_table() -> None:
    """As positions of Hugging Face's CLIP are."""

    class Positions(nn.Module):
        places: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.arange(6))
            self.positions = nn.Embedding(WORDS, WIDTH)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = values + self.positions(self.places)
            return moved

    graph = export_model(Positions(), (torch.rand(4, 6, WIDTH),)).layer_graph
    assert tables_of_inputs(graph) == {}


def test_rows_are_counted_and_beyond_the_samples_they_grow_on_as_before() -> None:
    graph = graph_of_reader()
    tokens = np.arange(8).repeat(2).reshape(4, 4) * 10  # two new words in each of four samples

    def counted(mini_batch: int) -> tuple[tuple[int, int], ...]:
        return count_met_rows(graph, {"words.weight": 0}, {0: tokens}, mini_batch=mini_batch)["words.weight"]

    assert counted(3) == ((1, 2), (2, 4), (3, 6))
    assert counted(4) == ((1, 2), (2, 4), (4, 8))
    assert counted(64) == ((1, 2), (2, 4), (4, 8), (64, 128))
    assert counted(10**6)[-1] == (10**6, WORDS)


@pytest.mark.parametrize(("wire_dtype", "number_bytes"), [(None, 4), ("bfloat16", 2)])
def test_only_met_rows_travel_and_all_of_the_rest(wire_dtype: str | None, number_bytes: int) -> None:
    graph = graph_of_reader()
    whole = model_costs(graph, wire_dtype=wire_dtype)
    costs = model_costs(graph, wire_dtype=wire_dtype, met_rows={"words.weight": ((2, 10), (8, 30))})
    (layer,) = (layer for layer in costs.layers if layer.met_gradient_bytes)
    row_bytes = WIDTH * number_bytes
    assert layer.met_gradient_bytes == ((2, 10 * row_bytes), (8, 30 * row_bytes))
    last = costs.layer_count
    assert whole.gradient_bytes(0, last) - costs.gradient_bytes(0, last) == (WORDS - 30) * row_bytes
    assert unmet_gradient_bytes(costs, 0, last, samples=8) == 0
    assert unmet_gradient_bytes(costs, 0, last, samples=5) == 10 * row_bytes
    assert unmet_gradient_bytes(costs, 0, last, samples=1) == 25 * row_bytes
    assert costs.param_bytes(0, last) == whole.param_bytes(0, last)


@pytest.mark.parametrize(("state_factor", "doubled"), [(0.0, 0), (2.0, 2 * WORDS * WIDTH * 4)])
def test_a_tables_gradient_is_there_once_but_in_adams_step(state_factor: float, doubled: int) -> None:
    graph = export_model(nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Flatten()), BATCH[:1]).layer_graph
    met = {"0.weight": ((8, 30),)}
    whole, costs = (
        model_costs(graph, wire_dtype=None, optimizer_state_factor=state_factor, met_rows=rows) for rows in ({}, met)
    )
    assert whole.layers[0].workspace_bytes == max(doubled, WORDS * WIDTH * 4)
    assert costs.layers[0].workspace_bytes == doubled


JOB = textwrap.dedent(
    """
    import torch
    import edgeswarm

    def dataset():
        return [(torch.arange(5 * i, 5 * i + 5), i % 3) for i in range(1000)]

    job = edgeswarm.Job(
        model=lambda: torch.nn.Sequential(torch.nn.Embedding(5000, 64), torch.nn.Flatten(), torch.nn.Linear(320, 3)),
        dataset=dataset,
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda named: torch.optim.SGD([p for _, p in named], lr=0.1),
        batch_size=512,
        epochs=2,
    )
    """
)


def test_a_job_is_prepared_with_the_rows_of_its_own_samples(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    loaded = load(path)
    prepared = prepare(loaded, open_data(loaded), snapshot_folder=tmp_path)
    assert prepared.met_rows["0.weight"] == (
        *((size, 5 * size) for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        (512, 2560),
    )
