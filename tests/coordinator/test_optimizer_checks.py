"""Optimizers over a part of a model: the same groups, and the same steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm_coordinator.optimizer_checks import check_optimizer

from .test_job_checks import Images, Named, by_name, check, mean, model


def by_place(named: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [named[0][1]]}, {"params": [p for _, p in named[1:]]}], lr=0.1)


def by_number(named: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.1 / len(named))


def without_empty_groups(named: Named) -> torch.optim.Optimizer:
    groups = [[p for name, p in named if name.startswith(start)] for start in "013"]
    return torch.optim.SGD([{"params": group} for group in groups if group], lr=0.1)


def of_weights_and_biases_if_any(named: Named) -> torch.optim.Optimizer:
    """Each half of the model has both, and a stage may have one kind alone."""
    groups = [[p for name, p in named if ("bias" in name) == are_biases] for are_biases in (False, True)]
    return torch.optim.SGD([{"params": group} for group in groups if group], lr=0.1)


def needs_all(named: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD([dict(named)["0.weight"]], lr=0.1)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (by_place, "is in group 1 of the whole model's optimizer, and in group 0"),
        (by_number, "has another lr"),
        (without_empty_groups, "is in group"),
        (of_weights_and_biases_if_any, "is in group 1 of the whole model's optimizer, and in group 0"),
        (needs_all, r"KeyError: '0.weight' \(while making the optimizer over 3 of"),
    ],
)
def test_an_optimizer_that_depends_on_the_part_is_refused(optimizer: Any, said: str) -> None:
    with pytest.raises(EdgeswarmError, match=said):
        check(optimizer=optimizer)


class Clipped(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


class Noisy(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad + torch.randn_like(parameter)
        return super().step(closure)


def test_an_optimizer_whose_steps_depend_on_the_part_is_refused() -> None:
    with pytest.raises(EdgeswarmError, match=r"The optimizer's step moves \S+ otherwise") as caught:
        check(optimizer=lambda named: Clipped([parameter for _, parameter in named], lr=0.1))
    assert caught.value.code is ErrorCode.JOB_INVALID
    assert "clip_gradient_norm" in caught.value.remedy


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
        torch.optim.Adagrad,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.Adam(parameters, foreach=True),
        lambda parameters: torch.optim.Adam(parameters, fused=True),
        torch.optim.Adafactor,
        torch.optim.Rprop,
        torch.optim.NAdam,
        lambda parameters: Noisy(parameters, lr=0.1),
    ],
)
def test_one_that_takes_each_parameter_by_itself_is_not(make: Any) -> None:
    check(optimizer=lambda named: make([parameter for _, parameter in named]))


def test_frozen_parameters_are_not_the_optimizers() -> None:
    built = model()
    built.get_parameter("0.weight").requires_grad_(False)
    job = Job(model=model, dataset=Images, loss=mean, optimizer=by_name, batch_size=4)
    whole = check_optimizer(job, built, folder=Path(__file__).parent)
    assert sum(len(group["params"]) for group in whole.param_groups) == 5
