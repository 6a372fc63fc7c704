"""A pipeline of stages computes what the model computes: same bits, forward and backward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from edgeswarm.model.draws import DrawKey
from edgeswarm.model.export import export_model
from tests.models import SmallGPT

from .examples import EXAMPLES, backward, example
from .pipeline import Pipeline, all_tensors, bounds

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("batch", [1, 3, 7])
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_number_of_stages_has_the_bits_of_the_model(name: str, batch: int) -> None:
    """Outputs and gradients bit for bit; running statistics to a unit in the last place (they are merged in float64)."""
    given = example(name)
    plain = copy.deepcopy(given.model)
    args = given.batch(batch)
    expected = plain(*args)
    backward(expected)
    for stages in range(1, 6):
        graph = given.exported.layer_graph
        pipeline = Pipeline(given.exported, all_tensors(given.model, given.exported), bounds(graph, stages))
        outputs = pipeline.forward(args, batch=batch)
        _assert_same(outputs, expected)
        backward(outputs)
        pipeline.backward()
        gradients = pipeline.gradients()
        assert gradients.keys() == dict(plain.named_parameters()).keys()
        for parameter, value in plain.named_parameters():
            assert value.grad is not None
            assert torch.equal(gradients[parameter], value.grad), parameter
        buffers = pipeline.buffers()
        for buffer, expected_value in plain.named_buffers():
            torch.testing.assert_close(buffers[buffer], expected_value, rtol=2e-7, atol=1e-8)


def test_float64_running_statistics_agree_to_1e_12() -> None:
    given = example("digits")
    plain = copy.deepcopy(given.model).double()
    exported = export_model(plain, (given.batch(4)[0].double(),))
    pipeline = Pipeline(exported, all_tensors(plain, exported), bounds(exported.layer_graph, 3))
    for batch in (7, 5, 3):
        args = (given.batch(batch)[0].double(),)
        outputs = pipeline.forward(args, batch=batch)
        assert torch.equal(outputs, plain(*args))
        backward(outputs)
        pipeline.backward()
    for name, value in plain.named_buffers():
        torch.testing.assert_close(pipeline.buffers()[name], value, rtol=1e-12, atol=0)


def test_an_evaluation_graph_goes_through_the_same_cuts_of_tensors() -> None:
    given = example("digits")
    model = copy.deepcopy(given.model).eval()
    exported = export_model(model, given.batch(4))
    assert not exported.layer_graph.batch_norms
    pipeline = Pipeline(exported, all_tensors(model, exported), bounds(exported.layer_graph, 3))
    with torch.no_grad():
        expected = model(*given.batch(5))
    assert torch.equal(pipeline.forward(given.batch(5), batch=5), expected)


def test_dropout_draws_by_layer_and_samples_and_not_by_stage() -> None:
    model = SmallGPT(dropout=0.2).train()
    ids = torch.randint(0, 50, (4, 16))
    exported = export_model(model, (ids,))
    tensors = all_tensors(model, exported)
    key = DrawKey(seed=1, round=2, micro_batch=3, first_sample=0, end_sample=4)

    def run(stages: int, draw: DrawKey) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        pipeline = Pipeline(exported, tensors, bounds(exported.layer_graph, stages))
        logits = pipeline.forward((ids,), batch=4, draw=draw)
        backward(logits)
        pipeline.backward()
        return logits, pipeline.gradients()

    logits, gradients = run(1, key)
    for stages in (2, 3, 5):
        again, gradients_again = run(stages, key)
        assert torch.equal(logits, again)
        assert all(torch.equal(gradients[name], gradients_again[name]) for name in gradients)
    other = DrawKey(seed=1, round=2, micro_batch=4, first_sample=0, end_sample=4)
    assert not torch.equal(logits, run(2, other)[0])


class _Awkward(nn.Module):
    """What user's code brings: changes in place, no_grad, constants, masks, sizes that are no multiple of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.scale = torch.full((6,), 0.5)
        self.register_buffer("offset", torch.ones(6), persistent=False)
        self.unused = nn.Linear(3, 3)

    def forward(self, first: torch.Tensor, *, second: torch.Tensor) -> Any:
        first.mul_(2)  # the caller's tensor
        hidden = self.layers[0](first) * self.scale + torch.tensor([1.0, 2, 3, 4, 5, 6])
        mask = torch.zeros(6, 6)
        mask[:, 1:] = 1
        for layer in list(self.layers)[1:]:
            hidden += (layer(hidden @ mask) * 2).mul_(0.5)  # in place all through the model
        with torch.no_grad():
            centre = self.frozen(hidden)
        half = torch.ones(first.shape[0] // 2 + 1).sum()
        hidden = hidden - centre.detach() + self.frozen(second) + self.offset
        pairs = hidden.reshape(-1, 3)
        return [hidden, (pairs, first)], {"half": half, "weight": self.layers[0].weight, "none": None}


@pytest.mark.parametrize("batch", [1, 5])
def test_awkward_code_is_cut_and_stays_exact(batch: int) -> None:
    torch.manual_seed(0)
    model = _Awkward()
    exported = export_model(model, (torch.randn(2, 6),), {"second": torch.randn(2, 6)})
    graph = exported.layer_graph
    assert len(graph.layers) >= 4
    assert set(graph.unused) == {"unused.weight", "unused.bias"}
    assert not graph.tensors["frozen.weight"].trainable
    assert not graph.tensors["offset"].persistent
    first, second = torch.randn(batch, 6), torch.randn(batch, 6)
    expected = model(first.clone(), second=second)
    backward(expected)
    for stages in (1, 2, 4):
        pipeline = Pipeline(exported, all_tensors(model, exported), bounds(graph, stages))
        outputs = pipeline.forward((first,), {"second": second}, batch=batch)
        _assert_same(outputs, expected)
        backward(outputs)
        pipeline.backward()
        gradients = pipeline.gradients()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                assert name not in gradients
            else:
                torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-6, atol=1e-6)


def _assert_same(found: Any, expected: Any) -> None:
    found_leaves, found_shape = pytree.tree_flatten(found)
    expected_leaves, expected_shape = pytree.tree_flatten(expected)
    assert found_shape == expected_shape
    for ours, theirs in zip(found_leaves, expected_leaves, strict=True):
        assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs
