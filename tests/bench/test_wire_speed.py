"""The table of narrow wires."""

from __future__ import annotations

from typing import Any

from bench.wire_speed import missing, report


def run(wire: str, repeat: int, seconds: float) -> dict[str, Any]:
    return {
        "wire": wire,
        "repeat": repeat,
        "round_seconds": [99.0, 99.0, seconds],
        "losses": [3.0, 2.5, 2.0],
        "document": {"stages": [{}, {}]},
    }


def test_a_narrow_wire_beside_the_wide_one() -> None:
    runs = [
        *(run("float32", repeat, seconds) for repeat, seconds in enumerate((2.0, 3.0, 2.4))),
        *(run("bfloat16", repeat, seconds) for repeat, seconds in enumerate((1.0, 2.0, 2.4))),
        {"wire": "float16", "repeat": 0, "error": "worker-died: ..."},
    ]
    rows = report([{"model": "mobilenet_v2", "runs": runs}]).rows
    assert rows[0] == ("mobilenet_v2", "float32", "2.40 (2.00 to 3.00)", *["1.00 (1.00 to 1.00)"] * 2, "2.0000", "2")
    assert rows[1][3] == "1.50 (1.00 to 2.00)"
    # One run of the narrow wire was slowed by something else.
    runs[5]["slowness"] = [1.0, 1.0, 1.2]
    assert report([{"model": "mobilenet_v2", "runs": runs}]).rows[1][4] == "1.50 (1.20 to 2.00)"
    assert rows[2][2] == "worker-died: ..."


def test_what_was_broken_off_goes_on_with_the_runs_that_lack() -> None:
    runs = [run(wire, 0, 1.0) for wire in ("float32", "bfloat16")]
    assert missing({"runs": runs}, repeats=2) == [(0, "float16"), (1, "float32"), (1, "bfloat16"), (1, "float16")]
    assert missing({"runs": runs}, repeats=0) == []
