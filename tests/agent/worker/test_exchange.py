from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from edgeswarm.errors import EdgeswarmError
from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.stage import StageModule
from edgeswarm.plan import Plan, Stage
from edgeswarm.routes import Routes
from edgeswarm.schedule.policy import Action, ActionKind
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame
from edgeswarm_agent.worker.epoch_context import EpochContext
from edgeswarm_agent.worker.exchange import StageExchange
from edgeswarm_agent.worker.timing import Progress, RoundClock

from .lan import Lan, WorkerEnd

A, B, C, D = "a-000001", "b-000002", "c-000003", "d-000004"
GROUPS: list[Mapping[str, int]] = [{A: 3, B: 1}, {C: 2, D: 2}]
# Of a micro-batch of four samples, and of the ragged one of three after it.
MINE = {A: [slice(0, 3), slice(0, 2)], B: [slice(3, 4), slice(2, 3)], C: [slice(0, 2), slice(0, 2)]}
MINE[D] = [slice(2, 4), slice(2, 3)]


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))


class Weighted(nn.Module):
    """The last layer reads an input of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 5), nn.Linear(5, 1)

    def forward(self, values: Tensor, weights: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.first(values))) * weights
        return found


@functools.cache
def graph_of_it() -> LayerGraph:
    return export_model(small_model(), (torch.zeros(4, 2),)).layer_graph


@functools.cache
def graph_of_weighted() -> LayerGraph:
    return export_model(Weighted(), (torch.zeros(4, 2), torch.zeros(4, 1))).layer_graph


def exchanges(
    lan: Lan,
    *,
    gradients: bool = True,
    model: nn.Module | None = None,
    graph: LayerGraph | None = None,
    wire_dtype: str | None = None,
) -> dict[str, StageExchange]:
    model, graph = model or small_model(), graph or graph_of_it()
    middle, end = 1, len(graph.layers)
    plan = Plan(
        planner="by hand",
        micro_batch=4,
        micro_batches=2,
        stages=(Stage(0, middle, GROUPS[0], 2), Stage(middle, end, GROUPS[1], 1)),
    )
    kinds = (FrameKind.FORWARD, FrameKind.BACKWARD) if gradients else (FrameKind.EVALUATE, FrameKind.EVALUATED)
    made = {}
    for name, worker in lan.ends.items():
        stage = plan.stages[plan.stage_of(name)]
        shared = EpochContext(
            epoch=1,
            seed=0,
            switch=worker.switch,
            mailbox=worker.mailbox,
            egress=worker.egress,
            clock=RoundClock(),
            progress=Progress(),
            wire_dtype=wire_dtype,
        )
        module = StageModule(graph.stage(stage.first_layer, stage.end_layer), dict(model.named_parameters()))
        made[name] = StageExchange(
            module, Routes(plan, name), shared=shared, forward=kinds[0], backward=kinds[1], gradients=gradients
        )
        assert made[name].begin_round(7, (4, 3)) == [0, 1]
    return made


def at_first_stage(name: str) -> bool:
    return name in GROUPS[0]


def test_values_and_gradients_go_by_overlaps_of_sample_intervals(tmp_path: Path) -> None:
    values = [torch.randn(4, 5), torch.randn(3, 5)]
    gradients = [torch.randn(4, 5), torch.randn(3, 5)]
    with Lan(tmp_path, [A, B, C, D]) as lan:
        lan.connect()
        made = exchanges(lan)

        def talk(end: WorkerEnd) -> None:
            exchange = made[end.name]
            for micro_batch, mine in enumerate(MINE[end.name]):
                if at_first_stage(end.name):
                    exchange.send_outputs(micro_batch, [values[micro_batch][mine]])
                    (gradient,) = exchange.take_gradients(micro_batch).values()
                    assert torch.equal(gradient, gradients[micro_batch][mine])
                else:
                    (taken,) = exchange.take_inputs(micro_batch)
                    assert torch.equal(taken, values[micro_batch][mine])
                    exchange.send_gradients(micro_batch, {0: gradients[micro_batch][mine]})

        lan.at_once(talk)


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
def test_what_is_narrowed_is_computed_and_no_input_of_the_model(wire_dtype: str, tmp_path: Path) -> None:
    """Labels, say, of a model that computes its loss itself."""
    graph = graph_of_weighted()
    sent = [torch.randn(4, 1 if value.is_input else 5) + 1000.0 for value in graph.cuts[1]]
    with Lan(tmp_path, [A, B, C, D]) as lan:
        lan.connect()
        made = exchanges(lan, model=Weighted(), graph=graph, wire_dtype=wire_dtype)
        for name in (A, B):
            made[name].send_outputs(0, [tensor[MINE[name][0]] for tensor in sent])
        for name in (C, D):
            for value, tensor, taken in zip(graph.cuts[1], sent, made[name].take_inputs(0), strict=True):
                assert torch.equal(taken, tensor[MINE[name][0]]) == value.is_input
    assert {value.is_input for value in graph.cuts[1]} == {True, False}


def test_where_one_peer_has_no_gradient_it_counts_as_zeros_and_where_none_has_there_is_none(tmp_path: Path) -> None:
    with Lan(tmp_path, [A, B, C, D]) as lan:
        lan.connect()
        made = exchanges(lan)
        made[C].send_gradients(0, {0: torch.ones(2, 5)})
        made[D].send_gradients(0, {0: None})
        (gradient,) = made[A].take_gradients(0).values()  # samples 0 and 1 of C, 2 of D
        assert gradient.tolist() == [[1.0] * 5, [1.0] * 5, [0.0] * 5]
        assert made[B].take_gradients(0) == {}


def test_a_backward_comes_before_a_forward_whose_samples_are_late(tmp_path: Path) -> None:
    class Supply:
        doing = Progress()
        there = frozenset({0})

        def has(self, round_number: int, micro_batch: int) -> bool:
            return round_number == 7 and micro_batch in self.there

    supply, done = Supply(), queue.SimpleQueue[Action]()

    def next_of_a() -> tuple[ActionKind, int]:
        action = done.get(timeout=10)
        return action.kind, action.micro_batch

    with Lan(tmp_path, [A, B, C, D]) as lan:
        lan.connect()
        made = exchanges(lan)
        following = threading.Thread(
            target=lambda: made[A].follow_schedule([0, 1], done.put, samples=supply), daemon=True
        )
        following.start()
        assert next_of_a() == (ActionKind.FORWARD, 0)
        for name in (C, D):
            made[name].send_gradients(0, {0: torch.ones(2, 5)})
        assert next_of_a() == (ActionKind.BACKWARD, 0)
        # Nothing else can come now: it is run, and waits for its samples itself.
        assert next_of_a() == (ActionKind.FORWARD, 1)
        made[C].send_gradients(1, {0: torch.ones(2, 5)})
        assert next_of_a() == (ActionKind.BACKWARD, 1)
        following.join(timeout=10)
        assert not following.is_alive()


def test_a_forward_goes_on_as_soon_as_its_samples_are_there(tmp_path: Path) -> None:
    there: set[int] = {0}

    class Supply:
        doing = Progress()

        def has(self, round_number: int, micro_batch: int) -> bool:
            return micro_batch in there

    done = queue.SimpleQueue[Action]()
    with Lan(tmp_path, [A, B, C, D]) as lan:
        lan.connect()
        made = exchanges(lan)
        following = threading.Thread(
            target=lambda: made[A].follow_schedule([0, 1], done.put, samples=Supply()), daemon=True
        )
        following.start()
        assert done.get(timeout=10) == Action(ActionKind.FORWARD, 0)
        with pytest.raises(queue.Empty):
            done.get(timeout=0.1)  # it waits for gradients or samples, whichever come first
        there.add(1)
        lan.ends[A].mailbox.look_again()
        assert done.get(timeout=10) == Action(ActionKind.FORWARD, 1)
        for name, micro_batch in ((C, 0), (D, 0), (C, 1)):
            made[name].send_gradients(micro_batch, {0: torch.ones(2, 5)})
        following.join(timeout=10)
        assert not following.is_alive()


def test_without_gradients_one_empty_frame_answers_each_micro_batch(tmp_path: Path) -> None:
    with Lan(tmp_path, [A, B, C, D]) as lan:
        lan.connect()
        made = exchanges(lan, gradients=False)
        for name in (C, D):
            made[name].send_gradients(0, {})
        assert made[A].take_gradients(0) == {}
        key = FrameKey(FrameKind.EVALUATED, 7, 0, 0, 3, 4)
        assert lan.ends[B].mailbox.take((D, key)).shape == (0,)


@pytest.mark.parametrize("sent", [torch.zeros(2, 4), torch.zeros(2, 5, dtype=torch.float64), torch.zeros(0)])
def test_a_frame_that_is_not_the_plans_is_an_error_that_names_its_sender(tmp_path: Path, sent: Tensor) -> None:
    with Lan(tmp_path, [A, B, C, D]) as lan:
        lan.connect()
        made = exchanges(lan)
        key = FrameKey(FrameKind.FORWARD, 7, 0, 0, 0, 2)
        lan.ends[A].egress.send(C, OutgoingFrame(key, sent, epoch=1))
        with pytest.raises(EdgeswarmError, match=rf"{A} sent .* the plan says \(2, 5\) of float32"):
            made[C].take_inputs(0)
