"""Profiles that were measured while something else had the processor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.starved_profile import MOST_STARVED, forget, read_profiles, slowed, starved
from edgeswarm_coordinator.process_costs import ProcessCosts
from edgeswarm_coordinator.profile_cache import FILE_NAME, Curve, Link, Profiles

CURVE = Curve((1, 2), (1.0, 2.0), (1.0, 2.0), asked=2)


def profiles() -> Profiles:
    return Profiles(
        curves={("nx", "float32", "a"): CURVE, ("nano", "float32", "a"): CURVE, ("nx", "float32", "b"): CURVE},
        processes={"nx": ProcessCosts(1, stretch=5.3), "nano": ProcessCosts(1, stretch=8.7)},
        links={("nx-1", "nano-1"): Link(1e7, 1e-4, 0.0)},
    )


def test_a_cpu_second_takes_as_long_as_the_quota_says() -> None:
    found = profiles()
    assert starved(found, "nano", cores=0.12) == pytest.approx(1.044)
    assert starved(found, "nano", cores=0.12) < MOST_STARVED < starved(found, "nx", cores=0.6)
    assert starved(Profiles(processes={"desktop": ProcessCosts(1, stretch=1.0)}), "desktop", cores=4.0) == 1.0


def test_a_class_is_slowed_where_the_machine_was_slower_than_for_another() -> None:
    assert slowed({"nano-1": 1.12, "nx-1": 1.11, "tx2-1": 1.31}) == ("tx2-1",)
    assert slowed({"nano-1": 1.24, "nx-1": 1.14, "tx2-1": None}) == ()
    assert slowed({"nano-1": None}) == ()


def test_one_kind_is_forgotten_and_the_others_stay(tmp_path: Path) -> None:
    assert read_profiles(tmp_path) == Profiles()
    (tmp_path / FILE_NAME).write_text(json.dumps(profiles().to_json()))
    forget(tmp_path, "nx")
    left = read_profiles(tmp_path)
    assert set(left.curves) == {("nano", "float32", "a")}
    assert set(left.processes) == {"nano"}
    assert left.links == profiles().links
