"""The user's optimizer as a stage has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from edgeswarm.errors import EdgeswarmError
from edgeswarm.job import Job
from edgeswarm_agent.worker.gradients import GradientBuckets
from edgeswarm_agent.worker.step import StageOptimizer


class SignDescent(torch.optim.Optimizer):
    """Calls its step's size by another name than PyTorch's own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"size": 0.5})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= group["size"] * parameter.grad.sign()


def job(schedule: Callable[[int], float] | None = None) -> Job:
    return Job(
        model=torch.nn.Identity,
        dataset=lambda: [],
        loss=lambda output, targets: output,
        optimizer=lambda parameters: SignDescent([parameter for _, parameter in parameters]),
        batch_size=4,
        learning_rate_schedule=schedule,
    )


def trained() -> Sequence[tuple[str, torch.nn.Parameter]]:
    return [("weight", torch.nn.Parameter(torch.tensor([1.0, 1.0])))]


def test_an_optimizer_without_a_learning_rate_steps() -> None:
    parameters = trained()
    buckets = GradientBuckets(parameters)
    optimizer = StageOptimizer(job(), parameters)
    buckets.zero()
    torch.autograd.backward([(parameters[0][1] * torch.tensor([3.0, -2.0])).sum()])
    buckets.touched.update(buckets.names)
    optimizer.step(buckets, count=4.0, sum_of_squares=None, round_number=0)
    assert parameters[0][1].tolist() == [0.5, 1.5]


def test_a_schedule_has_nothing_to_change_there() -> None:
    with pytest.raises(EdgeswarmError, match="The groups of SignDescent have no lr") as caught:
        StageOptimizer(job(lambda number: 1.0), trained())
    assert "learning_rate_schedule" in caught.value.remedy


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("as_parameters_lie", [False, True])
def test_a_fused_step_goes_to_the_weights_whose_gradients_they_are(kind: Any, as_parameters_lie: bool) -> None:
    """Weights of convolutions lie channels last in a worker, and where replicas add them up their gradients don't."""

    def stepped(*, fused: bool, channels_last: bool) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(0)
        weight = torch.randn(4, 3, 3, 3, generator=drawn)
        weight = weight.to(memory_format=torch.channels_last) if channels_last else weight
        parameters = [("weight", torch.nn.Parameter(weight))]
        buckets = GradientBuckets(parameters, as_parameters_lie=as_parameters_lie)
        made = StageOptimizer(
            dataclasses.replace(job(), optimizer=lambda named: kind([p for _, p in named], lr=0.1, fused=fused)),
            parameters,
        )
        for number in range(2):
            buckets.zero()
            torch.autograd.backward([(parameters[0][1] * torch.randn(4, 3, 3, 3, generator=drawn)).sum()])
            buckets.touched.update(buckets.names)
            made.step(buckets, count=2.0, sum_of_squares=None, round_number=number)
        assert made.optimizer is not None
        assert made.optimizer.param_groups[0]["fused"] is fused
        return parameters[0][1].detach()

    expected = stepped(fused=False, channels_last=False)
    assert torch.allclose(stepped(fused=True, channels_last=True), expected, rtol=1e-6, atol=1e-7)
