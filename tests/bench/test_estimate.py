"""Ratios of rates, and the noise beside which they stand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from bench.estimate import Estimate
from bench.measuring import Spread


@pytest.mark.parametrize("ratios", [(0.99, 1.2, 1.3), (1.05, 1.2, 1.3), (0.7, 0.8, 0.9), (0.98, 1.0, 1.01)])
def test_it_does_not_matter_what_is_divided_by_what(ratios: tuple[float, ...]) -> None:
    estimate = Estimate({"edgeswarm": {0: 1.0}, "edgeswarm, again": {0: 1.0}})
    ways = [Spread.of(ratios), Spread.of([1 / ratio for ratio in ratios])]
    assert estimate.is_equal(ways[0]) == estimate.is_equal(ways[1])
    assert estimate.must_exceed(ways[0]) == pytest.approx(estimate.must_exceed(ways[1]))


def once_a_repeat(rates: Mapping[str, Mapping[int, float]], own_method: str) -> Estimate:
    runs: list[dict[str, Any]] = [
        {"wire": name, "repeat": repeat, "rate": rate}
        for name, of_repeats in rates.items()
        for repeat, rate in of_repeats.items()
    ]
    return Estimate.against_the_next(runs, lambda told: told["rate"], method="wire", own_method=own_method)


def test_what_ran_once_a_repeat_is_measured_against_its_next_run() -> None:
    estimate = once_a_repeat({"float32": {0: 1.0, 1: 1.21, 2: 1.0, 4: 3.0}, "float16": {0: 2.2, 2: 2.0}}, "float32")
    assert estimate.noise == pytest.approx(0.21)
    # The others of a repeat stand between its run and that of the next one, where there is one.
    assert estimate.own("float32") == pytest.approx({0: 1.1, 1: 1.1, 2: 1.0, 4: 3.0})
    ratio = estimate.speed_up("float32", of="float16")
    assert ratio is not None
    assert (ratio.least, ratio.most) == pytest.approx((2.0, 2.0))
    assert (estimate.shown(ratio), estimate.shown_noise) == ("2.00 (2.00 to 2.00)", "21%")
    back = estimate.speed_up("float16")
    assert back is not None
    assert back.median == pytest.approx(0.5)


def test_a_single_repeat_says_nothing_of_its_noise() -> None:
    estimate = once_a_repeat({"edgeswarm": {0: 3.0}, "gpipe": {0: 1.0}}, "edgeswarm")
    ratio = estimate.speed_up("gpipe")
    assert ratio is not None
    assert (estimate.noise, estimate.shown_noise, estimate.must_exceed(ratio)) == (None, "", math.inf)
    assert estimate.shown(ratio) == "equal (3.00)"
