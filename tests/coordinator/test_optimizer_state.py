from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm_coordinator.optimizer_state import OptimizerState, try_optimizer_state

NamedParameters = Sequence[tuple[str, torch.nn.Parameter]]
Make = Callable[[NamedParameters], torch.optim.Optimizer]
ADAMW_KEEPS = frozenset({"step", "exp_avg", "exp_avg_sq"})


def nothing(*_: Any) -> Any:
    return None


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3))


def tried(make: Make, module: torch.nn.Module | None = None) -> OptimizerState:
    job = Job(model=nothing, dataset=nothing, loss=nothing, optimizer=make, batch_size=8)
    return try_optimizer_state(job, module or model(), folder=Path())


def over(named: NamedParameters) -> list[torch.nn.Parameter]:
    return [parameter for _, parameter in named]


def by_weight(named: NamedParameters) -> torch.optim.Optimizer:
    """Momentum for matrices alone; both groups are there whatever it is given."""
    matrices = [parameter for _, parameter in named if parameter.dim() > 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "momentum": 0.9},
        {"params": [parameter for _, parameter in named if parameter.dim() < 2]},
    ]
    return torch.optim.SGD(groups, lr=0.1)


def by_name(named: NamedParameters) -> torch.optim.Optimizer:
    """AMSGrad for the last layer alone."""
    last = [parameter for name, parameter in named if name.startswith("2.")]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for name, parameter in named if not name.startswith("2.")]},
        {"params": last, "amsgrad": True},
    ]
    return torch.optim.AdamW(groups)


