"""Losses that reach weights beside the model's output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.loss_graph import nodes_of, other_weights, warnings_of_weights

MODEL = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
PARAMETERS = dict(MODEL.named_parameters())
SCALE = nn.Parameter(torch.ones(3))


def found_of(loss: Any, model: nn.Module = MODEL) -> tuple[str, ...]:
    output = model(torch.randn(2, 4))
    nodes = nodes_of(output)
    return warnings_of_weights(other_weights(loss(output), nodes), dict(model.named_parameters()))


@pytest.mark.parametrize(
    "loss",
    [
        lambda output: output.square().mean(),
        lambda output: output.clone().mul_(2.0).log_softmax(1)[:, 0].sum(),
        lambda output: output.mul_(2.0).sum(),  # the output itself is changed
        lambda output: (output[:, 0] * output[:, 1]).sum() + torch.zeros(()),
        lambda output: (output * SCALE.detach()).sum(),
    ],
)
def test_a_loss_of_the_output_alone_is_one(loss: Any) -> None:
    assert found_of(loss) == ()


def test_a_penalty_on_the_models_parameters_is_refused() -> None:
    with pytest.raises(EdgeswarmError) as caught:
        found_of(lambda output: output.mean() + sum(each.square().sum() for each in MODEL.parameters()))
    assert caught.value.code is ErrorCode.JOB_INVALID
    assert "parameters of the model itself (0.bias, 0.weight, 2.bias and 1 others)" in caught.value.message
    assert "weight_decay" in caught.value.remedy
    with pytest.raises(EdgeswarmError, match=r"\(0.weight\)"):
        found_of(lambda output: output.mean() + PARAMETERS["0.weight"].norm())


def test_weights_of_its_own_are_told() -> None:
    (warning,) = found_of(lambda output: (output * SCALE).sum())
    assert "weights of its own (1 of them" in warning


def test_several_outputs_and_what_is_none() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            one, two = self.layer(x).split(3, dim=1)  # of one node
            return {"one": one, "two": [two, None, 3]}

    assert found_of(lambda output: (output["one"] * output["two"][0]).sum(), Both()) == ()


def test_a_model_that_gives_its_input_has_no_graph() -> None:
    assert nodes_of(torch.randn(3)) == []
    assert other_weights(torch.ones(()), []) == []
