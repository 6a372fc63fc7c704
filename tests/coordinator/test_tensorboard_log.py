from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.controller import TrainOptions, train
from edgeswarm_coordinator.events import EvaluationDone, Event, ModelReady, RoundDone, RoundParts, Warning, ignore
from edgeswarm_coordinator.tensorboard_log import logging_to_tensorboard

MODEL = ModelReady(("layer",), 100, "float32")


def round_done(number: int, loss: float) -> RoundDone:
    return RoundDone(
        round=number,
        rounds=4,
        epoch=0,
        loss=loss,
        samples=8,
        seconds=0.5,
        samples_per_second=99.0,
        seconds_left=None,
        stage_use=(0.5,),
        parts={
            "nano-1": RoundParts(seconds=0.5, forward=0.125, backward=0.125),
            "nano-2": RoundParts(seconds=0.5, step=0.125),
        },
        gradient_norm=loss * 2,
        learning_rate_factor=1 / (1 + number),
    )


def evaluation(number: int) -> EvaluationDone:
    return EvaluationDone(number, 0, {"loss": 0.75, "accuracy": 0.5}, samples=4, seconds=0.1, best=True)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By tag: (step, value), as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_what_is_told_is_in_the_event_files_and_passed_on(tmp_path: Path) -> None:
    heard: list[Event] = []
    told: list[Event] = [MODEL, round_done(0, 2.0), round_done(1, 1.0), evaluation(2)]
    with logging_to_tensorboard(tmp_path / "deep" / "logs", heard.append) as listener:
        for event in told:
            listener(event)
    assert heard == told
    assert scalars(tmp_path / "deep" / "logs") == {
        "loss/training": [(1, 2.0), (2, 1.0)],
        "optimizer/gradient_norm": [(1, 4.0), (2, 2.0)],
        "optimizer/learning_rate_factor": [(1, 1.0), (2, 0.5)],
        "speed/samples_per_second": [(1, 16.0), (2, 16.0)],
        "use/nano-1": [(1, 0.5), (2, 0.5)],
        "use/nano-2": [(1, 0.25), (2, 0.25)],
        "loss/evaluation": [(2, 0.75)],
        "metric/accuracy": [(2, 0.5)],
    }


def test_what_is_not_known_has_no_curve_and_a_loss_that_is_no_number_is_one(tmp_path: Path) -> None:
    bare = dataclasses.replace(
        round_done(0, math.nan), gradient_norm=None, learning_rate_factor=None, parts={}, seconds=0.0
    )
    with logging_to_tensorboard(tmp_path, ignore) as listener:
        listener(bare)
    found = scalars(tmp_path)
    assert list(found) == ["loss/training"]
    assert math.isnan(found["loss/training"][0][1])


def test_a_training_that_goes_on_replaces_what_was_told_after_its_checkpoint(tmp_path: Path) -> None:
    with logging_to_tensorboard(tmp_path, ignore) as listener:
        for number in range(3):
            listener(round_done(number, 2.0))
    with logging_to_tensorboard(tmp_path, ignore) as listener:
        for number in (1, 2, 3):
            listener(round_done(number, 1.0))
    assert scalars(tmp_path)["loss/training"] == [(1, 2.0), (2, 1.0), (3, 1.0), (4, 1.0)]


def test_nothing_is_loaded_or_written_where_no_folder_is_given() -> None:
    with logging_to_tensorboard(None, ignore) as listener:
        assert listener is ignore


def test_a_missing_package_is_said_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(EdgeswarmError, match="tensorboard, which is not installed") as caught:
        train(TrainOptions(job_path=tmp_path / "job.py", output=tmp_path / "out", tensorboard=tmp_path / "logs"))
    assert caught.value.code is ErrorCode.MISSING_EXTRA
    assert "edgeswarm[tensorboard]" in caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(EdgeswarmError, match="TensorBoard's files can't be written to") as caught,
        logging_to_tensorboard(tmp_path / "file", ignore),
    ):
        pass
    assert caught.value.code is ErrorCode.OUTPUT_FAILED


def test_a_log_that_fails_is_a_warning_and_the_training_goes_on(tmp_path: Path) -> None:
    heard: list[Event] = []
    folder = tmp_path / "logs"
    with logging_to_tensorboard(folder, heard.append) as listener:
        folder.rmdir()
        folder.touch()
        for number in range(3):
            listener(round_done(number, 1.0))
    assert [type(event) for event in heard] == [RoundDone, Warning, RoundDone, RoundDone]
    assert isinstance(heard[1], Warning)
    assert f"TensorBoard's files in {folder} end here" in heard[1].message


def test_an_installation_that_does_not_import_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Event] = []
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with logging_to_tensorboard(tmp_path / "logs", heard.append) as listener:
        listener(MODEL)
        listener(round_done(0, 1.0))
    assert [type(event) for event in heard] == [ModelReady, Warning, RoundDone]
