"""A job's file and data sets are loaded once, whoever asks, and what goes wrong ahead is told later."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_agent.worker.loaded_job import LoadedJob

JOB = """
import pathlib

import torch

import edgeswarm

DONE = pathlib.Path(__file__).parent / "done.txt"


def note(what):
    with DONE.open("a") as file:
        file.write(what + " ")


class Data:
    def __init__(self, name):
        note(name)
        {opening}

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(2), 0


note("file")
{loading}
job = edgeswarm.Job(
    model=lambda: torch.nn.Linear(2, 2),
    dataset=lambda: Data("training"),
    {evaluation}
    loss=torch.nn.functional.cross_entropy,
    optimizer=lambda named: torch.optim.SGD([p for _, p in named], lr=0.1),
    batch_size=4,
    data="{data}",
)
"""
WITH_EVALUATION = 'evaluation_dataset=lambda: Data("evaluation"),'


def loaded(
    folder: Path, *, evaluation: str = WITH_EVALUATION, opening: str = "pass", loading: str = "", data: str = "local"
) -> LoadedJob:
    (folder / "train.py").write_text(JOB.format(evaluation=evaluation, opening=opening, loading=loading, data=data))
    return LoadedJob(folder, "train.py", where="nano-1")


def done(folder: Path) -> list[str]:
    return (folder / "done.txt").read_text().split()


def test_all_of_it_is_there_ahead_and_is_not_loaded_again(tmp_path: Path) -> None:
    job = loaded(tmp_path)
    job.load_ahead(opens_data=True)
    assert done(tmp_path) == ["file", "training", "evaluation"]
    assert (len(job.dataset), len(job.evaluation_dataset), job.job.batch_size) == (8, 8, 4)
    assert done(tmp_path) == ["file", "training", "evaluation"]


def test_a_device_that_needs_no_data_opens_none(tmp_path: Path) -> None:
    job = loaded(tmp_path)
    job.load_ahead(opens_data=False)
    assert done(tmp_path) == ["file"]


def test_samples_that_are_served_now_are_not_opened_here(tmp_path: Path) -> None:
    job = loaded(tmp_path, data="served")
    job.load_ahead(opens_data=True)
    assert done(tmp_path) == ["file"]


def test_a_job_without_evaluation_has_no_such_set(tmp_path: Path) -> None:
    loaded(tmp_path, evaluation="").load_ahead(opens_data=True)
    assert done(tmp_path) == ["file", "training"]


@pytest.mark.parametrize("wrong", [{"opening": "1 / 0"}, {"loading": "1 / 0"}, {"loading": "raise SystemExit(3)"}])
def test_what_goes_wrong_ahead_is_told_to_who_needs_it(tmp_path: Path, wrong: dict[str, str]) -> None:
    job = loaded(tmp_path, **wrong)
    job.load_ahead(opens_data=True)
    with pytest.raises(EdgeswarmError if "loading" in wrong else ZeroDivisionError) as caught:
        len(job.dataset)
    if isinstance(caught.value, EdgeswarmError):
        assert caught.value.code is ErrorCode.JOB_FILE
        assert "nano-1" in str(caught.value)


def test_it_is_of_one_file_in_one_folder(tmp_path: Path) -> None:
    job = loaded(tmp_path)
    assert job.is_of(tmp_path, "train.py")
    assert not job.is_of(tmp_path, "other.py")
    assert not job.is_of(tmp_path / "elsewhere", "train.py")
