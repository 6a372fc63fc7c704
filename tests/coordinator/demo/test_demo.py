"""The parts of the demo that need no cluster: its job, its test, its refusals."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job_file import load_job
from edgeswarm_coordinator.demo import demo, digits_job

pytest.importorskip("sklearn", reason="the demo's images come with scikit-learn")


def test_the_job_file_loads_as_a_users_does() -> None:
    job = load_job(demo.JOB_FILE.parent, demo.JOB_FILE.name)
    assert job.batch_size == digits_job.BATCH_SIZE


def test_training_and_test_images_are_all_there_are_and_none_is_in_both() -> None:
    training, test = digits_job.training_set(), digits_job.test_set()
    assert len(training) + len(test) == 1797
    assert len(test) == 360
    image, label = training[0]
    assert (image.shape, image.dtype.name, type(label)) == ((1, 8, 8), "uint8", int)
    assert (training[0][0] == image).all(), "an item is always the same one"


def test_the_model_takes_what_the_transform_gives() -> None:
    training = digits_job.training_set()
    image, _ = digits_job.transform(training[0], torch.Generator())
    assert 0.0 <= float(image.min()) <= float(image.max()) == 1.0
    assert digits_job.DigitsCNN()(torch.stack([image, image])).shape == (2, 10)


def test_the_learning_rate_warms_up_and_falls() -> None:
    factors = [digits_job.learning_rate_schedule(number) for number in range(400)]
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors[-1] == pytest.approx(0.02)


def test_evaluate_loads_the_checkpoint_into_the_plain_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = digits_job.DigitsCNN()
    with torch.no_grad():
        model.get_parameter("classifier.4.bias")[3] = 1e6  # it always answers 3
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    assert demo.evaluate(tmp_path) == (digits_job.test_set().labels.count(3), 360)


def test_without_scikit_learn_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EdgeswarmError) as caught:
        demo.require_scikit_learn()
    assert caught.value.code is ErrorCode.MISSING_EXTRA
    assert "pip install" in caught.value.remedy


def test_what_is_to_be_kept_goes_to_a_free_folder(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(EdgeswarmError) as caught:
        demo.run_demo(Console(quiet=True), keep=tmp_path, cancel=threading.Event())
    assert caught.value.code is ErrorCode.OUTPUT_EXISTS
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_demo_that_is_cancelled_at_once_leaves_nothing(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(EdgeswarmError) as caught:
        demo.run_demo(Console(quiet=True), keep=None, cancel=cancel)
    assert caught.value.code is ErrorCode.INTERRUPTED
