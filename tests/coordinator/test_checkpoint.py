from __future__ import annotations

import errno
import json
import re
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from edgeswarm import synced_files
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import TensorSpec
from edgeswarm.snapshot import LayerState, unpack_values, write_layer_file
from edgeswarm_coordinator import checkpoint
from edgeswarm_coordinator.checkpoint import write_result
from edgeswarm_coordinator.layer_files import LayerFiles
from edgeswarm_coordinator.manifest import MANIFEST_NAME


class Tied(torch.nn.Module):
    """A tied weight, running statistics, a buffer that isn't saved, a parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.spare = torch.nn.Parameter(torch.rand(2))
        self.register_buffer("mask", torch.ones(3), persistent=False)


def result(model: Tied) -> dict[str, Any]:
    """Two layers with the model's state, both with the tied weight, and AdamW's state."""
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(list(named.values()), lr=0.5)
    for parameter in named.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {name: optimizer.state[parameter] for name, parameter in named.items()}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    buffers = dict(model.named_buffers())
    tied = "embedding.weight"
    first = LayerState(
        9, {tied: named[tied]}, {"mask": buffers["mask"]}, {"lifted": torch.ones(1)}, {tied: state[tied]}, groups
    )
    second = LayerState(
        9,
        {name: named[name] for name in ("norm.weight", "norm.bias", tied)},
        {name: buffer for name, buffer in buffers.items() if name != "mask"},
        optimizer={name: state[name] for name in ("norm.weight", "norm.bias", tied)},
        groups=groups,
    )
    specs = [
        TensorSpec(name, tuple(p.shape), "float32", "parameter", True, ("head.weight",) if name == tied else ())
        for name, p in named.items()
    ]
    specs += [
        TensorSpec(name, tuple(b.shape), str(b.dtype)[6:], "buffer", False, (), name != "mask")
        for name, b in buffers.items()
    ]
    specs.append(TensorSpec("lifted", (1,), "float32", "constant", False))
    return {
        "layer_states": [first, second],
        "tensors": {spec.name: spec for spec in specs},
        "plan": {"format": "edgeswarm-plan/1"},
        "metrics": {"loss": float("nan"), "totals": {"rounds": 2}},
        "round_lines": [b'{"loss": 0.5}', b'{"loss": null}'],
        "unused": {"spare": model.spare},
    }


def test_plain_pytorch_loads_the_model_strictly(tmp_path: Path) -> None:
    model, fresh = Tied(), Tied()
    write_result(tmp_path / "deep" / "out", **result(model))
    loaded = safetensors.torch.load_file(tmp_path / "deep" / "out" / "model.safetensors")
    fresh.load_state_dict(loaded, strict=True)
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in model.state_dict().items())


def test_optimizer_metrics_and_plan(tmp_path: Path) -> None:
    out = tmp_path / "out"
    written = result(Tied())
    write_result(out, **written)
    assert {path.name for path in out.iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "optimizer.json",
        "metrics.json",
        "plan.json",
    }
    document = json.loads((out / "optimizer.json").read_text())
    tensors = safetensors.torch.load_file(out / "optimizer.safetensors")
    assert document["round"] == 9
    state: Any = unpack_values(document["state"], tensors)
    assert list(state) == ["embedding.weight", "norm.weight", "norm.bias"]
    assert state["norm.bias"]["step"].item() == 1
    assert torch.equal(state["norm.bias"]["exp_avg"], torch.full((4,), 0.1))
    groups: Any = unpack_values(document["groups"], tensors)
    assert (groups[0]["lr"], groups[0]["betas"]) == (0.5, (0.9, 0.999))
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics == {"loss": None, "totals": {"rounds": 2}, "rounds": [{"loss": 0.5}, {"loss": None}]}
    assert json.loads((out / "plan.json").read_text()) == written["plan"]


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    for make in (Path.mkdir, Path.touch):
        out = tmp_path / make.__name__
        make(out)
        with pytest.raises(EdgeswarmError, match="exists already") as caught:
            write_result(out, **result(Tied()))
        assert caught.value.code is ErrorCode.OUTPUT_EXISTS


@pytest.mark.parametrize("broken", ["missing", "shape"])
def test_a_layer_that_has_not_come_whole_is_named(tmp_path: Path, broken: str) -> None:
    written = result(Tied())
    if broken == "missing":
        written["layer_states"] = written["layer_states"][:1]
    else:
        written["layer_states"][1].parameters["norm.weight"] = torch.ones(9)
    with pytest.raises(EdgeswarmError, match=r"norm\.weight is (missing|of shape \(9,\), not \(4,\))") as caught:
        write_result(tmp_path / "out", **written)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert not list(tmp_path.iterdir())


def test_it_is_not_in_memory_as_a_whole(tmp_path: Path) -> None:
    """Model, best model and AdamW's state are four times the weights: what a training needed no memory for on this machine."""
    count = 4 << 20  # of weights, 16 MiB
    made = torch.zeros(count)
    state = LayerState(
        9, parameters={"w": made}, optimizer={"w": {"exp_avg": made, "exp_avg_sq": made.clone()}}, groups=[{"lr": 0.1}]
    )
    write_layer_file(tmp_path, 0, state)
    del made, state
    layers = LayerFiles(tmp_path, round=9, layers=1).all()
    held_bytes = 1024 * int(re.findall(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (held_bytes + 3 * 4 * count, before[1]))
    try:
        write_result(
            tmp_path / "out",
            layer_states=layers,
            best_states=layers,
            tensors={"w": TensorSpec("w", (count,), "float32", "parameter", True)},
            plan={},
            metrics={"rounds": 1},
            round_lines=[],
        )
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert (tmp_path / "out" / "optimizer.safetensors").stat().st_size > 2 * 4 * count


@pytest.mark.parametrize("name", ["out", "[a-z] out*"])
def test_what_a_killed_command_left_half_written_is_removed_and_nothing_else(tmp_path: Path, name: str) -> None:
    ours = f".{name}.0123456789ab"
    others = {
        f".{name}.0123456789ab.txt",
        f".{name}.0123456789AB",
        f".{name}.0123456789abc",
        f".{name}.0123456789a",
        f".{name}.v1.0123456789ab",
        f".{name}-2.0123456789ab",
        ".b out.0123456789ab",
        f"{name}.0123456789ab",
        f"{name}.unfinished",
    }
    for folder in (ours, *others):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.safetensors").touch()
    write_result(tmp_path / name, **result(Tied()))
    assert {path.name for path in tmp_path.iterdir()} == {name, *others}
    assert all((tmp_path / folder / "model.safetensors").exists() for folder in others)


@pytest.mark.parametrize(
    ("left", "remedy"),
    [
        ((), "Free space there, or choose another folder with --output."),
        (
            ("out.unfinished",),
            r"move .*/out\.unfinished to a disk with room, and go on with --resume --output DISK/out\.",
        ),
    ],
    ids=["no checkpoint", "a checkpoint"],
)
def test_a_full_disk_leaves_nothing_but_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...], remedy: str
) -> None:
    for folder in left:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / MANIFEST_NAME).touch()
    write = synced_files.write_synced

    def full(path: Path, parts: Iterable[bytes]) -> None:
        if path.name == "metrics.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, parts)

    monkeypatch.setattr(checkpoint, "write_synced", full)
    with pytest.raises(EdgeswarmError, match="No space left on device") as caught:
        write_result(tmp_path / "out", **result(Tied()))
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert re.search(remedy, caught.value.remedy)
    assert {path.name for path in tmp_path.iterdir()} == {*left}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EdgeswarmError, match="can't be written") as caught:
        write_result(tmp_path / "file" / "out", **result(Tied()))
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
