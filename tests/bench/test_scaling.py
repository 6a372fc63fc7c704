"""Scaling: what is still to run, and the table of what has."""

from __future__ import annotations

from typing import Any

from bench.scaling import missing, nanos, report


def told(devices: int, planner: str, repeat: int, seconds: float, *, slowness: float = 1.0) -> dict[str, Any]:
    return {
        "devices": devices,
        "planner": planner,
        "repeat": repeat,
        "samples": 256 * devices,
        "round_seconds": [99.0, 99.0, seconds, seconds],
        "slowness": [1.0, 1.0, slowness, slowness],
    }


DOCUMENT = {
    "model": "mobilenet_v2",
    "runs": [
        told(1, "edgeswarm", 0, 10.0),
        told(4, "edgeswarm", 0, 11.0),
        told(4, "edgeswarm", 1, 20.0, slowness=2.0),
        {"devices": 4, "planner": "pipeline", "repeat": 0, "error": "no-plan-fits: ..."},
    ],
}


def test_what_is_missing_on_one_device_and_on_more() -> None:
    assert missing(DOCUMENT, 1, repeats=1) == []
    assert missing(DOCUMENT, 1, repeats=2) == [(1, "edgeswarm")]
    assert missing(DOCUMENT, 4, repeats=1) == [(0, "data-parallel")]


def test_rates_beside_one_device() -> None:
    rows = report([DOCUMENT]).rows
    assert rows[0] == ("mobilenet_v2", "1", *["25.6, x 1.00"] * 3, *["25.6"] * 3)
    four = ("97.7 (93.1 to 102.4), x 3.82", "", "no-plan-fits", "72.1 (51.2 to 93.1)", "", "no-plan-fits")
    assert rows[1] == ("mobilenet_v2", "4", *four)


def test_equal_nanos() -> None:
    environment = nanos(3)
    assert [device.name for device in environment.devices] == ["nano-1", "nano-2", "nano-3"]
    assert len({device.cores for device in environment.devices}) == 1
