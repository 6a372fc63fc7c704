"""What nobody reads isn't computed: the model's own numbers, from less work, and only where all who read a value agree."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.model.draws import DrawKey
from edgeswarm.model.dropout import dropout
from edgeswarm.model.evaluation import export_evaluation
from edgeswarm.model.export import ExportedModel, export_model
from tests.zoo import ZOO

from .exactness import as_written, logits_of
from .pipeline import Pipeline, all_tensors, bounds

BATCH, TOKENS, WIDTH, HEADS = 3, 8, 12, 3
CLASS_TOKEN_MODELS = ("bert_small", "vit")

Sentences = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """A transformer's block, with what a model's author may choose."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self._attend = attend

    def forward(self, tokens: Tensor) -> Tensor:
        parts = (part(tokens) for part in (self.query, self.key, self.value))
        heads = (part.view(tokens.shape[0], -1, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        attended = self._attend(*heads).transpose(1, 2).reshape(tokens.shape[0], -1, WIDTH)
        tokens = self.first_norm(tokens + self.out(attended))
        result: Tensor = self.second_norm(tokens + self.narrow(functional.gelu(self.wide(tokens))))
        return result


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value)


def masked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mask = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)[None] < 3
    return functional.scaled_dot_product_attention(query, key, value, mask.expand(query.shape[0], 1, TOKENS, TOKENS))


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.transpose(-1, -2) / 2.0, -1) @ value


class Net(nn.Module):
    """Two blocks, and what a head reads of them."""

    def __init__(
        self, head: Sentences, *, attend: Callable[..., Tensor] = fused, prepare: Sentences = lambda tokens: tokens
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(attend), Block(attend)])
        self.last = nn.LazyLinear(5)
        self._head, self._prepare = head, prepare

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self._prepare(tokens)
        for block in self.blocks:
            tokens = block(tokens)
        result: Tensor = self.last(self._head(tokens))
        return result


def made(head: Sentences, **more: Any) -> Net:
    torch.manual_seed(0)
    model = Net(head, **more).double()
    model(some_tokens())
    return model


def some_tokens() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def exported(model: nn.Module) -> ExportedModel:
    return export_model(model, (some_tokens(),))


def work(found: ExportedModel) -> float:
    """Of what the model computes as it is written, heads aside."""
    return _flops(found) / _flops_as_written()


def _flops(found: ExportedModel) -> int:
    return sum(layer.flops_forward + layer.flops_backward for layer in found.layer_graph.layers)


@functools.cache
def _flops_as_written() -> int:
    with as_written():
        return _flops(exported(made(first)))


def taken(found: ExportedModel) -> list[tuple[Any, ...]]:
    """Where a part is taken of what is there as a whole: dimension, begin and end."""
    nodes = found.layer_graph.nodes
    return [node.args[1:] for node in nodes if node.op == "aten.slice.Tensor" and node.name.endswith("_slice")]


def trained(
    model: nn.Module,
    found: ExportedModel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    batch: int,
    stages: int,
    draw: DrawKey | None = None,
) -> dict[str, Tensor]:
    """The logits and the gradients by stages."""
    pipeline = Pipeline(found, all_tensors(model, found), bounds(found.layer_graph, stages))
    logits = logits_of(pipeline.forward(args, kwargs, batch=batch, draw=draw))
    torch.autograd.backward(loss_of(logits))
    pipeline.backward()
    return {"logits": logits, **pipeline.gradients()}


def loss_of(logits: Tensor) -> Tensor:
    return (logits.square() * torch.arange(1, logits.numel() + 1, dtype=logits.dtype).view_as(logits)).sum()


def assert_trains_alike(model: nn.Module, found: ExportedModel, *, stages: int = 1) -> None:
    """As PyTorch computes it, to the last bits of float64."""
    assert_as_pytorch(model, found, (some_tokens(),), {}, batch=BATCH, stages=stages)


def assert_as_pytorch(
    model: nn.Module,
    found: ExportedModel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    batch: int,
    stages: int,
    draw: DrawKey | None = None,
) -> None:
    mine = trained(model, found, args, kwargs, batch=batch, stages=stages, draw=draw)
    plain = copy.deepcopy(model)
    logits = logits_of(plain(*args, **kwargs))
    torch.autograd.backward(loss_of(logits))
    theirs = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    assert set(mine) == {"logits", *theirs}
    largest = max(float(gradient.norm()) for gradient in theirs.values())
    for name, wanted in {"logits": logits, **theirs}.items():
        assert float((mine[name] - wanted).detach().norm()) <= 1e-12 * max(largest, float(wanted.detach().norm())), name


