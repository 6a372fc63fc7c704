"""A loss with tensors of its own, where the model is elsewhere: on `meta`, which has no numbers, but isn't the host."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import edgeswarm
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_agent.worker.job_loss import called, move_modules

ELSEWHERE = torch.device("meta")
WEIGHTS = torch.arange(1.0, 4.0)
LABELS = torch.tensor([0, 2])


def weighted(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, targets, weight=WEIGHTS)


def job_with(loss: torch.nn.Module) -> edgeswarm.Job:
    return edgeswarm.Job(
        model=lambda: torch.nn.Linear(2, 3),
        dataset=lambda: [(torch.ones(2), 0)],
        evaluation_dataset=lambda: [(torch.ones(2), 0)],
        loss=loss,
        optimizer=lambda named: torch.optim.SGD([parameter for _, parameter in named], lr=0.1),
        batch_size=1,
        epochs=1,
        metrics={"weighted": torch.nn.CrossEntropyLoss(weight=WEIGHTS), "plain": functional.cross_entropy},
    )


def test_targets_go_where_the_output_is() -> None:
    seen = []

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(targets.device)
        return output.mean()

    result = called(loss, torch.empty(2, 3, device=ELSEWHERE), LABELS, indices=(0, 1), device="nano-1", on=ELSEWHERE)
    assert (seen, result.device) == ([ELSEWHERE], ELSEWHERE)


def test_modules_go_there_with_what_they_hold() -> None:
    job = job_with(torch.nn.CrossEntropyLoss(weight=WEIGHTS.clone()))
    move_modules(job, ELSEWHERE)
    for function in (job.loss, *job.metrics.values()):
        output = torch.empty(2, 3, device=ELSEWHERE)
        assert called(function, output, LABELS, indices=(0, 1), device="nano-1", on=ELSEWHERE).device == ELSEWHERE


def test_a_function_whose_tensors_stayed_behind_is_told_so() -> None:
    with pytest.raises(EdgeswarmError, match="not on the card of nano-1") as caught:
        called(
            weighted,
            torch.empty(2, 3, device=ELSEWHERE),
            LABELS,
            indices=(0, 1),
            device="nano-1",
            on=ELSEWHERE,
        )
    assert caught.value.code is ErrorCode.JOB_INVALID
    assert "device=output.device" in caught.value.remedy
