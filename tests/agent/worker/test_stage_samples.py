from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.export import export_model
from edgeswarm.model.stage import StageModule
from edgeswarm.plan import Plan, Stage
from edgeswarm.routes import Routes
from edgeswarm.samples import SampleOrder
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm_agent.worker.feed import Batch, FeedRequest
from edgeswarm_agent.worker.stage_samples import (
    evaluation_requests,
    feed_requests,
    sample_part,
    stage_inputs,
    to_device,
)

PLAN = Plan(
    planner="by hand",
    micro_batch=4,
    micro_batches=2,
    stages=(Stage(0, 1, {"a": 3, "b": 1}, 3), Stage(1, 2, {"c": 4}, 2), Stage(2, 3, {"d": 4}, 1)),
)


def test_inputs_go_to_the_first_stage_and_targets_to_the_last() -> None:
    parts = {name: sample_part(Routes(PLAN, name)) for name in ("a", "b", "c", "d")}
    assert parts == {"a": SamplePart.INPUTS, "b": SamplePart.INPUTS, "c": None, "d": SamplePart.TARGETS}
    alone = Plan(planner="by hand", micro_batch=4, micro_batches=2, stages=(Stage(0, 3, {"a": 4}, 1),))
    assert sample_part(Routes(alone, "a")) is SamplePart.BOTH


def test_the_replicas_of_a_stage_ask_for_every_sample_of_every_epoch_once() -> None:
    order = SampleOrder(11, 8, seed=3)  # rounds of 8 and of 3
    for epoch in (0, 1):
        asked = [
            request
            for name in ("a", "b")
            for request in feed_requests(Routes(PLAN, name), order, 2 * epoch, 2 * epoch + 2)
        ]
        assert {request.epoch for request in asked} == {epoch}
        assert sorted(index for request in asked for index in request.indices) == list(range(11))
    everything = list(feed_requests(Routes(PLAN, "d"), order, 0, 4))
    # Whoever begins later asks for what comes then.
    assert list(feed_requests(Routes(PLAN, "d"), order, 3, 4)) == [r for r in everything if r.round == 3]
    assert [i for r in everything if r.round < 2 for i in r.indices] == order.permutation(0).tolist()


def test_an_evaluation_asks_for_all_items_in_order() -> None:
    assert list(evaluation_requests(Routes(PLAN, "a"), 9, 6)) == [
        FeedRequest(6, 0, (0, 1, 2), 0),
        FeedRequest(6, 1, (4, 5, 6), 0),
        FeedRequest(6, 2, (8,), 0),  # too few for b to have one
    ]
    assert list(evaluation_requests(Routes(PLAN, "b"), 9, 6)) == [
        FeedRequest(6, 0, (3,), 0),
        FeedRequest(6, 1, (7,), 0),
    ]


class Target(NamedTuple):
    label: Any
    name: Any


def test_targets_keep_their_form_on_another_device() -> None:
    texts = ("one", "two")
    targets = [
        {"a": Target(torch.zeros(2), texts)},
        (torch.zeros(2), Target(MappingProxyType({"b": torch.zeros(2)}), 1)),
    ]
    moved = to_device(targets, torch.device("meta"))
    first, second = moved[0]["a"], moved[1][1]
    assert isinstance(first, Target)
    assert isinstance(second, Target)
    assert (first.name, second.name) == (texts, 1)
    assert {tensor.device.type for tensor in (first.label, moved[1][0], second.label["b"])} == {"meta"}


def test_samples_of_another_shape_than_the_graphs_are_named() -> None:
    """In a stage by itself nothing else would notice: sizes that the model reads from its input are constants there."""
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool1d(3), torch.nn.Flatten(), torch.nn.Linear(6, 2))
    graph = export_model(model, (torch.zeros(4, 2, 5),)).layer_graph
    module = StageModule(graph.stage(0, len(graph.layers)), dict(model.named_parameters()))
    (inputs,) = stage_inputs(module, Batch(inputs=torch.ones(3, 2, 5), indices=(7, 8, 9)))
    assert inputs.shape == (3, 2, 5)
    with pytest.raises(EdgeswarmError, match=r"Samples 7, 8, 9 and others make an input of shape \(2, 6\)") as caught:
        stage_inputs(module, Batch(inputs=torch.ones(4, 2, 6), indices=(7, 8, 9, 10)))
    assert caught.value.code is ErrorCode.DATA_FAILED


def test_samples_of_another_type_than_the_graphs_are_named_and_whole_numbers_are_fractions() -> None:
    model = torch.nn.Linear(2, 2)
    graph = export_model(model, (torch.zeros(4, 2),)).layer_graph
    module = StageModule(graph.stage(0, len(graph.layers)), dict(model.named_parameters()))
    (inputs,) = stage_inputs(module, Batch(inputs=torch.tensor([[1, 2], [3, 4]]), indices=(7, 8)))
    assert inputs.dtype == torch.float32
    with pytest.raises(
        EdgeswarmError, match="Samples 7, 8 make an input of float64, and the model was exported with"
    ) as caught:
        stage_inputs(module, Batch(inputs=torch.zeros(2, 2, dtype=torch.float64), indices=(7, 8)))
    assert caught.value.code is ErrorCode.DATA_FAILED
    with pytest.raises(
        EdgeswarmError, match=r"Samples 7, 8 are made otherwise .* is not a sequence of 1 items"
    ) as caught:
        stage_inputs(module, Batch(inputs=(torch.zeros(2, 2), None), indices=(7, 8)))
    assert caught.value.code is ErrorCode.DATA_FAILED