def first(tokens: Tensor) -> Tensor:
    return tokens[:, 0]


HEADS_OF_A_PART: dict[str, Sentences] = {
    "the first token": first,
    "the last token": lambda tokens: tokens[:, -1],
    "some tokens": lambda tokens: tokens[:, 2:5].sum(1),
    "the last ones, activated": lambda tokens: torch.tanh(tokens * 2.0)[:, -2:].flatten(1),
    "by way of other shapes": lambda tokens: tokens.permute(1, 0, 2).unsqueeze(0).transpose(0, 2)[:, 3].squeeze(1),
    "one token twice": lambda tokens: torch.cat([tokens[:, 1], tokens[:, 1].relu()], 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("head", HEADS_OF_A_PART.values(), ids=HEADS_OF_A_PART)
def test_the_same_is_learnt_from_less_work(head: Sentences) -> None:
    model = made(head)
    found = exported(model)
    # Of the last block 10 of 12 equal products are of the tokens that are read.
    assert work(found) < 0.75
    assert_trains_alike(model, found)


@pytest.mark.parametrize("attend", [fused, masked, by_hand])
def test_attention_has_the_queries_that_are_read(attend: Callable[..., Tensor]) -> None:
    model = made(first, attend=attend)
    found = exported(model)
    assert work(found) < 0.68
    assert_trains_alike(model, found)


def test_causal_attention_is_whole_and_what_is_behind_it_is_not() -> None:
    model = made(lambda tokens: tokens[:, -1], attend=causal)
    found = exported(model)
    assert 0.6 < work(found) < 0.8
    assert_trains_alike(model, found)


@pytest.mark.parametrize("attend", [fused, causal])
def test_stages_have_the_bits_of_the_whole(attend: Callable[..., Tensor]) -> None:
    model = made(lambda tokens: tokens[:, -1], attend=attend).float()
    tokens = some_tokens().float()
    found = export_model(model, (tokens,))
    whole = trained(model, found, (tokens,), {}, batch=BATCH, stages=1)
    for stages in (3, len(found.layer_graph.layers)):
        split = trained(model, found, (tokens,), {}, batch=BATCH, stages=stages)
        assert whole.keys() == split.keys()
        for name, wanted in whole.items():
            assert torch.equal(split[name], wanted), name


HEADS_OF_EVERYTHING: dict[str, Sentences] = {
    "all tokens": lambda tokens: tokens.flatten(1),
    "their mean": lambda tokens: tokens.mean(1),
    "two different ones": lambda tokens: tokens[:, 0] + tokens[:, 1],
    "most of them": lambda tokens: tokens[:, : TOKENS - 2].flatten(1),
    "every other one": lambda tokens: tokens[:, ::2].flatten(1),
    "a part of the width": lambda tokens: tokens[:, :, 0],
    "one, and all": lambda tokens: torch.cat([tokens[:, 0], tokens.mean(1)], 1),
    "one of what is changed in place": lambda tokens: tokens.relu_()[:, 0],
}


@pytest.mark.thorough
@pytest.mark.parametrize("head", HEADS_OF_EVERYTHING.values(), ids=HEADS_OF_EVERYTHING)
def test_what_is_read_as_a_whole_stays(head: Sentences) -> None:
    model = made(head)
    found = exported(model)
    assert taken(found) == []
    assert work(found) > 0.98
    assert_trains_alike(model, found)


class Norm(nn.Module):
    """Statistics of all tokens, of which one is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(TOKENS), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.last(self.norm(self.embed(tokens))[:, 0])
        return result


def test_batch_statistics_are_of_everything() -> None:
    model = Norm().double()
    found = exported(model)
    assert taken(found) == []
    assert_trains_alike(model, found)


class Positions(nn.Module):
    """A weight for each token, and a token that is put before the others."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, TOKENS + 1, WIDTH))
        self.extra = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.block = Block(fused)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = torch.cat([self.extra.expand(tokens.shape[0], 1, WIDTH), tokens], 1)
        result: Tensor = self.block(tokens + self.positions)[:, 0]
        return result


def test_a_weight_of_all_tokens_is_added_to_all() -> None:
    torch.manual_seed(0)
    model = Positions().double()
    found = exported(model)
    assert taken(found) == [(1, 0, 1)]
    assert_trains_alike(model, found)


class Latents(nn.Module):
    """Queries that are the same for all samples, and have no dimension for them."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.out = nn.Parameter(torch.randn(TOKENS, WIDTH)), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        queries = self.latents.view(TOKENS, HEADS, WIDTH // HEADS).transpose(0, 1)
        keys = tokens.view(tokens.shape[0], TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(queries, keys, keys)
        result: Tensor = self.out(attended.transpose(1, 2).reshape(tokens.shape[0], TOKENS, WIDTH))[:, 0]
        return result


class Alike(nn.Module):
    """One value as both factors of a product, of which one row is read."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.embed, self.last = nn.Parameter(torch.randn(5, 4)), nn.Linear(4, 4), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.embed(self.table)
        result: Tensor = self.last(tokens.mean(1)) + functional.linear(rows, rows).softmax(-1)[0]
        return result


class Bits(nn.Module):
    """A number's bits as another number, and a part that belongs to nothing heavy."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        bits = self.first(tokens).detach().view(torch.int64)[:, 0] % 7
        result: Tensor = self.last(bits.to(tokens.dtype) + tokens.relu()[:, :2].mean(1)) + self.first(tokens).mean()
        return result


@pytest.mark.parametrize(("kind", "parts"), [(Latents, 1), (Alike, 0), (Bits, 0)])
def test_awkward_models_learn_the_same(kind: Callable[[], nn.Module], parts: int) -> None:
    torch.manual_seed(0)
    model = kind().double()
    found = exported(model)
    assert len(taken(found)) == parts
    assert_trains_alike(model, found)


def test_dropout_draws_for_what_is_computed() -> None:
    model = made(lambda tokens: functional.dropout(tokens, 0.5, True)[:, 0])
    found = exported(model)
    assert work(found) < 0.7
    nodes = found.layer_graph.nodes
    (layer,) = [node.layer for node in nodes if node.is_random and node.layer is not None]
    key = DrawKey(seed=1, round=2, micro_batch=3, first_sample=0, end_sample=BATCH)

    def drawn_for_the_first(tokens: Tensor) -> Tensor:
        torch.manual_seed(key.seed_of_layer(layer))
        return dropout(tokens[:, :1], 0.5, True)[:, 0]

    plain = copy.deepcopy(model)
    plain._head = drawn_for_the_first
    for stages in (1, 3):
        assert_as_pytorch(plain, found, (some_tokens(),), {}, batch=BATCH, stages=stages, draw=key)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "stages"), list(itertools.product(CLASS_TOKEN_MODELS, (1, 3))))
def test_models_that_people_have(name: str, stages: int) -> None:
    size = ZOO[name].small
    torch.manual_seed(0)
    model = size.make().train().double()
    args, kwargs = _double(size.batch(BATCH))
    found = export_model(model, args, kwargs)
    assert taken(found)
    assert_as_pytorch(model, found, args, kwargs, batch=BATCH, stages=stages)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CLASS_TOKEN_MODELS)
def test_they_are_evaluated_so_too(name: str) -> None:
    size = ZOO[name].small
    model = size.make().train().double()
    args, kwargs = _double(size.batch(BATCH))
    training = export_model(model, args, kwargs)
    evaluation = export_evaluation(model, args, kwargs, training=training.layer_graph)
    graph = evaluation.layer_graph
    assert taken(ExportedModel(graph, {}))
    tensors = {**all_tensors(model, training), **evaluation.constants}
    pipeline = Pipeline(ExportedModel(graph, evaluation.constants), tensors, bounds(graph, 3))
    with torch.no_grad():
        logits = logits_of(pipeline.forward(args, kwargs, batch=BATCH))
        assert torch.allclose(logits, logits_of(model.eval()(*args, **kwargs)), rtol=1e-12, atol=1e-12)


def _double(batch: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = batch

    def double(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(double(value) for value in args), {name: double(value) for name, value in kwargs.items()}
