"""Our own dropout beside PyTorch's: what is dropped, what the rest becomes, and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from edgeswarm.model.dropout import attention, dropout
from edgeswarm.model.export import export_model

NONE_DROPPED = 1e-9  # less than a step: all are kept
SHAPE = (2, 3, 5, 8)


def drawn(shape: tuple[int, ...], *, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def three(*, trained: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, each time the same."""
    query, key, value = (drawn(SHAPE, seed=seed).requires_grad_(trained) for seed in range(3))
    return query, key, value


def seeded(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same draws at each call."""

    def call(*arguments: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return function(*arguments)

    return call


@given(probability=st.floats(0.01, 0.95), count=st.integers(1, 9))
def test_a_value_is_dropped_or_makes_up_for_those_that_are(probability: float, count: int) -> None:
    values = torch.arange(1.0, 1.0 + count)
    found = dropout(values, probability, True) / values
    kept = found[found != 0]
    assert kept == pytest.approx(torch.full_like(kept, 1 / (1 - probability)), rel=0.01)
    assert dropout(values, probability, False) is values


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_as_many_are_dropped_as_were_asked_for(probability: float) -> None:
    torch.manual_seed(0)
    found = dropout(torch.ones(400_001), probability, True)
    assert (found == 0).double().mean() == pytest.approx(probability, abs=0.003)
    assert found.mean() == pytest.approx(1.0, abs=0.006)
    # Each sixteen bits of a random number, and neighbours, by themselves.
    dropped = (found[:400_000] == 0).double().view(-1, 4)
    assert dropped.mean(dim=0) == pytest.approx(torch.full((4,), probability, dtype=torch.float64), abs=0.006)
    assert (dropped[:, 0] * dropped[:, 1]).mean() == pytest.approx(probability**2, abs=0.006)


def test_draws_follow_from_the_default_generator() -> None:
    values = torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(values, 0.5, True), dropout(values, 0.5, True)
    torch.manual_seed(3)
    assert torch.equal(dropout(values, 0.5, True), first)
    assert not torch.equal(first, second)


def test_the_gradient_of_dropout() -> None:
    assert torch.autograd.gradcheck(seeded(lambda values: dropout(values, 0.3, True)), drawn(SHAPE).requires_grad_())


MASKS = {
    "none": None,
    "booleans": drawn(SHAPE[:3] + SHAPE[2:3]) > -0.5,
    "added": drawn((SHAPE[2], SHAPE[2])),
    "a row of nothing": torch.ones(SHAPE[2], SHAPE[2], dtype=torch.bool).tril(-1),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_that_drops_nothing_is_pytorchs(mask: torch.Tensor | None, scale: float | None) -> None:
    ours, theirs = three(trained=True), three(trained=True)
    found = attention(*ours, attn_mask=mask, dropout_p=NONE_DROPPED, scale=scale)
    wanted = functional.scaled_dot_product_attention(*theirs, attn_mask=mask, scale=scale)
    torch.testing.assert_close(found, wanted)
    gradient = drawn(SHAPE, seed=9)
    torch.testing.assert_close(
        torch.autograd.grad(found, ours, gradient), torch.autograd.grad(wanted, theirs, gradient)
    )


def test_causal_attention() -> None:
    wanted = functional.scaled_dot_product_attention(*three(), is_causal=True)
    torch.testing.assert_close(attention(*three(), dropout_p=NONE_DROPPED, is_causal=True), wanted)


def test_attention_drops_weights() -> None:
    query, key = drawn(SHAPE, seed=1), drawn(SHAPE, seed=2)
    length = SHAPE[2]
    # Values by which the result is the weights themselves.
    value = torch.eye(length, dtype=torch.float64).expand(*SHAPE[:2], length, length)
    weights = functional.scaled_dot_product_attention(query, key, value)
    found = attention(query, key, value, None, 0.5)
    dropped = found == 0
    assert 0.3 < dropped.double().mean() < 0.7
    torch.testing.assert_close(found[~dropped], 2 * weights[~dropped])


@pytest.mark.thorough
@pytest.mark.parametrize("mask", [None, MASKS["booleans"]], ids=["all", "masked"])
def test_the_gradients_of_attention_that_drops(mask: torch.Tensor | None) -> None:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attention(query, key, value, mask, 0.4)

    assert torch.autograd.gradcheck(seeded(attend), three(trained=True))


def test_what_is_unusual_is_pytorchs() -> None:
    whole = torch.arange(4)
    assert torch.equal(dropout(whole.bool(), 0.0, True), whole.bool())
    assert torch.equal(dropout(torch.ones(3), 1.0, True), torch.zeros(3))
    assert torch.equal(attention(*three()), functional.scaled_dot_product_attention(*three()))
    # A mask that wants a gradient.
    bias = torch.zeros(SHAPE[2], SHAPE[2], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(attention(*three(), attn_mask=bias, dropout_p=0.5).sum(), bias)
    assert gradient.shape == bias.shape


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.before(x).view(-1, 4, 2, 4).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1).flatten(1)


@pytest.mark.parametrize(
    ("model", "made_input", "saved_bytes"),
    [
        # The linear layer's input, and a byte for each value.
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), torch.zeros(3, 8), 8 * 4 + 8),
        # Its input; queries, keys and values; 2 heads' weights of 4 x 4, and whether each is kept.
        (Attention(), torch.zeros(3, 4, 8), 32 * 4 + 3 * 32 * 4 + 32 * 4 + 32),
    ],
    ids=["dropout", "attention"],
)
def test_what_waits_for_the_backward_pass(model: nn.Module, made_input: torch.Tensor, saved_bytes: int) -> None:
    layers = export_model(model, (made_input,)).layer_graph.layers
    assert sum(layer.saved_bytes for layer in layers) == saved_bytes
