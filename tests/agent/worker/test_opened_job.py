"""What a worker opens of a job, and that it does so once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgeswarm_agent.worker.opened_job import OpenedJob

JOB = """
import edgeswarm

opened = []


class Numbers:
    def __init__(self, name):
        opened.append(name)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return float(index), 0


job = edgeswarm.Job(
    model=lambda: None, dataset=lambda: Numbers("training"), loss=lambda output, targets: None,
    optimizer=lambda named: None, batch_size=2, epochs=1, {more}
)
job.loss.opened = opened
"""
EVALUATED = "evaluation_dataset=lambda: Numbers('evaluation'), metrics={}, "

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(more: str) -> Path:
        (tmp_path / "train.py").write_text(JOB.replace("{more}", more))
        return tmp_path

    return written


def opened_by(job: OpenedJob) -> list[str]:
    return list(job.job.loss.opened)  # type: ignore[attr-defined]  # the job file's own list


def test_data_sets_of_its_own_are_opened_once(write: Write) -> None:
    job = OpenedJob(write(EVALUATED + "data='local'"), "train.py", where="nano-1")
    assert opened_by(job) == []
    job.open_data()
    assert opened_by(job) == ["training", "evaluation"]
    assert (job.training(), job.evaluation()) == (job.training(), job.evaluation())
    assert opened_by(job) == ["training", "evaluation"]


def test_without_an_evaluation_there_is_one_set(write: Write) -> None:
    job = OpenedJob(write("data='local'"), "train.py", where="nano-1")
    job.open_data()
    assert opened_by(job) == ["training"]


def test_served_data_stay_where_they_are(write: Write) -> None:
    job = OpenedJob(write(EVALUATED + "data='served'"), "train.py", where="nano-1")
    job.open_data()
    assert opened_by(job) == []


def test_it_knows_which_file_it_is_of(write: Write) -> None:
    folder = write("")
    job = OpenedJob(folder, "train.py", where="nano-1")
    assert job.is_of(folder, "train.py")
    assert not job.is_of(folder, "other.py")
    assert not job.is_of(folder / "other", "train.py")
