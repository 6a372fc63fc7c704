"""How near a cell comes to the ideal, read off its document."""

from __future__ import annotations

from typing import Any

import pytest

from bench.matrix_ideal import ideal_table, read_nearness
from tests.bench.test_matrix_resources import document


def document_of(cell: str, *, part_of_ideal: float, slower: float) -> dict[str, Any]:
    """Our rounds are `slower` times what was predicted, and reach that part of what the devices do alone."""
    made = document()
    predicted = made["plans"]["edgeswarm"]["predicted"]["round_seconds"]
    seconds = slower * predicted
    alone = made["mini_batch"] / seconds / part_of_ideal / 2
    rates = {"samples_per_second": alone, "plain_samples_per_second": alone / 2, "beside_others": 0.8 * alone}
    devices = made["runs"][0]["devices"]
    return {
        **made,
        "cell": cell,
        "device_classes": ["0.6", "0.12"],
        "alone": {"0.6": rates, "0.12": rates},
        "peers": {},
        "same_plan_as": {},
        "runs": [{"method": "edgeswarm", "repeat": 0, "round_seconds": [seconds], "devices": devices}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "part", "slower", "reached"),
    [
        ("C-100-mobilenet_v2", 0.72, 1.2, True),
        ("C-100-mobilenet_v2", 0.6, 1.06, True),
        ("C-100-mobilenet_v2", 0.6, 1.08, False),
        ("C-1000-mobilenet_v2", 0.79, 1.0, False),
        ("C-1000-bert_small", 0.86, 1.0, True),
        ("D-1000-resnet_50", 0.1, 2.0, True),
    ],
)
def test_what_is_wanted_depends_on_the_rate_and_the_model(cell: str, part: float, slower: float, reached: bool) -> None:
    near = read_nearness(document_of(cell, part_of_ideal=part, slower=slower))
    assert near is not None
    assert near.of_ideal.median == pytest.approx(part)
    assert near.behind_the_best_plan == pytest.approx(slower - 1)
    assert near.is_reached == reached


def test_the_table_says_what_keeps_a_round_from_the_ideal() -> None:
    near = read_nearness(document_of("C-100-mobilenet_v2", part_of_ideal=0.5, slower=1.25))
    assert near is not None
    table = ideal_table([near])
    (row,) = table.rows
    own = near.rate / near.own
    assert 0 < own < 1 / 1.25, "the plan itself is no faster than all devices at their best"
    shown = ("C-100-mobilenet_v2", "0.50", "", "0.50", "0.62", "1.00", f"{own:.2f}", "0.70", "0.62", "+25.0%")
    assert row[:10] == shown
    assert "computing in stage" in row[10]
    assert "nano-1" in row[11]
    (verdict,) = table.verdicts
    assert verdict == ("C-100-mobilenet_v2: 0.50 of the ideal (0.70 wanted), +25.0% behind the best plan known", False)


def test_the_ideal_is_that_of_the_same_pace_as_the_rounds() -> None:
    """A device that was measured in a slow moment by itself does more than that says."""
    told = document_of("C-100-mobilenet_v2", part_of_ideal=0.6, slower=1.0)
    (ours,) = told["runs"]
    told["runs"] = [{**ours, "slowness": [1.2]}]
    rates = told["alone"]["0.6"]
    told["alone"] = {
        "0.6": {**rates, "slowness": 1.5},
        "0.12": {**rates, "at_best_pace": 1.3 * rates["samples_per_second"]},
    }
    near = read_nearness(told)
    assert near is not None
    assert near.of_ideal.median == pytest.approx(0.6 * 1.2 / 1.4)
    assert ideal_table([near]).rows[0][3] == "0.60", "as measured"
    del told["alone"]["0.6"]["slowness"]
    unknown = read_nearness(told)
    assert unknown is not None
    assert unknown.of_ideal.median == pytest.approx(0.6)


def test_a_cell_that_has_not_run() -> None:
    assert read_nearness({**document_of("C-100-mobilenet_v2", part_of_ideal=0.5, slower=1.0), "runs": []}) is None
