"""Environments of the testbed: the four that are there, one of one's own, and mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.testbed.environment import load_environment
from edgeswarm.errors import EdgeswarmError, ErrorCode


@pytest.mark.parametrize(
    ("letter", "devices", "cores"), [("A", 5, 0.6), ("B", 5, 0.96), ("C", 6, 1.56), ("D", 4, 1.14)]
)
def test_those_that_are_there(letter: str, devices: int, cores: float) -> None:
    environment = load_environment(letter)
    assert (environment.name, len(environment.devices)) == (letter, devices)
    assert environment.cores == pytest.approx(cores)
    assert {device.mbps for device in environment.devices} == {100.0}
    assert {device.mbps for device in load_environment(letter, mbps=1000).devices} == {1000.0}


OWN = """
mbps = 50
[classes]
box = { cores = 0.5, memory_mib = 64 }
laptop = { cores = 0.25, memory_mib = 128, mbps = 300 }
[devices]
box = 2
laptop = 1
"""


def test_one_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "home.toml"
    path.write_text(OWN)
    environment = load_environment(str(path))
    assert environment.name == "home"
    assert [(device.name, device.cores, device.memory_bytes >> 20, device.mbps) for device in environment.devices] == [
        ("box-1", 0.5, 64, 50.0),
        ("box-2", 0.5, 64, 50.0),
        ("laptop-1", 0.25, 128, 300.0),
    ]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("mbps = 50", "mbps =", "no TOML"),
        ("mbps = 50", "", "mbps"),
        ("box = 2", "fridge = 2", "fridge"),
        ("cores = 0.5,", "cores = 0,", "not above 0"),
        ("cores = 0.5,", "cores = 2,", "divide the cores of all classes"),
        ("box = 2\nlaptop = 1", "", "0 devices"),
        ("laptop", "grandmothers_laptop", "longer than"),
    ],
)
def test_a_mistake_is_named(before: str, after: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "home.toml"
    path.write_text(OWN.replace(before, after))
    with pytest.raises(EdgeswarmError, match=words) as caught:
        load_environment(str(path))
    assert caught.value.code is ErrorCode.CONFIG
    assert str(path) in caught.value.message


def test_no_such_environment() -> None:
    with pytest.raises(EdgeswarmError, match="Z") as caught:
        load_environment("Z")
    assert "A, B, C, D" in caught.value.remedy
