"""Lookups whose gradient is that of the rows met alone: sums to the bit as PyTorch has them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from edgeswarm.model.embedding_rows import embed
from edgeswarm.model.export import export_model
from edgeswarm.model.stage import StageModule

ROWS, WIDTH = 40, 3


def table() -> torch.Tensor:
    """With a sum of gradients that is not zero any more."""
    made = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
    made.grad = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    return made


def scale(shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


@given(
    tokens=st.lists(st.integers(0, ROWS - 1), max_size=ROWS + 5),
    padding=st.sampled_from([-1, 0, 7, ROWS - 1]),
    rounds=st.integers(1, 3),
)
def test_the_sums_of_gradients_have_torchs_bits(tokens: list[int], padding: int, rounds: int) -> None:
    indices = torch.tensor(tokens, dtype=torch.int64)
    mine, theirs = table(), table()
    for _ in range(rounds):
        for leaf, output in (
            (mine, embed(mine, indices, padding)),
            (theirs, functional.embedding(indices, theirs, None if padding == -1 else padding)),
        ):
            torch.autograd.backward([(output * scale(output.shape)).sum()])
            assert leaf.grad is not None
            assert leaf.grad.layout is torch.strided
    assert mine.grad is not None
    assert theirs.grad is not None
    assert torch.equal(mine.grad, theirs.grad)


def test_the_gradient_goes_into_the_sum_that_is_there_and_tells_that_it_did() -> None:
    leaf = table()
    told: list[torch.Tensor] = []
    there = leaf.grad
    leaf.register_post_accumulate_grad_hook(told.append)  # type: ignore[no-untyped-call]
    torch.autograd.backward([embed(leaf, torch.tensor([[1, 2], [2, 5]])).sum()])
    assert leaf.grad is there
    assert len(told) == 1


def test_no_other_tensor_as_large_as_the_table_is_made() -> None:
    made_by_address: dict[int, int] = {}

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            made = function(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor) and made.layout is torch.strided:
                made_by_address[made.data_ptr()] = made.numel()
            return made

    leaf = table()
    assert leaf.grad is not None
    output = embed(leaf, torch.tensor([3, 3, 9])).sum()
    with Watch():  # type: ignore[no-untyped-call]
        torch.autograd.backward([output])
    assert made_by_address.pop(leaf.grad.data_ptr()) == leaf.numel()
    assert max(made_by_address.values()) == 3 * WIDTH


@pytest.mark.parametrize("why", ["no sum yet", "more tokens than rows", "computed from something else", "not trained"])
def test_elsewhere_it_is_torchs_own(why: str) -> None:
    def gradients(own: bool) -> torch.Tensor | None:
        leaf = table()
        if why == "no sum yet":
            leaf.grad = None
        if why == "not trained":
            leaf.requires_grad_(False)
        looked_up = leaf * 2 if why == "computed from something else" else leaf
        indices = torch.arange(2 * ROWS if why == "more tokens than rows" else 4) % ROWS
        output = embed(looked_up, indices) if own else functional.embedding(indices, looked_up)
        if output.requires_grad:
            torch.autograd.backward([(output * scale(output.shape)).sum()])
        return leaf.grad

    mine, theirs = gradients(own=True), gradients(own=False)
    assert mine is theirs is None or torch.equal(mine, theirs)  # type: ignore[arg-type]


class TiedWords(nn.Module):
    """Words' vectors are the last layer's weights, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(6, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.words(tokens) + self.positions.weight[: tokens.shape[1]])
        return functional.linear(hidden, self.words.weight)


def test_a_stage_with_tied_weights_sums_both_gradients_over_micro_batches() -> None:
    model = TiedWords()
    tokens = torch.randint(0, ROWS, (4, 6), generator=torch.Generator().manual_seed(3))
    exported = export_model(model, (tokens,))
    layers = len(exported.layer_graph.layers)
    stage = StageModule(
        exported.layer_graph.stage(0, layers), {name: p.detach().clone() for name, p in model.named_parameters()}
    )
    for parameter in stage.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    for part in (tokens[:2], tokens[2:]):
        (scores,) = stage.forward(2, [part], draw=None)
        torch.autograd.backward([scores.square().sum()])
        torch.autograd.backward([model(part).square().sum()])
    for name, parameter in model.named_parameters():
        mine = stage.parameters[name].grad
        assert mine is not None
        assert parameter.grad is not None
        assert torch.allclose(mine, parameter.grad, rtol=1e-5, atol=1e-6)
