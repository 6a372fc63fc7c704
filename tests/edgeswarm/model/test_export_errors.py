"""A model that can't be exported: one message that names the module and the line, and says what to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

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


@pytest.mark.parametrize(
    ("compute", "said", "advised"),
    [
        (_by_value, r"decides by the values of a tensor in part\.1 \(.*values\.sum\(\) > 0", "torch.where"),
        (_by_batch, "does one thing for batches of 2 to 5", "x.shape[0]"),
        (_odd_and_even, "holds only where .*batch size", "x.shape[0]"),
        (_fixed, "fixes the batch size to 4", "view"),
        (_counts, r"changes 'part\.1\.steps' in its forward in part\.1 \(.*test_export_errors", "outside"),
        (_remembers, r"changes 'part\.1\.history' in its forward", "outside"),
        (_wrong_shape, r"can't be exported in part\.1 \(.*test_export_errors.*values\[:, :3\]", "plain PyTorch"),
        (_by_item, r"aten\.item\.default in part\.1 \(.*test_export_errors", "independent of a tensor's values"),
        (_rare, r"aten\.linalg_inv\.default in part\.1 \(.*test_export_errors", "commoner"),
        (_autocast, "wrap_with_autocast", "torch.autocast"),
    ],
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
