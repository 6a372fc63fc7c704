"""Measuring again while the machine is slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.cell import measure_quietly
from edgeswarm.errors import EdgeswarmError, ErrorCode


def told_one_by_one(slownesses: list[float | None]) -> Callable[[float, float], float | None]:
    left = iter(slownesses)
    return lambda begin, end: next(left)


def measured(path: Path, slownesses: list[float | None]) -> tuple[str, list[str]]:
    """What is kept in the end, and what each try found there."""
    found: list[str] = []

    def measure() -> None:
        found.append(path.read_text() if path.exists() else "")
        path.write_text(f"{found[-1]}{len(found)}")

    measure_quietly(measure, path=path, slowness_of=told_one_by_one(slownesses))
    return path.read_text(), found


def test_one_try_is_enough_on_a_quiet_machine(tmp_path: Path) -> None:
    assert measured(tmp_path / "known", [1.05]) == ("1", [""])
    assert measured(tmp_path / "unknown", [None]) == ("1", [""])


def test_each_try_begins_with_what_was_known_and_the_quietest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text("before-")
    assert measured(path, [1.3, 1.2, 1.25]) == ("before-2", ["before-"] * 3)
    assert measured(tmp_path / "new", [1.3, 1.04]) == ("2", ["", ""])


def test_an_error_comes_out_with_what_was_measured_kept(tmp_path: Path) -> None:
    path = tmp_path / "known"

    def measure() -> None:
        path.write_text("curves")
        raise EdgeswarmError(ErrorCode.NO_PLAN_FITS, "too few devices", "more")

    with pytest.raises(EdgeswarmError, match="too few"):
        measure_quietly(measure, path=path, slowness_of=told_one_by_one([1.0]))
    assert path.read_text() == "curves"
