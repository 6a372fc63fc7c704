from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm_coordinator.initial_weights import load_initial_weights
from tests.zoo import ZOO, vit

Tensors = dict[str, torch.Tensor]


class Tied(nn.Module):
    """A tied weight, running statistics, a buffer that isn't saved."""

    def __init__(self, *, classes: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, classes, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.zeros(3), persistent=False)


class OfALibrary(nn.Linear):
    """As Hugging Face's library makes models: it draws weights, and knows what an older version called them."""

    config = (3, 2)

    @classmethod
    def from_pretrained(
        cls, _path: None, *, config: tuple[int, int], state_dict: Tensors, **_options: bool
    ) -> tuple[nn.Module, dict[str, list[str]]]:
        model = cls(*config)
        renamed = {name.removeprefix("older."): value for name, value in state_dict.items()}
        report = model.load_state_dict(renamed, strict=False)
        return model, {"missing_keys": report.missing_keys, "unexpected_keys": report.unexpected_keys}


def load(model: nn.Module, path: Path) -> tuple[str, ...]:
    job = Job(
        model=lambda: model,
        dataset=lambda: [],
        loss=nn.functional.cross_entropy,
        optimizer=lambda named: torch.optim.SGD([p for _, p in named]),
        batch_size=1,
        weights=path.name,
    )
    return load_initial_weights(job, model, folder=path.parent)


def other_weights(model: nn.Module) -> Tensors:
    """New values for everything that state_dict has, the tied weight under its first name alone."""
    generator = torch.Generator().manual_seed(3)
    known = dict(model.named_parameters()) | dict(model.named_buffers())
    return {
        name: (torch.randn(value.shape, generator=generator, dtype=torch.float64) * 3).to(value.dtype)
        for name, value in model.state_dict().items()
        if name in known
    }


def refusal(model: nn.Module, path: Path) -> EdgeswarmError:
    """The error; the model is as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(EdgeswarmError) as caught:
        load(model, path)
    assert caught.value.code is ErrorCode.WEIGHTS
    assert caught.value.remedy
    assert str(path) in caught.value.message
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return caught.value


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
def test_every_tensor_of_the_file_is_the_models(tmp_path: Path, suffix: str) -> None:
    model = Tied()
    weights = other_weights(model)
    path = tmp_path / f"weights.{suffix}"
    save_file(weights, path) if suffix == "safetensors" else torch.save(weights, path)
    assert load(model, path) == ()
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in weights.items())
    assert torch.equal(model.head.weight, weights["embedding.weight"])
    assert model.head.weight is model.embedding.weight


def test_tied_weights_may_be_given_under_either_name_or_both(tmp_path: Path) -> None:
    model, path = Tied(), tmp_path / "weights.safetensors"
    weights = other_weights(model)
    tied = weights.pop("embedding.weight")
    save_file({**weights, "head.weight": tied}, path)
    load(model, path)
    assert torch.equal(model.embedding.weight, tied)
    save_file({**weights, "head.weight": tied, "embedding.weight": tied.clone()}, path)
    load(model, path)
    save_file({**weights, "head.weight": tied, "embedding.weight": tied + 1}, path)
    assert "embedding.weight and head.weight, which are one" in refusal(model, path).message.replace(
        "head.weight and embedding.weight", "embedding.weight and head.weight"
    )


def test_a_buffer_that_the_model_makes_itself_is_passed_over(tmp_path: Path) -> None:
    model, path = Tied(), tmp_path / "weights.safetensors"
    save_file({**other_weights(model), "mask": torch.ones(3)}, path)
    load(model, path)
    assert torch.equal(model.get_buffer("mask"), torch.zeros(3))


def test_names_that_the_models_own_library_knows_are_taken_as_it_renames_them(tmp_path: Path) -> None:
    model, path = OfALibrary(3, 2), tmp_path / "weights.safetensors"
    weights = other_weights(model)
    save_file({f"older.{name}": value for name, value in weights.items()}, path)
    before = torch.random.get_rng_state()
    assert load(model, path) == ()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    save_file({f"other.{name}": value for name, value in weights.items()}, path)
    assert "that the model doesn't have (other." in refusal(model, path).message


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["bert_small", "gpt2", "vit", "swin", "resnet_50"])
def test_what_hugging_faces_library_saves_is_loaded(tmp_path: Path, name: str) -> None:
    """GPT-2's file has its tied weight once; ViT's and Swin's have the names of older versions."""
    saved, model = ZOO[name].small.make(), ZOO[name].small.make()
    saved.save_pretrained(tmp_path)  # type: ignore[operator]
    before = torch.random.get_rng_state()
    assert load(model, tmp_path / "model.safetensors") == ()
    assert torch.equal(torch.random.get_rng_state(), before)
    wanted = saved.state_dict()
    assert all(torch.equal(value, wanted[key]) for key, value in model.state_dict().items())


