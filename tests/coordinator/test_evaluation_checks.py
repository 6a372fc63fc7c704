from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm_coordinator.evaluation_checks import check_evaluation


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.last = nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2)
        self.modes: list[bool] = []

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.modes.append(self.training)
        scores: torch.Tensor = self.last(self.drop(self.norm(value)))
        return scores


ITEMS = [(torch.full((3,), float(index)), index % 2) for index in range(6)]
INPUTS = torch.zeros(4, 3)


def accuracy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == targets).float().mean()


def job(**more: Any) -> Job:
    fields: dict[str, Any] = {
        "loss": nn.functional.cross_entropy,
        "evaluation_dataset": lambda: ITEMS,
        "metrics": {"accuracy": accuracy},
        **more,
    }
    return Job(model=Model, dataset=lambda: ITEMS, optimizer=lambda named: None, batch_size=4, **fields)  # type: ignore[arg-type, return-value]


def test_a_sound_evaluation_leaves_the_model_as_it_was() -> None:
    model = Model()
    model.drop.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seeds = torch.random.get_rng_state()
    assert check_evaluation(job(), model, ITEMS, training_inputs=INPUTS, folder=Path.cwd()) == 6
    assert model.modes == [False]
    assert (model.training, model.norm.training, model.drop.training) == (True, True, False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), seeds)


def test_sums_with_counts_and_plain_numbers_are_metrics() -> None:
    metrics = {"tokens": lambda output, targets: (targets.sum(), len(targets)), "constant": lambda *_: 1.5}
    assert check_evaluation(job(metrics=metrics), Model(), ITEMS[:1], training_inputs=INPUTS, folder=Path.cwd()) == 1


def test_the_evaluation_has_its_own_transform() -> None:
    seen: list[str] = []

    def transform(name: str) -> Any:
        def keep_the_name(sample: Any, generator: torch.Generator) -> Any:
            seen.append(name)
            return sample

        return keep_the_name

    check_evaluation(
        job(transform=transform("training")), Model(), ITEMS[:1], training_inputs=INPUTS, folder=Path.cwd()
    )
    both = job(transform=transform("training"), evaluation_transform=transform("evaluation"))
    check_evaluation(both, Model(), ITEMS[:1], training_inputs=INPUTS, folder=Path.cwd())
    assert seen == ["training", "evaluation"]


def fail(*_: Any) -> Any:
    raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("more", "items", "problem"),
    [
        ({}, [], "The evaluation dataset is empty"),
        ({}, iter(ITEMS), r"evaluation_dataset\(\) returns a list_iterator, which has no length"),
        ({"metrics": {"f1": lambda *_: (1, 2, 3)}}, ITEMS, "The metric 'f1' returns 3 values"),
        ({"metrics": {"f1": lambda *_: torch.ones(4)}}, ITEMS, r"The metric 'f1' returns a tensor of shape \(4,\)"),
        ({"metrics": {"f1": lambda *_: None}}, ITEMS, "The metric 'f1' returns a NoneType"),
        ({"metrics": {"f1": fail}}, ITEMS, "no luck .while running the metric 'f1'"),
        (
            {"metrics": {"f1": lambda *_: sys.exit("no metric yet")}},
            ITEMS,
            "no metric yet .while running the metric 'f1'",
        ),
        ({"evaluation_transform": fail}, ITEMS, "no luck .while calling transform.* item 0 of the evaluation dataset"),
        ({"loss": fail}, ITEMS, "no luck .while running the loss"),
        ({}, [(torch.ones(3), 9)], "evaluation"),
    ],
)
def test_what_is_wrong_is_named_as_the_evaluations(more: dict[str, Any], items: Any, problem: str) -> None:
    model = Model()
    with pytest.raises(EdgeswarmError, match=problem) as caught:
        check_evaluation(job(**more), model, items, training_inputs=INPUTS, folder=Path(__file__).parent)
    assert caught.value.code in (ErrorCode.JOB_INVALID, ErrorCode.JOB_FILE)
    assert model.training


def test_inputs_of_another_shape_than_the_trainings_are_refused() -> None:
    """The model that takes both is exported for one: the others would be found out after an epoch, or never."""
    model = nn.Sequential(nn.AdaptiveAvgPool1d(3), Model())
    wider = [(torch.ones(1, 5), 1)]
    with pytest.raises(EdgeswarmError, match=r"evaluation dataset's inputs are .* and the training's") as caught:
        check_evaluation(job(), model, wider, training_inputs=torch.zeros(4, 1, 7), folder=Path.cwd())
    assert caught.value.code is ErrorCode.JOB_INVALID
    assert "evaluation_transform" in caught.value.remedy
