"""Counters of energy, read from files as Linux has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.energy import Counter, joules_between, read_counters


def write_package(folder: Path, name: str, microjoules: str, largest: int = 1000, *, of: str = "package-0") -> None:
    (folder / name).mkdir()
    (folder / name / "name").write_text(f"{of}\n")
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{largest}\n")


def test_packages_are_read_and_neither_their_parts_nor_the_whole_board(tmp_path: Path) -> None:
    write_package(tmp_path, "intel-rapl:0", "700")
    write_package(tmp_path, "intel-rapl:0:0", "300", of="core")
    write_package(tmp_path, "intel-rapl:1", "nothing", of="package-1")
    write_package(tmp_path, "intel-rapl:2", "900", of="psys")
    (tmp_path / "intel-rapl").mkdir()
    assert read_counters(tmp_path) == {"intel-rapl:0": Counter(700, 1000)}


def test_no_sensor_is_no_number(tmp_path: Path) -> None:
    assert read_counters(tmp_path / "missing") == {}
    assert joules_between({}, {}) is None


def test_joules_of_all_packages_one_of_which_began_again() -> None:
    before = {"a": Counter(4_000_000, 9_000_000), "b": Counter(8_000_000, 9_000_000), "c": Counter(0, 1)}
    after = {"a": Counter(6_500_000, 9_000_000), "b": Counter(1_000_000, 9_000_000)}
    assert joules_between(before, after) == pytest.approx(2.5 + 2.0)