@pytest.mark.thorough
def test_a_hugging_face_file_that_does_not_fit_is_told_in_its_own_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = ZOO["vit"].small.make()
    saved.save_pretrained(tmp_path)  # type: ignore[operator]
    path = tmp_path / "model.safetensors"
    other = refusal(ZOO["bert_small"].small.make(), path)
    assert "tensors (bert.embeddings.word_embeddings.weight" in other.message
    assert "that the model doesn't have (vit.embeddings.cls_token" in other.message
    capsys.readouterr()
    same_kind = refusal(vit(image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=1), path)
    assert "that the model doesn't have (vit.encoder.layer." in same_kind.message
    assert capsys.readouterr() == ("", "")


def test_more_digits_than_the_model_holds_are_a_warning(tmp_path: Path) -> None:
    model, path = Tied(), tmp_path / "weights.safetensors"
    weights = other_weights(model)
    floating = {name: value for name, value in weights.items() if value.is_floating_point()}
    save_file({**weights, **{name: value.double() for name, value in floating.items()}}, path)
    (warning,) = load(model, path)
    assert warning == "The weights in weights.safetensors are float64, the model is float32: 5 tensors lose digits."
    assert model.head.weight.dtype == torch.float32
    save_file({**weights, **{name: value.bfloat16() for name, value in floating.items()}}, path)
    assert load(model, path) == ()
    assert torch.equal(model.norm.bias, weights["norm.bias"].bfloat16().float())


def without_norm(weights: Tensors) -> Tensors:
    return {name: value for name, value in weights.items() if not name.startswith("norm.")}


@pytest.mark.parametrize(
    ("change", "message", "remedy"),
    [
        (
            without_norm,
            "lack 5 of the model's 7 tensors (norm.weight, norm.bias, norm.running_mean and 2 more).",
            "model.state_dict()",
        ),
        (
            lambda weights: {**weights, "extra.weight": torch.ones(2)},
            "have 1 that the model doesn't have (extra.weight).",
            "model.state_dict()",
        ),
        (
            lambda weights: {f"module.{name}": value for name, value in weights.items()},
            "have 6 that the model doesn't have (module.",
            "Save model.module.state_dict()",
        ),
    ],
    ids=["missing", "unknown", "wrapped"],
)
def test_names_that_are_not_the_models_are_named(
    tmp_path: Path, change: Callable[[Tensors], Tensors], message: str, remedy: str
) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(change(other_weights(Tied())), path)
    error = refusal(Tied(), path)
    assert message in error.message
    assert remedy in error.remedy


def test_other_shapes_are_named_with_both(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(other_weights(Tied(classes=5)), path)
    error = refusal(Tied(), path)
    assert "in 1 of 7 tensors (embedding.weight is [5, 4], not [6, 4])." in error.message


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    missing = refusal(Tied(), tmp_path / "weights.safetensors")
    assert "doesn't exist" in missing.message
    assert "relative to the job file" in missing.remedy
    assert "is a folder" in refusal(Tied(), tmp_path).message


def header(document: object) -> bytes:
    text = json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("weights.safetensors", b""),
        ("weights.safetensors", b"no tensors at all, but some text"),
        ("weights.safetensors", header({"norm.bias": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})),
        ("weights.pt", b""),
        ("weights.pt", b"no tensors at all, but some text"),
    ],
    ids=["empty", "text", "cut off", "empty pt", "text pt"],
)
def test_bytes_that_are_no_weights(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert "can't be read: " in refusal(Tied(), path).message


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_file_that_is_cut_off(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    weights = other_weights(Tied())
    save_file(weights, path) if suffix == "safetensors" else torch.save(weights, path)
    path.write_bytes(path.read_bytes()[:-40])
    assert "can't be read: " in refusal(Tied(), path).message


def test_a_torch_file_with_more_than_tensors_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(Tied(), path)
    error = refusal(Tied(), path)
    assert "it holds more than tensors" in error.message
    assert "torch.save(model.state_dict()" in error.remedy
    torch.save({"model": other_weights(Tied()), "epoch": 3}, path)
    assert "its entry 'model' is a dict, not a tensor" in refusal(Tied(), path).message
    torch.save([torch.ones(1)], path)
    assert "it holds a list, not tensors by name" in refusal(Tied(), path).message
