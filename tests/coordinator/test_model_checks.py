"""Models that one process trains and several can't: tensors in one memory, and plain attributes that forward changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.model_checks import check_memory

from .test_job_checks import check


class TiedCoder(nn.Module):
    """share: how the decoder gets its weight."""

    def __init__(self, share: Any) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3, bias=False)
        self.decoder = nn.Linear(3, 4, bias=False)
        self.decoder.weight = share(self.encoder.weight)


@pytest.mark.parametrize(
    "share", [lambda weight: nn.Parameter(weight.t()), lambda weight: nn.Parameter(weight.data.view(4, 3))]
)
def test_parameters_in_one_memory_are_refused(share: Any) -> None:
    with pytest.raises(EdgeswarmError, match=r"decoder\.weight and encoder\.weight lie in the same memory") as caught:
        check_memory(TiedCoder(share))
    assert caught.value.code is ErrorCode.JOB_INVALID


def test_a_buffer_in_a_parameters_memory_is_refused() -> None:
    built = nn.Linear(4, 3)
    built.register_buffer("shadow", built.weight.data[1:])
    with pytest.raises(EdgeswarmError, match="shadow and weight"):
        check_memory(built)


def test_a_parameter_far_within_a_buffer_is_refused() -> None:
    whole = torch.zeros(9)
    built = nn.Module()
    built.register_buffer("whole", whole)
    built.register_buffer("first", whole[:3])
    built.trained = nn.Parameter(whole[6:])
    with pytest.raises(EdgeswarmError, match="trained and whole"):
        check_memory(built)


def test_one_parameter_in_two_places_and_parts_of_one_memory_are_sound() -> None:
    built = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    built[1].weight = built[0].weight
    flat, frozen = torch.zeros(6), torch.ones(2)
    built.first, built.second = nn.Parameter(flat[:3]), nn.Parameter(flat[3:])
    built.register_buffer("nothing", torch.empty(0))
    built.register_buffer("frozen", frozen)
    built.register_buffer("frozen_part", frozen[1:])
    check_memory(built)


class Annealed(nn.Module):
    """kind: of what its forward changes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.kind = kind
        self.steps = 0
        self.center = torch.zeros(3)
        self.longest = 0
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(x)
        if self.kind == "number":
            self.steps += 1
        if self.kind == "tensor":
            self.center = 0.9 * self.center + 0.1 * made.mean(0).detach()
        if self.kind == "once":
            self.longest = max(self.longest, 4)
        if self.kind == "shown":
            self.last = made.detach()
        return made - self.center


@pytest.mark.parametrize(("kind", "named"), [("number", "1.steps"), ("tensor", "1.center")])
def test_what_every_forward_changes_is_a_warning(kind: str, named: str) -> None:
    (warning,) = check(nn.Sequential(nn.Identity(), Annealed(kind))).warnings
    assert f"forward changes {named}, which is no buffer" in warning


def test_what_weight_norm_computes_anew_each_time_is_none() -> None:
    with pytest.warns(FutureWarning):
        normalised = nn.utils.weight_norm(nn.Linear(4, 3))
    assert check(normalised).warnings == ()


@pytest.mark.parametrize("kind", ["nothing", "once", "shown"])
def test_what_is_made_once_or_for_show_is_none(kind: str) -> None:
    assert check(Annealed(kind)).warnings == ()