def adafactor(named: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(over(named))


def kept_after_training(make: Make) -> Mapping[str, Mapping[str, object]]:
    """By parameter, of the whole model's optimizer after two steps."""
    module = model()
    named = list(module.named_parameters())
    optimizer = make(named)
    for _ in range(2):
        module(torch.rand(4, 12)).sum().backward()
        optimizer.step()
    return {name: optimizer.state.get(parameter, {}) for name, parameter in named}


@pytest.mark.parametrize(
    ("make", "kept", "factor"),
    [
        (lambda named: torch.optim.SGD(over(named)), frozenset[str](), 0.0),
        (lambda named: torch.optim.SGD(over(named), momentum=0.9), frozenset({"momentum_buffer"}), 1.0),
        (lambda named: torch.optim.AdamW(over(named)), ADAMW_KEEPS, 2.0),
    ],
)
def test_of_all_parameters_alike(make: Make, kept: frozenset[str], factor: float) -> None:
    found = tried(make)
    assert found.factor == factor
    assert found.kept == dict.fromkeys(dict(model().named_parameters()), kept)


@pytest.mark.parametrize("make", [by_weight, by_name, adafactor])
def test_what_is_kept_of_each_parameter_is_what_training_leaves(make: Make) -> None:
    found, trained = tried(make), kept_after_training(make)
    assert found.kept == {name: frozenset(values) for name, values in trained.items()}
    assert len(set(found.kept.values())) == 2
    found.check_goes_on(trained)
    found.check_goes_on({name: {} for name in trained})  # of a parameter that never had a gradient


def test_the_bytes_are_those_of_all_parameters_together() -> None:
    matrices, others = 12 * 16 + 16 * 3, 16 + 16 + 16 + 3
    assert tried(by_weight).factor == pytest.approx(matrices / (matrices + others))
    last = 16 * 3 + 3
    assert tried(by_name).factor == pytest.approx((2 * (matrices + others - last) + 3 * last) / (matrices + others))
    assert tried(adafactor).factor == pytest.approx(others / (matrices + others))


def test_another_optimizer_is_named_with_the_parameter() -> None:
    other = kept_after_training(lambda named: torch.optim.AdamW(over(named)))
    with pytest.raises(EdgeswarmError, match=r"keeps momentum_buffer of 0\.weight now, and kept exp_avg") as caught:
        tried(by_weight).check_goes_on(other)
    assert caught.value.code is ErrorCode.CHECKPOINT
    with pytest.raises(EdgeswarmError, match=r"keeps exp_avg, .*, max_exp_avg_sq, step of 2\.weight now"):
        tried(by_name).check_goes_on(other)


def test_what_is_frozen_now_was_trained_before() -> None:
    module = model()
    module.get_parameter("0.weight").requires_grad_(False)
    before = kept_after_training(lambda named: torch.optim.AdamW(over(named)))
    tried(lambda named: torch.optim.AdamW(over(named)), module).check_goes_on(before)


def test_what_the_optimizer_leaves_out_is_kept_nothing_of() -> None:
    def without_biases(named: NamedParameters) -> torch.optim.Optimizer:
        return torch.optim.AdamW([parameter for name, parameter in named if name != "0.bias"])

    found = tried(without_biases)
    assert found.kept["0.bias"] == frozenset()
    with pytest.raises(EdgeswarmError, match=r"keeps nothing of 0\.bias now"):
        found.check_goes_on(kept_after_training(lambda named: torch.optim.AdamW(over(named))))


def test_of_a_large_parameter_a_corner_is_tried() -> None:
    seen: list[int] = []

    def watched(named: NamedParameters) -> torch.optim.Optimizer:
        seen.extend(parameter.numel() for _, parameter in named)
        return torch.optim.AdamW(over(named))

    found = tried(watched, torch.nn.Sequential(torch.nn.Embedding(9000, 200), torch.nn.LayerNorm(200)))
    assert seen == [1_800_000, 200, 200, 64 * 64, 200]  # all of them, and the smallest of each kind
    assert found.factor == 2.0


def test_frozen_parameters_are_left_out() -> None:
    module = model()
    module.get_parameter("0.weight").requires_grad_(False)
    found = tried(lambda named: torch.optim.AdamW(over(named)), module)
    assert "0.weight" not in found.kept
    assert found.factor == 2.0


class Counting(torch.optim.SGD):
    """Warms up by a count of its own."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


class CountingInState(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        state: Any = self.state
        state["k"] = state.get("k", 0) + 1
        return super().step(closure)


class Outer(torch.optim.SGD):
    """Averages what another one does."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.inner = torch.optim.AdamW(parameters)

    def step(self, closure: Any = None) -> Any:
        self.inner.step()
        return super().step(closure)


def scheduled(named: NamedParameters) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(over(named), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=100)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda named: Counting(over(named), lr=0.1), "keeps steps beside"),
        (lambda named: CountingInState(over(named), lr=0.1), "keeps k beside"),
        (lambda named: Outer(over(named)), "keeps inner beside"),
        (scheduled, "keeps lr of its groups, momentum of its groups beside"),
    ],
)
def test_what_is_counted_beside_the_parameters_is_told(make: Make, told: str) -> None:
    (warning,) = tried(make).warnings
    assert told in warning


@pytest.mark.parametrize(
    "make",
    [
        by_weight,
        by_name,
        adafactor,
        lambda named: torch.optim.NAdam(over(named)),
        lambda named: torch.optim.Rprop(over(named)),
        lambda named: torch.optim.AdamW(over(named), fused=True),
        lambda named: torch.optim.SGD(over(named), momentum=0.9, foreach=True),
    ],
)
def test_of_others_nothing_is_told(make: Make) -> None:
    assert tried(make).warnings == ()


class Remembering(torch.optim.SGD):
    """Keeps the last gradient, and no copy of it."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["before"] = parameter.grad
        return super().step(closure)


def test_an_optimizer_that_keeps_a_gradient_itself_is_refused() -> None:
    with pytest.raises(EdgeswarmError, match=r"keeps the gradient of .* itself, as before") as caught:
        tried(lambda named: Remembering(over(named), lr=0.1))
    assert "grad.clone()" in caught.value.remedy


def test_state_that_no_checkpoint_holds_is_refused() -> None:
    def odd(named: NamedParameters) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(over(named))

        def keep(*_: Any) -> None:
            for parameter in over(named):
                optimizer.state[parameter]["odd"] = object()

        optimizer.register_step_post_hook(keep)
        return optimizer

    with pytest.raises(EdgeswarmError, match="fits in no checkpoint") as caught:
        tried(odd)
    assert caught.value.code is ErrorCode.JOB_INVALID
