"""Every example is short enough to be read, loads, and has a page that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeswarm.job_file import load_job
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_samples import collate_items, encode_items

ROOT = Path(__file__).parents[2]
FILES = tuple(sorted((ROOT / "examples").glob("*.py")))
HELPERS = ("make_backbone",)
JOBS = tuple(path for path in FILES if path.stem not in HELPERS)
PAGES = ROOT / "docs" / "examples"
LINES_BELOW = 80
PICKED = (0, 1, 7)


def as_sent(item: Any) -> bytes:
    """The item's bytes as they travel to a device."""
    return bytes(encode_items([item], SamplePart.BOTH))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < LINES_BELOW


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_page_names_the_file_and_the_index_names_the_page(path: Path) -> None:
    page = PAGES / f"{path.stem}.md"
    assert f"edgeswarm train examples/{path.name}" in page.read_text()
    assert f"({page.name})" in (PAGES / "README.md").read_text()


def test_every_page_is_of_an_example() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {"README", *(path.stem for path in JOBS)}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_items_are_the_same_whenever_they_are_asked_for_and_make_a_batch(path: Path) -> None:
    job = load_job(path.parent, path.name)
    assert job.evaluation_dataset is not None
    for open_dataset in (job.dataset, job.evaluation_dataset):
        first, again = open_dataset(), open_dataset()
        assert len(first) == len(again)
        for index in PICKED:
            assert as_sent(first[index]) == as_sent(again[index])
        assert collate_items([first[index] for index in PICKED]) is not None


@pytest.mark.thorough
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_nothing_is_both_trained_on_and_evaluated(path: Path) -> None:
    job = load_job(path.parent, path.name)
    assert job.evaluation_dataset is not None
    training, evaluation = job.dataset(), job.evaluation_dataset()
    seen = {as_sent(training[index]) for index in range(len(training))}
    both = sum(as_sent(evaluation[index]) in seen for index in range(len(evaluation)))
    assert both <= 0.02 * len(evaluation), "but for what is in the data twice, as licences are"
