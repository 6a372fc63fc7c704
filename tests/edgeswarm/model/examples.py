"""The models that are cut, each exported once in a test run, with a batch of any size for it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from edgeswarm.model.export import ExportedModel, export_model
from tests.models import DictModel, DigitsCNN, MobileNetV2, SmallGPT, SmallTransformer, UNet


def _floats(*shape: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch)),)


def _ids(batch: int) -> tuple[Any, ...]:
    return (torch.randint(0, 50, (batch, 16), generator=torch.Generator().manual_seed(batch)),)


def _dicts(batch: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(batch)
    values = torch.randn(batch, 12, generator=generator)
    return ({"values": values, "lengths": torch.randint(0, 13, (batch,), generator=generator)},)


EXAMPLES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Any, ...]]]] = {
    "digits": (DigitsCNN, _floats(1, 8, 8)),
    "digits without batch norm": (lambda: DigitsCNN(batch_norm=False), _floats(1, 8, 8)),
    "mobilenet": (MobileNetV2, _floats(3, 32, 32)),
    "gpt": (SmallGPT, _ids),
    "transformer": (SmallTransformer, _floats(6, 8)),
    "unet": (UNet, _floats(3, 16, 16)),
    "dicts": (DictModel, _dicts),
}


# For a test of each; to export MobileNetV2 takes seconds.
EACH_EXAMPLE = [pytest.param(name, marks=pytest.mark.thorough) if name == "mobilenet" else name for name in EXAMPLES]


@dataclasses.dataclass(frozen=True)
class Example:
    """batch(n): the model's arguments for n samples."""

    model: nn.Module
    exported: ExportedModel
    batch: Callable[[int], tuple[Any, ...]]


@functools.cache
def example(name: str) -> Example:
    """The model in training mode and its export; neither may be changed."""
    make, batch = EXAMPLES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().train()
    return Example(model=model, exported=export_model(model, batch(2)), batch=batch)


def backward(outputs: Any) -> None:
    """The gradients of `loss_of`."""
    torch.autograd.backward(loss_of(outputs))


def loss_of(outputs: Any) -> Tensor:
    """Some number that depends on every element of every float that a model returns."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    weights = [torch.arange(leaf.numel(), dtype=leaf.dtype).cos().view(leaf.shape) for leaf in leaves]
    return torch.stack([(leaf * weight).sum() for leaf, weight in zip(leaves, weights, strict=True)]).sum()
