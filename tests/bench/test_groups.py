"""What both versions of control groups have in common, and which of them a machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.testbed import groups_here, groups_version_1, groups_version_2
from bench.testbed.groups import patiently, quota_and_period


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(0.12, (2_400, 20_000)), (2.0, (40_000, 20_000)), (0.01, (1_000, 100_000)), (0.0001, (1_000, 1_000_000))],
)
def test_a_quota_has_short_periods_that_the_kernel_takes(cores: float, expected: tuple[int, int]) -> None:
    assert quota_and_period(cores) == expected


def test_what_is_refused_is_tried_again() -> None:
    tries = iter([OSError("busy"), None])

    def act() -> None:
        if (problem := next(tries)) is not None:
            raise problem

    patiently(act)
    assert next(tries, "none left") == "none left"


def test_a_machine_without_either_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_version_1, "why_not", lambda: "cpu not found in /sys/fs/cgroup")
    monkeypatch.setattr(groups_version_2, "mount_point", lambda: None)
    assert groups_here.why_not() == (
        "needs control groups; of version 1: cpu not found in /sys/fs/cgroup; of version 2: no tree of them is mounted"
    )
    monkeypatch.setattr(groups_version_1, "why_not", lambda: "")
    assert groups_here.why_not() == ""


def test_which_version_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    groups_here.groups.cache_clear()
    try:
        monkeypatch.setattr(groups_version_1, "why_not", lambda: "")
        assert isinstance(groups_here.groups(), groups_version_1.Version1)
        groups_here.groups.cache_clear()
        monkeypatch.setattr(groups_version_1, "why_not", lambda: "none")
        monkeypatch.setattr(groups_version_2, "mount_point", lambda: Path("/a"))
        assert groups_here.groups().root == Path("/a/edgeswarm-bed")
    finally:
        groups_here.groups.cache_clear()
