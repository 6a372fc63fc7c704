"""A model that can't be exported: one message that names the module and the line, and says what to change."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import checkpoint

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.export import export_model
from edgeswarm.model.export_errors import holds_for_batches


class _Inner(nn.Module):
    def __init__(self, compute: Callable[[_Inner, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("steps", torch.zeros(6))
        self.history = torch.zeros(6)
        self._compute = compute

    def forward(self, values: Tensor) -> Tensor:
        return self._compute(self, values)


def _by_value(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values) if values.sum() > 0 else values
    return result


def _by_batch(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values) if values.shape[0] > 5 else values
    return result


def _odd_and_even(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values) if values.shape[0] % 2 == 0 else values
    return result


def _fixed(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values).view(4, 6)
    return result


def _counts(module: _Inner, values: Tensor) -> Tensor:
    module.steps += 1  # type: ignore[operator, assignment]
    result: Tensor = module.linear(values)
    return result


def _remembers(module: _Inner, values: Tensor) -> Tensor:
    module.history[2:] = values.mean()
    result: Tensor = module.linear(values) + module.history
    return result


def _wrong_shape(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values[:, :3])
    return result


def _by_item(module: _Inner, values: Tensor) -> Tensor:
    return values * values.max().item()


def _rare(module: _Inner, values: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.inv(values.T @ values)
    return inverse


def _autocast(module: _Inner, values: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result: Tensor = module.linear(values)
    return result


def _loops_by_value(module: _Inner, values: Tensor) -> Tensor:
    for _ in range(int(values[0, 0])):
        values = module.linear(values)
    return values


def _fixed_view(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values).view(32, -1)
    return result


def _by_length(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values) / len(values)
    return result


def _made_for_four(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values) + torch.zeros(4, 6)
    return result


def _by_numpy(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values) + torch.from_numpy(np.tanh(values.numpy()))
    return result


def _writes_to_a_leaf(module: _Inner, values: Tensor) -> Tensor:
    module.linear.weight += 1
    result: Tensor = module.linear(values)
    return result


def _writes_to_data(module: _Inner, values: Tensor) -> Tensor:
    module.linear.weight.data.add_(1)
    result: Tensor = module.linear(values)
    return result


def _nonzero(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values)[torch.nonzero(values[:, 0])[:, 0]]
    return result


def _masked(module: _Inner, values: Tensor) -> Tensor:
    made: Tensor = module.linear(values)
    return made[made > 0].sum().expand(values.shape[0])


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        return values.round()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient


def _own_gradient(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = _Rounded.apply(module.linear(values))  # type: ignore[no-untyped-call]
    return result


def _hooks(module: _Inner, values: Tensor) -> Tensor:
    made: Tensor = module.linear(values)
    made.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    return made


def _clamps_without_gradients(module: _Inner, values: Tensor) -> Tensor:
    made: Tensor = module.linear(values)
    with torch.no_grad():
        made.clamp_(-1, 1)
    return made * 2


def _python_draws(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values) * random.random()
    return result


def _numpy_draws(module: _Inner, values: Tensor) -> Tensor:
    result: Tensor = module.linear(values) * float(np.random.rand())
    return result


def _checkpoints(module: _Inner, values: Tensor) -> Tensor:
    made: Tensor = checkpoint(module.linear, values, use_reentrant=True)
    return made


def _by_frequency(module: _Inner, values: Tensor) -> Tensor:
    return nn.functional.embedding(values.argmax(dim=1), module.linear.weight, scale_grad_by_freq=True)


def _keeps_statistics_in_an_attribute(module: _Inner, values: Tensor) -> Tensor:
    return nn.functional.batch_norm(module.linear(values), module.history, module.history, training=True)


def _keeps_statistics_in_a_slice(module: _Inner, values: Tensor) -> Tensor:
    steps = module.get_buffer("steps")
    return nn.functional.batch_norm(module.linear(values)[:, :4], steps[:4], steps[:4], training=True)


def _normalises_weights(module: _Inner, values: Tensor) -> Tensor:
    steps = module.get_buffer("steps")
    return values @ nn.functional.batch_norm(module.linear.weight, steps, steps, training=True)


Case = tuple[Callable[[_Inner, Tensor], Tensor], str, str]
# One for each way in which it is found out,
CASES: list[Case] = [
    (_loops_by_value, r"decides by the values of a tensor in part\.1 \(.*range\(int\(values", "torch.where"),
    (_fixed_view, r"fixes the batch size in part\.1 \(.*view\(32.*input of size 6\*batch", "x.shape[0]"),
    (_by_length, r"fixes the batch size to 4 in part\.1 \(.*len\(values\)", "len(x)"),
    (_writes_to_data, r"writes to the memory of one of its tensors in part\.1", "new tensors"),
    (_nonzero, r"aten\.nonzero\.default in part\.1 \(.*test_export_errors", "torch.where"),
    (_masked, r"size of what the model computes depends on the values .* in part\.1 \(.*test_export", "x[mask]"),
    (_own_gradient, r"uses _Rounded, an autograd\.Function, in part\.1 \(.*_Rounded\.apply", "detach()"),
    (_checkpoints, r"use_reentrant=True, in part\.1 \(.*use_reentrant=True", "use_reentrant=False"),
    (_by_frequency, r"how often the word is met in a batch in part\.1 \(.*test_export_errors", "scale_grad_by_freq"),
    (_hooks, r"hook on gradients, in part\.1 \(.*register_hook", "clip_gradient_norm"),
    (_clamps_without_gradients, r"in place within torch\.no_grad in part\.1 \(.*test_export_errors", "clone"),
    (_python_draws, "draws random numbers from Python or numpy", "nn.Dropout"),
    (_by_batch, "does one thing for batches of 2 to 5", "x.shape[0]"),
    (_odd_and_even, "holds only where .*batch size", "x.shape[0]"),
    (_counts, r"changes 'part\.1\.steps' in its forward in part\.1 \(.*test_export_errors", "outside"),
    (_wrong_shape, r"can't be exported in part\.1 \(.*test_export_errors.*values\[:, :3\]", "plain PyTorch"),
    (_rare, r"aten\.linalg_inv\.default in part\.1 \(.*test_export_errors", "commoner"),
    (_autocast, "wrap_with_autocast", "torch.autocast"),
]
# and others that are found out in one of these ways.
LIKE_THEM: list[Case] = [
    (_made_for_four, r"fixes the batch size to 4 in part\.1 \(.*torch\.zeros\(4, 6\)", "x.shape[0]"),
    (_by_numpy, r"can't be exported in part\.1 \(.*values\.numpy\(\)", "torch's functions"),
    (_writes_to_a_leaf, r"in part\.1 \(.*weight \+= 1.*leaf Variable", "new tensors"),
    (_numpy_draws, "draws random numbers from Python or numpy", "nn.Dropout"),
    (_by_value, r"decides by the values of a tensor in part\.1 \(.*values\.sum\(\) > 0", "torch.where"),
    (_fixed, "fixes the batch size to 4", "view"),
    (_remembers, r"changes 'part\.1\.history' in its forward", "outside"),
    (
        _keeps_statistics_in_an_attribute,
        r"part\.1\.history, which is no buffer of the model in part\.1",
        "register_buffer",
    ),
    (_keeps_statistics_in_a_slice, r"changes 'part\.1\.steps' in its forward in part\.1", "outside"),
    (_normalises_weights, r"isn't a multiple of the batch in part\.1 \(.*test_export_errors", "layer or group"),
    (_by_item, r"aten\.item\.default in part\.1 \(.*test_export_errors", "independent of a tensor's values"),
]


@pytest.mark.parametrize(
    ("compute", "said", "advised"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.thorough) for case in LIKE_THEM)],
)
def test_a_message_names_the_place_and_the_change(
    compute: Callable[[_Inner, Tensor], Tensor], said: str, advised: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential()
    model.add_module("part", nn.Sequential(nn.Linear(6, 6), _Inner(compute)))
    with pytest.raises(EdgeswarmError, match=said) as caught:
        export_model(model, (torch.randn(4, 6),))
    assert caught.value.code is ErrorCode.EXPORT_FAILED
    assert advised in caught.value.remedy
    assert capfd.readouterr().err == ""


def test_what_is_harmless_is_exported(capsys: pytest.CaptureFixture[str]) -> None:
    def chatty(module: _Inner, values: Tensor) -> Tensor:
        print("rows of", values.shape[1])
        made: Tensor = checkpoint(module.linear, values, use_reentrant=False)
        made[made > 0] = 0.0
        mask = torch.zeros(6)
        with torch.no_grad():
            mask[1:] = 1.0  # nothing that is trained
            made.relu().mul_(2)
            frozen: Tensor = module.linear(values)
        with torch.no_grad():  # made by another block, of a backbone that isn't trained
            frozen.clamp_(-1, 1)
        # Of one task of few examples, say: statistics that nobody keeps.
        normed = nn.functional.batch_norm(values, torch.zeros(6), torch.ones(6), training=True)
        return made * mask + frozen + normed

    exported = export_model(_Inner(chatty), (torch.randn(4, 6),))
    assert exported.layer_graph.layers
    assert "rows of 6" in capsys.readouterr().out


def test_what_was_looked_for_while_it_ran_is_as_before() -> None:
    before = (
        torch.autograd.Function.__dict__["apply"],
        torch.Tensor.register_hook,
        ShapeEnv.__dict__["_set_replacement"],
    )
    with pytest.raises(EdgeswarmError):
        export_model(_Inner(_own_gradient), (torch.randn(4, 6),))
    after = (
        torch.autograd.Function.__dict__["apply"],
        torch.Tensor.register_hook,
        ShapeEnv.__dict__["_set_replacement"],
    )
    assert after == before


def test_hooks_that_were_there_before_are_refused_by_name() -> None:
    linear = nn.Linear(6, 6)
    model = nn.Sequential(linear, nn.Tanh())
    handle = model[1].register_full_backward_hook(lambda *_: None)
    with pytest.raises(EdgeswarmError, match="hook on gradients, in its module 1"):
        export_model(model, (torch.randn(4, 6),))
    handle.remove()
    linear.weight.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    with pytest.raises(EdgeswarmError, match=r"hook on gradients, in its parameter 0\.weight"):
        export_model(model, (torch.randn(4, 6),))
    assert export_model(model.eval(), (torch.randn(4, 6),)).layer_graph.layers


def test_inputs_need_one_number_of_rows() -> None:
    class Sum(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left + right

    with pytest.raises(EdgeswarmError, match=r"\(4, 6\), \(6,\)"):
        export_model(Sum(), (torch.randn(4, 6), torch.randn(6)))


def test_a_size_cannot_be_returned() -> None:
    class Size(nn.Module):
        def forward(self, values: Tensor) -> tuple[Tensor, int]:
            return values * 2, values.shape[0]

    with pytest.raises(EdgeswarmError, match="returns a number"):
        export_model(Size(), (torch.randn(4, 6),))


def test_complex_weights_are_refused_by_name() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, dtype=torch.complex64))

        def forward(self, values: Tensor) -> Tensor:
            return (values * self.weight).real

    with pytest.raises(EdgeswarmError, match="'weight' is of the dtype complex64"):
        export_model(Complex(), (torch.randn(4, 6),))


def test_a_condition_that_holds_for_every_batch_is_none() -> None:
    """Attention by keys and values of 12 rows a sample brings ((12 * batch) % batch) == 0."""

    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, values: Tensor) -> Tensor:
            rows = self.linear(values).reshape(-1, 2)
            assert rows.shape[0] % values.shape[0] == 0
            flat: Tensor = rows.reshape(values.shape[0], -1)
            return flat

    assert export_model(Repeated(), (torch.randn(4, 6),)).layer_graph.layers


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("((12*batch) % batch) == 0", True),
        ("batch != 1", True),
        ("batch < 1000", False),
        ("(batch % 2) == 0", False),
        ("L['mask'].size()[1] == 12", False),
        ("__import__('os')", False),
    ],
)
def test_conditions_of_the_tracer_are_tried_on_batches(condition: str, holds: bool) -> None:
    assert holds_for_batches(condition) is holds
