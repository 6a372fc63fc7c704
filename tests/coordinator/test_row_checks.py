from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from edgeswarm.job import Job
from edgeswarm_coordinator.row_checks import row_warnings

Tensor = torch.Tensor
LABELS = torch.tensor([0, 2, 1, 1])


def warnings(model: nn.Module, loss: Callable[..., Any], inputs: Any = None, targets: Any = LABELS) -> str:
    torch.manual_seed(0)
    job = Job(model=print, dataset=print, loss=loss, optimizer=print, batch_size=8)  # type: ignore[arg-type]
    return " ".join(row_warnings(job, model, torch.rand(4, 6) if inputs is None else inputs, targets))


class Of(nn.Module):
    """A linear layer, and a function of what it makes."""

    def __init__(self, function: Callable[..., Any], *, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(6, outputs)
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.linear(inputs[0]), *inputs[1:])


def plain(scores: Tensor) -> Tensor:
    return scores


def weighted(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores, labels, weight=torch.tensor([1.0, 5.0, 0.2]))


def counted(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    weight = torch.tensor([1.0, 5.0, 0.2])
    return functional.cross_entropy(scores, labels, weight=weight, reduction="sum"), weight[labels].sum()


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (Of(plain), functional.cross_entropy),
        (Of(plain), counted),
        (Of(lambda scores: {"logits": scores, "unused": None}), lambda o, t: functional.cross_entropy(o["logits"], t)),
        (Of(lambda scores: scores.t()), lambda o, t: functional.cross_entropy(o.t(), t)),  # the samples lie second
        # They lie second, and both dimensions in one.
        (
            Of(lambda s: s.view(-1, 3, 1).transpose(0, 1).flatten(0, 1)),
            lambda o, t: (o.view(3, -1).t() - t[:, None]).mean(),
        ),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout()), functional.cross_entropy),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)), functional.cross_entropy),
        (Of(plain), lambda o, t: functional.cross_entropy(o, t) / 0.0),
        (Of(lambda scores: scores + torch.rand(3)), functional.cross_entropy),  # draws: nothing can be told
    ],
)
def test_what_treats_each_row_by_itself_is_passed(model: nn.Module, loss: Callable[..., Any]) -> None:
    assert warnings(model, loss) == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda scores: scores - scores.mean(dim=0),
        lambda scores: scores @ scores.t(),
        lambda scores: scores.flip(0),
    ],
)
def test_a_model_that_mixes_samples_is_told(function: Callable[..., Any]) -> None:
    said = warnings(Of(function), lambda output, _: output.square().mean())
    assert "depends on the other samples of its batch" in said


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (weighted, LABELS),
        (functional.cross_entropy, torch.tensor([0, -100, 1, 2])),
        (lambda o, t: functional.mse_loss(o[:, 0], t.float()).sqrt(), LABELS),
    ],
)
def test_a_loss_that_is_no_mean_over_rows_is_told(loss: Callable[..., Any], targets: Tensor) -> None:
    said = warnings(Of(plain), loss, targets=targets)
    assert "The loss of 4 samples" in said
    assert "return (sum, count)" in said


def test_a_part_in_which_nothing_counts_is_told() -> None:
    """A mean over the labels that aren't left out is 0 / 0 where all are: in plain PyTorch where a whole batch is so."""
    targets = torch.tensor([0, 1, -100, -100])
    losses: tuple[Callable[..., Any], ...] = (
        functional.cross_entropy,
        lambda o, t: (functional.cross_entropy(o, t) * (t >= 0).sum(), (t >= 0).sum()),
    )
    for loss in losses:
        said = warnings(Of(plain), loss, targets=targets)
        assert "is no number: of 4 samples' halves it is" in said
        assert ", nan." in said
    summed = lambda o, t: (functional.cross_entropy(o, t, reduction="sum"), (t >= 0).sum())  # noqa: E731
    assert warnings(Of(plain), summed, targets=targets) == ""


class Annealed:
    """A loss whose second term grows from call to call."""

    calls = 0

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return functional.cross_entropy(output, targets) + output.square().mean() * self.calls / 1000


def test_a_loss_that_keeps_something_from_call_to_call_is_told() -> None:
    assert "it keeps something from call to call" in warnings(Of(plain), Annealed())
    draws = lambda o, t: functional.cross_entropy(o + torch.rand(3), t)  # noqa: E731
    assert warnings(Of(plain), draws) == ""


def test_sums_and_counts_that_do_not_add_up_are_told() -> None:
    said = warnings(Of(plain), lambda o, t: (functional.cross_entropy(o, t), 1))
    assert "those of two halves don't add up" in said


def test_a_loss_inside_the_model_is_seen_too() -> None:
    """Hugging Face's models return one where the labels are among the inputs."""
    model = Of(lambda scores, labels: {"loss": functional.cross_entropy(scores, labels), "logits": scores})
    inputs = (torch.rand(4, 6), torch.tensor([0, -100, 1, 2]))
    assert "The loss of 4 samples" in warnings(model, lambda output, _: output["loss"], inputs)
    assert warnings(model, lambda output, _: output["loss"], (inputs[0], LABELS)) == ""


def test_a_loss_that_fails_for_one_sample_is_told() -> None:
    loss = functional.binary_cross_entropy_with_logits
    targets = torch.tensor([0.0, 1.0, 1.0, 0.0])
    said = warnings(Of(plain, outputs=1), lambda o, t: loss(o.squeeze(), t), targets=targets)
    assert "The loss fails for one sample (ValueError: " in said
    assert warnings(Of(plain, outputs=1), lambda o, t: loss(o.squeeze(1), t), targets=targets) == ""


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        (torch.rand(3, 6), LABELS[:3]),  # too few
        ((torch.rand(4, 6), 1.5), LABELS),
    ],
)
def test_what_cannot_be_cut_into_rows_says_nothing(inputs: Any, targets: Any) -> None:
    assert warnings(Of(lambda scores, *_: scores.flip(0)), lambda o, _: o.mean(), inputs, targets) == ""


def test_of_targets_that_are_no_tensors_the_loss_is_not_asked() -> None:
    names = ["a", "b", "c", "d"]
    assert warnings(Of(plain), lambda o, _: o.square().mean().sqrt(), targets=names) == ""
