from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm_coordinator.job_checks import CheckedJob, check_job

Named = list[tuple[str, torch.nn.Parameter]]


class Images(list[Any]):
    """Ten uint8 images with labels."""

    def __init__(self) -> None:
        super().__init__((torch.full((4,), n, dtype=torch.uint8), n % 3) for n in range(10))


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(), torch.nn.Linear(5, 3)
    )


class Unfinished(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.exit("no model yet")


def to_float(sample: Any, _: torch.Generator) -> Any:
    return sample[0].float(), sample[1]


def mean(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, targets)


def total(output: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:
    return torch.nn.functional.cross_entropy(output, targets, reduction="sum"), len(targets)


def sgd(named: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.1)


def by_name(named: Named) -> torch.optim.Optimizer:
    groups: tuple[Named, Named] = ([], [])
    for name, parameter in named:
        groups["bias" in name].append((name, parameter))
    return torch.optim.AdamW(
        [
            {"params": [parameter for _, parameter in groups[0]], "weight_decay": 0.1},
            {"params": [parameter for _, parameter in groups[1]], "weight_decay": 0.0},
        ]
    )


def check(built: Any = None, dataset: Any = None, batch_size: int = 6, **fields: Any) -> CheckedJob:
    values: dict[str, Any] = {"loss": mean, "optimizer": sgd, "transform": to_float} | fields
    job = Job(model=model, dataset=Images, batch_size=batch_size, **values)
    return check_job(
        job,
        model() if built is None else built,
        Images() if dataset is None else dataset,
        folder=Path(__file__).parent,
        batch_size=batch_size,
    )


def refused(**fields: Any) -> EdgeswarmError:
    with pytest.raises(EdgeswarmError) as caught:
        check(**fields)
    assert caught.value.remedy
    return caught.value


def test_a_sound_job_and_its_sample_batch() -> None:
    checked = check()
    assert (checked.loss_counts, checked.dataset_length) == (False, 10)
    assert checked.inputs.shape == (4, 4)
    assert checked.inputs.dtype == torch.float32
    assert checked.targets.tolist() == [0, 1, 2, 0]
    assert checked.target_bytes == 8
    assert check(loss=total).loss_counts
    assert check(optimizer=by_name).dataset_length == 10


def test_nothing_of_the_model_or_the_random_state_changes() -> None:
    built = model().eval()
    before = {name: value.clone() for name, value in built.state_dict().items()}
    state = torch.get_rng_state()
    check(built)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in built.state_dict().items())
    assert not any(module.training for module in built.modules())
    assert all(parameter.grad is None for parameter in built.parameters())


def test_the_transform_is_tried_on_what_a_device_gets() -> None:
    """A tensor of a class of its own is a plain one there."""

    class Mask(torch.Tensor):
        pass

    def of_masks(sample: Any, _: torch.Generator) -> Any:
        assert type(sample[0]) is torch.Tensor
        return to_float(sample, _)

    items = [(torch.zeros(4, dtype=torch.uint8).as_subclass(Mask), 1)] * 8
    check(dataset=items, transform=of_masks)
    with pytest.raises(EdgeswarmError, match="AssertionError"):
        check(dataset=items, transform=of_masks, data="local")


class Resting(torch.nn.Sequential):
    """Leaves its batch norm in evaluation mode whatever it is told."""

    def train(self, mode: bool = True) -> Resting:
        super().train(mode)
        self[1].eval()
        return self


def test_parts_that_do_not_stay_in_evaluation_mode_are_a_warning() -> None:
    built = model()
    for index in (1, 2):
        built.get_submodule(str(index)).eval()
    (warning,) = check(built).warnings
    assert "model() leaves 1 and 1 more in evaluation mode" in warning
    assert not built.get_submodule("1").training
    assert check(model().eval()).warnings == ()
    assert check(Resting(*model()[:2], *model()[3:]).train()).warnings == ()  # type: ignore[index]


class Strange(Images):
    def __getitem__(self, index: Any) -> Any:
        return 3


class Broken(Images):
    def __getitem__(self, index: Any) -> Any:
        raise OSError("bad sector")


class Empty(Images):
    def __len__(self) -> int:
        return 0


class Drawn(Images):
    """Items that differ each time they are read."""

    def __getitem__(self, index: Any) -> Any:
        return torch.rand(4), index % 3


def raising(*_: Any) -> Any:
    raise RuntimeError("shapes differ\nCheck failed at\n  #0 some C++ function")


def in_double(sample: Any, _: torch.Generator) -> Any:
    return sample[0].float(), torch.zeros(3, dtype=torch.float64)


def overwriting(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    powers = output.exp()
    value = powers.sum()
    powers.mul_(2.0)
    return value


def named_too(sample: Any, _: torch.Generator) -> Any:
    return {"input": sample[0].float(), "name": "a.jpg"}, sample[1]


def uneven(sample: Any, _: torch.Generator) -> Any:
    return torch.ones(5 if sample[0][0] == 2 else 4), sample[1]


def mislabelled(sample: Any, _: torch.Generator) -> Any:
    return sample[0].float(), 9 if sample[0][0] == 3 else sample[1]


class ForSix(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(values.view(6, 4))
        return result


def test_a_model_for_whole_batches_alone_is_told_so() -> None:
    error = refused(built=ForSix(), batch_size=6)
    assert error.code is ErrorCode.EXPORT_FAILED
    assert error.message.startswith(
        "The model runs on batch_size=6 samples and not on fewer: test_job_checks.py, line "
    )
    assert "x.shape[0]" in error.remedy
    assert refused(built=ForSix(), batch_size=7).code is ErrorCode.JOB_FILE


def test_items_that_differ_each_time_are_a_warning() -> None:
    (warning,) = check(dataset=Drawn(), transform=None).warnings
    assert "Item 0 of the dataset differs each time" in warning
    assert "`transform`" in warning
    assert check().warnings == ()


def test_a_loss_that_reads_the_models_parameters_is_refused_and_weights_of_its_own_are_told() -> None:
    built = model()
    with pytest.raises(EdgeswarmError, match="The loss computes with parameters of the model itself"):
        check(built, loss=lambda output, targets: mean(output, targets) + built[0].weight.square().sum())  # type: ignore[index]
    scale = torch.nn.Parameter(torch.ones(3))
    (warning,) = check(built, loss=lambda output, targets: mean(output * scale, targets)).warnings
    assert "The loss has weights of its own" in warning


class Flipped(Images):
    """Augmented as it is read, in one case of many."""

    def __getitem__(self, index: Any) -> Any:
        image, label = super().__getitem__(index)
        return (image.flip(0) if random.random() < 1e-9 else image), label


def test_items_that_draw_are_a_warning_where_nothing_differs_yet() -> None:
    (warning,) = check(dataset=Flipped()).warnings
    assert "Item 0 of the dataset draws random numbers" in warning


def test_a_loss_over_the_whole_batch_is_a_warning() -> None:
    torch.manual_seed(0)  # of some weights the halves have nearly the loss of all
    (warning,) = check(
        loss=lambda output, targets: torch.nn.functional.mse_loss(output[:, 0], targets * 1.0).sqrt()
    ).warnings
    assert "return (sum, count)" in warning


def test_samples_from_the_whole_set_are_tried_for_it() -> None:
    """Sorted by label the first four of ten are alike."""
    dataset = [(torch.full((4,), n, dtype=torch.uint8), n // 4) for n in range(10)]
    weights = torch.tensor([1.0, 4.0, 9.0])
    (warning,) = check(
        dataset=dataset, loss=lambda output, targets: torch.nn.functional.cross_entropy(output, targets, weight=weights)
    ).warnings
    assert "The loss of 4 samples" in warning


def test_lazy_layers_have_their_first_statistics_again() -> None:
    built = torch.nn.Sequential(torch.nn.LazyLinear(5), torch.nn.LazyBatchNorm1d(), torch.nn.Linear(5, 3))
    assert check(built=built).warnings == ()
    found = dict(built.named_buffers())
    assert {name: value.tolist() for name, value in found.items()} == {
        "1.running_mean": [0.0] * 5, "1.running_var": [1.0] * 5, "1.num_batches_tracked": 0
    }  # fmt: skip


def test_of_a_long_text_the_first_line_is_told_and_the_rest_is_detail() -> None:
    error = refused(loss=raising)
    assert "#0" not in error.message
    assert "#0 some C++ function" in error.detail


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"built": "net"}, r"model\(\) returns a str"),
        ({"dataset": Empty()}, "dataset is empty"),
        ({"batch_size": 11}, "batch_size is 11, and the dataset has only 10"),
        ({"dataset": Strange()}, "not a pair"),
        ({"dataset": Broken()}, r"^test_job_checks.py, line \d+: OSError: bad sector \(while reading item 0"),
        ({"dataset": [({1}, 2)] * 9}, "holds a set"),
        ({"transform": lambda sample, _: sample[0]}, r"transform\(sample, generator\) returns a Tensor, not a pair"),
        ({"transform": lambda sample, _: (*sample, 1)}, r"transform\(sample, generator\) returns 3 values, not a pair"),
        ({"transform": raising}, "shapes differ .*calling transform.* item 0"),
        ({"transform": None}, r"running the model on inputs uint8 \[4, 4\], in its module 0 \(Linear\),"),
        (
            {"transform": uneven},
            r"Items 0 and 2 .* one is \(float32 \[4\], int\), the other \(float32 \[5\], int\)",
        ),
        ({"transform": mislabelled}, r"Item 3 of the dataset has the label 9 .* 3 classes, 0 to 2"),
        ({"loss": raising}, r"shapes differ .*running the loss on output float32 \[4, 3\] and targets int64 \[4\]"),
        (
            {"transform": in_double, "loss": torch.nn.functional.huber_loss},
            r"dtype.*running the backward of the loss, of output float32 \[4, 3\] and targets float64 \[4, 3\]",
        ),
        ({"loss": overwriting}, "modified by an inplace operation.*running the backward of the loss"),
        ({"transform": named_too}, r"inputs have a str for each sample, at inputs\['name'\]"),
        ({"learning_rate_schedule": raising}, "shapes differ .*schedule for round 0"),
        ({"built": Unfinished()}, r"SystemExit: no model yet .while running the model on inputs float32 \[4, 4\]"),
        ({"loss": lambda *_: sys.exit("no loss yet")}, "SystemExit: no loss yet .while running the loss"),
        ({"learning_rate_schedule": lambda _: "0.1"}, r"learning_rate_schedule\(0\) returns '0.1', not a number"),
        ({"learning_rate_schedule": lambda _: float("nan")}, r"returns nan, not a number"),
        ({"loss": lambda output, _: output.sum(dim=1)}, r"The loss returns a tensor of shape \(4,\)"),
        ({"loss": lambda output, _: float(output.detach().sum())}, "The loss returns a float"),
        ({"loss": lambda output, _: (output.sum(), 1, 2)}, "returns 3 values"),
        ({"loss": lambda output, _: (output.sum(), float("nan"))}, "count is nan"),
        ({"loss": lambda output, _: output.sum() / 0}, "samples is (inf|nan|-inf)"),
        ({"loss": lambda output, _: output.sum().detach()}, "doesn't depend on any parameter"),
        ({"optimizer": raising}, "making the optimizer"),
        ({"optimizer": lambda _: 3}, "returns an int"),
        ({"optimizer": lambda named: torch.optim.LBFGS([p for _, p in named])}, "LBFGS computes the loss several"),
        ({"optimizer": lambda _: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])}, "was not given"),
        ({"built": model().requires_grad_(False)}, "doesn't depend on any parameter"),
    ],
)
def test_what_is_wrong_is_said(fields: dict[str, Any], said: str) -> None:
    error = refused(**fields)
    assert error.code in (ErrorCode.JOB_INVALID, ErrorCode.JOB_FILE, ErrorCode.DATA_FAILED)
    with pytest.raises(EdgeswarmError, match=said):
        raise error
