"""What stages compute beside what the unsplit model computes, for one batch with a loss."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.model import export
from edgeswarm.model.export import ExportedModel, export_model
from tests.zoo import Size

from .pipeline import Pipeline, all_tensors, bounds


def build(size: Size) -> tuple[nn.Module, ExportedModel]:
    """The model under seed 0 and its export as it is written."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = size.make().train()
        # As after some training: what starts at zero or one, running statistics too, gets a value of its own.
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor.add_(0.02 * torch.rand_like(tensor))
    args, kwargs = size.batch(2)
    with as_written():
        return model, export_model(model, args, kwargs)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """All is computed inside: a part that suffices has the bits of another order of sums (test_needed_parts.py)."""
    with mock.patch.object(export, "compute_needed_parts"):
        yield


def logits_of(outputs: Any) -> Tensor:
    """What the model returns, or the field that Hugging Face's models give their result in."""
    logits = getattr(outputs, "logits", outputs)
    assert isinstance(logits, Tensor)
    return logits


def loss_by_attribute(outputs: Any) -> Tensor:
    """A job's loss that takes `outputs.logits`."""
    return _cross_entropy(logits_of(outputs))


def loss_by_key(outputs: Any) -> Tensor:
    """A job's loss that takes `outputs["logits"]`."""
    return _cross_entropy(outputs if isinstance(outputs, Tensor) else outputs["logits"])


def _cross_entropy(logits: Tensor) -> Tensor:
    """Over classes in the last dimension, or for maps in dimension 1."""
    rows = (logits.movedim(1, -1) if logits.dim() == 4 else logits).flatten(0, -2)
    return functional.cross_entropy(rows, torch.arange(rows.shape[0]) % rows.shape[1])


def differences(model: nn.Module, exported: ExportedModel, size: Size, *, batch: int, stages: int) -> list[str]:
    """Names of what isn't the same to the bit: "logits", "loss", gradients by parameter, buffers.

    Running statistics may be a unit in the last place off: they are merged in float64.
    """
    graph = exported.layer_graph
    plain = copy.deepcopy(model)
    args, kwargs = size.batch(batch)
    expected = plain(*args, **kwargs)
    expected_loss = loss_by_key(expected)
    torch.autograd.backward(expected_loss)
    pipeline = Pipeline(exported, all_tensors(model, exported), bounds(graph, stages))
    outputs = pipeline.forward(args, kwargs, batch=batch, own_loss=True)
    loss = loss_by_attribute(outputs)
    torch.autograd.backward(loss)
    pipeline.backward()
    same = {
        "logits": torch.equal(logits_of(outputs), logits_of(expected)),
        "loss": torch.equal(loss, expected_loss),
        "loss by key": torch.equal(loss_by_key(outputs), expected_loss),
    }
    gradients = pipeline.gradients()
    for name, parameter in plain.named_parameters():
        found = gradients.get(name)
        alike = found is None if parameter.grad is None else found is not None and torch.equal(found, parameter.grad)
        same[f"the gradient of {name}"] = alike
    for name, value in pipeline.buffers().items():
        same[name] = torch.allclose(value, plain.get_buffer(name), rtol=2e-7, atol=1e-8)
    for name in graph.unused:  # a device never sees it: it must not change
        if graph.tensors[name].kind == "buffer":
            same[name] = torch.equal(plain.get_buffer(name), model.get_buffer(name))
    return [name for name, alike in same.items() if not alike]
