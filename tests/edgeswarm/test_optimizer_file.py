from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import edgeswarm
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import TensorSpec
from edgeswarm.optimizer_file import JSON_NAME, TENSORS_NAME, write_optimizer
from edgeswarm.snapshot import LayerState

Make = Callable[[nn.Module], torch.optim.Optimizer]


class Tied(nn.Module):
    """A tied weight, and a parameter that never gets a gradient."""

    def __init__(self, *, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, width)
        self.middle = nn.Linear(width, width)
        self.head = nn.Linear(width, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(torch.tanh(self.middle(self.embedding(ids))))
        return scores


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.dim() == 1], "lr": 0.02},
    ]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups_of(model), lr=0.1, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups_of(model), lr=0.1, amsgrad=True)


def rounds(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for number in range(count):
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(torch.tensor([number % 6, 2])), torch.tensor([1, 5]))
        loss.backward()
        optimizer.step()


def built() -> Tied:
    torch.manual_seed(1)
    return Tied()


def write(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, done: int) -> Path:
    """The files as they are written from two layers, both of which hold the tied weight."""
    named = dict(model.named_parameters())
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    for group in groups:
        group["initial_lr"] = group["lr"]
        group["lr"] = group["lr"] / 4
    state = {name: optimizer.state[p] for name, p in named.items() if optimizer.state.get(p)}
    layers = [
        LayerState(done, optimizer={"embedding.weight": state["embedding.weight"]}, groups=groups),
        LayerState(done, optimizer=state, groups=groups),
    ]
    specs = {name: TensorSpec(name, tuple(p.shape), "float32", "parameter", True) for name, p in named.items()}
    folder.mkdir()
    write_optimizer(folder, layers, specs)
    return folder


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_new_optimizer_goes_on_to_the_same_bits(tmp_path: Path, make: Make, as_file: bool) -> None:
    model = built()
    optimizer = make(model)
    rounds(model, optimizer, 3)
    folder = write(tmp_path / "out", model, optimizer, done=3)
    other = built()
    other.load_state_dict(model.state_dict())
    fresh = make(other)
    assert edgeswarm.load_optimizer(folder / JSON_NAME if as_file else folder, other, fresh) == 3
    for group, values in zip(fresh.param_groups, ((0.1, 0.01), (0.02, None)), strict=True):
        assert group["lr"] == values[0] / 4
        assert group["initial_lr"] == values[0]
        assert values[1] is None or group["weight_decay"] == values[1]
        group["lr"] = values[0]
    rounds(model, optimizer, 2)
    rounds(other, fresh, 2)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    assert torch.equal(other.spare, torch.ones(3))


def test_a_schedule_goes_on_at_its_round(tmp_path: Path) -> None:
    model = built()
    optimizer = sgd(model)
    rounds(model, optimizer, 1)
    folder = write(tmp_path / "out", model, optimizer, done=7)
    fresh = sgd(model)
    done = edgeswarm.load_optimizer(str(folder), model, fresh)
    torch.optim.lr_scheduler.LambdaLR(fresh, lambda number: 1 / (1 + number), last_epoch=done - 1)
    assert [group["lr"] for group in fresh.param_groups] == [0.1 / 8, 0.02 / 8]


def one_group(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def head_alone(model: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": [next(model.parameters())]}, {"params": [list(model.parameters())[-1]]}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def of_another_model(model: nn.Module) -> torch.optim.Optimizer:
    return sgd(Tied())


@pytest.mark.parametrize(
    ("model", "make", "message"),
    [
        (Tied, one_group, "the optimizer has 1 parameter groups, and that of the training 2"),
        (Tied, adamw, "group 0 of the optimizer has amsgrad, betas, .* had dampening, momentum.*AdamW is not what"),
        (lambda: Tied(width=5), sgd, r"embedding.weight is \[6, 5\] in this model, and \[6, 4\] in the one"),
        (lambda: nn.Linear(4, 4), one_group, "the model has no parameter .*middle.weight"),
        (Tied, head_alone, r"doesn't train .*middle.weight"),
        (Tied, of_another_model, r"doesn't train .* parameters of the very model"),
    ],
    ids=["groups", "kind", "shape", "names", "fewer", "another model's"],
)
def test_what_does_not_fit_is_said_and_nothing_is_changed(
    tmp_path: Path, model: Callable[[], nn.Module], make: Make, message: str
) -> None:
    trained = built()
    optimizer = sgd(trained)
    rounds(trained, optimizer, 1)
    folder = write(tmp_path / "out", trained, optimizer, done=1)
    fresh_model = model()
    fresh = make(fresh_model)
    with pytest.raises(ValueError, match=message):
        edgeswarm.load_optimizer(folder, fresh_model, fresh)
    assert not fresh.state
    assert fresh.param_groups[0]["lr"] == 0.1


def damage(folder: Path, how: str) -> None:
    document_path, tensors_path = folder / JSON_NAME, folder / TENSORS_NAME
    document: dict[str, Any] = json.loads(document_path.read_text())
    if how == "no folder":
        document_path.unlink()
        tensors_path.unlink()
        folder.rmdir()
    elif how == "no tensors":
        tensors_path.unlink()
    elif how == "cut off":
        tensors_path.write_bytes(tensors_path.read_bytes()[:-10])
    elif how == "no json":
        document_path.write_text("{")
    else:
        changes: Mapping[str, Mapping[str, Any]] = {
            "format": {"format": "edgeswarm-plan/1"},
            "round": {"round": -1},
            "state": {"state": {"list": []}},
            "groups": {"groups": 3},
            "shapes": {"shapes": {"middle.weight": "wide"}},
        }
        document_path.write_text(json.dumps({**document, **changes[how]}))


@pytest.mark.parametrize(
    "how", ["no folder", "no tensors", "cut off", "no json", "format", "round", "state", "groups", "shapes"]
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, how: str) -> None:
    model = built()
    optimizer = sgd(model)
    rounds(model, optimizer, 1)
    folder = write(tmp_path / "out", model, optimizer, done=1)
    damage(folder, how)
    with pytest.raises(EdgeswarmError, match=r"The optimizer's state in .*out.* can't be read: ") as caught:
        edgeswarm.load_optimizer(folder, model, sgd(model))
    assert caught.value.code is ErrorCode.CHECKPOINT
    assert caught.value.remedy
