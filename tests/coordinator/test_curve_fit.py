"""The fit, on noise that is made up and on curves that somebody measured (shared/data/harmony)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm_coordinator.curve_fit import cliffs, fit_curve, hiccups, isotonic

HARMONY = Path(__file__).parents[2].parent / "shared" / "data" / "harmony"

times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12)


@given(times)
def test_a_fit_never_falls_and_stays_within_what_was_measured(seconds: list[float]) -> None:
    fit = fit_curve(range(1, len(seconds) + 1), seconds)
    assert list(fit.seconds) == sorted(fit.seconds)
    assert min(seconds) <= fit.seconds[0]
    assert fit.seconds[-1] <= max(seconds)


@given(times.map(sorted))
def test_what_rises_is_left_alone(seconds: list[float]) -> None:
    fit = fit_curve(range(1, len(seconds) + 1), seconds)
    assert fit.seconds == pytest.approx(tuple(seconds), rel=1e-12)
    assert fit.relative_error == pytest.approx(0.0, abs=1e-12)


@given(times, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(seconds: list[float], unit: float) -> None:
    sizes = range(1, len(seconds) + 1)
    scaled = fit_curve(sizes, [unit * value for value in seconds]).seconds
    assert scaled == pytest.approx([unit * value for value in fit_curve(sizes, seconds).seconds], rel=1e-6)


def test_the_isotonic_fit_is_the_nearest_by_hand() -> None:
    fitted = isotonic(np.array([1.0, 3.0, 2.0, 4.0, 3.0, 2.0]), np.ones(6))
    assert fitted.tolist() == [1.0, 2.5, 2.5, 3.0, 3.0, 3.0]
    assert isotonic(np.array([3.0, 1.0]), np.array([1.0, 3.0])).tolist() == [1.5, 1.5]


def test_a_hiccup_is_taken_out_and_noise_is_not() -> None:
    assert hiccups(np.array([1.0, 9.0, 3.0, 2.9, 5.0])).tolist() == [False, True, False, False, False]
    assert fit_curve((1, 2, 3, 5), (1.0, 9.0, 3.0, 5.0)).seconds == pytest.approx((1.0, 2.0, 3.0, 5.0))


def test_a_fall_between_points_whose_repeats_agree_is_a_cliff() -> None:
    """A 1x1 convolution of ResNet-50 at 1, 2, 8, 16, 32 samples: another kernel from 16 on."""
    seconds = (15.0, 31.0, 96.0, 29.0, 59.0)
    steady = (0.015, 0.04, 0.006, 0.07, 0.013)
    assert fit_curve((1, 2, 8, 16, 32), seconds, steady).seconds == pytest.approx(seconds)
    assert fit_curve((1, 2, 8, 16, 32), seconds, steady).relative_error == pytest.approx(0.0)
    for unsteady in ((0.015, 0.04, 0.2, 0.07, 0.013), (0.015, 0.04, 0.0, 0.07, 0.013), ()):
        # 2 samples are a hiccup by the same token: 16 take less.
        assert max(fit_curve((1, 2, 8, 16, 32), seconds, unsteady).seconds) == 59.0


def test_either_side_of_a_cliff_is_without_noise() -> None:
    assert cliffs((10.0, 9.8, 2.0, 2.1), (0.02,) * 4) == [2]
    fit = fit_curve((4, 8, 16, 32), (10.0, 9.8, 2.1, 2.0), (0.02,) * 4)
    assert fit.seconds == pytest.approx((9.9, 9.9, 2.05, 2.05), rel=1e-2)


def test_nothing_measured_is_an_empty_curve() -> None:
    assert fit_curve((), ()).seconds == ()
    with pytest.raises(ValueError, match="2 batch sizes, but 1 times"):
        fit_curve((1, 2), (1.0,))


@given(st.floats(1e-4, 1.0), st.floats(1e-4, 0.1), st.integers(0, 2**32 - 1))
def test_of_a_noisy_line_half_of_the_noise_is_gone_or_it_did_not_matter(fixed: float, slope: float, seed: int) -> None:
    sizes = np.array([1, 2, 4, 8, 16, 32, 64])
    true = fixed + slope * sizes
    noisy = true * np.random.default_rng(seed).uniform(0.9, 1.1, len(sizes))
    fit = np.array(fit_curve(sizes.tolist(), noisy.tolist()).seconds)
    # The nearest rising curve is nearer to every rising curve than the noise is, the true one among them.
    weights = 1.0 / noisy**2
    assert (weights * (fit - true) ** 2).sum() <= (weights * (noisy - true) ** 2).sum() + 1e-12


@pytest.mark.shared
@pytest.mark.parametrize("name", ["bert_large_seqlen128", "vgg416", "gpt2_medium"])
def test_few_points_of_a_measured_curve_tell_the_rest(name: str) -> None:
    """The whole model's forward and backward, from the points that would have been chosen, against all that was measured."""
    from edgeswarm_agent.profiler.batch_choice import next_batch  # the chooser and the fit belong together

    path = HARMONY / f"{name}.json"
    if not path.exists():
        pytest.skip("needs the shared data")
    data = json.loads(path.read_text())
    sizes = [size for size in sorted(map(int, data["FWD"])) if size <= 256 and str(size) in data["BWD"]]
    table = np.array([np.add(data["FWD"][str(size)], data["BWD"][str(size)]) for size in sizes])
    whole = np.zeros(len(sizes))
    points = 0
    for layer in range(table.shape[1]):
        curve = dict(zip(sizes, table[:, layer].tolist(), strict=True))
        measured: dict[int, float] = {}
        while (size := next_batch(sorted(measured.items()), sizes)) is not None:
            measured[size] = curve[size]
        chosen = sorted(measured)
        points += len(chosen)
        whole += np.interp(sizes, chosen, fit_curve(chosen, [measured[size] for size in chosen]).seconds)
    off = np.abs(whole / table.sum(axis=1) - 1)
    assert points <= 6 * table.shape[1]
    assert float(np.median(off)) < 0.04
    assert float(np.quantile(off, 0.95)) < 0.12
