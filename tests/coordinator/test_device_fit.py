from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm_coordinator.device_fit import (
    BYTE_IN_A_TRAINING,
    FRAMES_OF_A_ROUND,
    FRAMES_OF_AN_ACTION,
    curve_error,
    fit_device,
    summed_profile,
)
from edgeswarm_coordinator.process_costs import ProcessCosts, UpdateCosts
from edgeswarm_coordinator.profile_cache import Curve
from edgeswarm_coordinator.stage_checks import CheckedStage

from .small_graphs import small_graph

GRAPH = small_graph([["a"], ["b", "frozen"], ["c"]])  # 32 bytes a tensor, 64 bytes saved for a sample
SIZES = (1, 16, 256)
COSTS = ProcessCosts(base_bytes=7, frame_seconds=1e-3, byte_seconds=1e-9, updates={"momentum": UpdateCosts(1e-5, 1e-7)})
WHOLE = CheckedStage(0, 3, (4, 32))


def layer(seconds: float, *, sizes: tuple[int, ...] = SIZES, peak: int = 64) -> Curve:
    times = tuple(seconds * size for size in sizes)
    return Curve(sizes, times, tuple(2 * time for time in times), 256, peak_bytes=tuple(peak * size for size in sizes))


def test_a_curve_that_ended_early_goes_on_with_its_slope() -> None:
    profile = summed_profile([layer(1.0), layer(2.0, sizes=(1, 2))])
    assert profile.batch_sizes == (1, 2, 16, 256)
    assert [profile.forward(size, 1, 2) for size in (1, 2, 16, 256)] == [2.0, 4.0, 32.0, 512.0]


def test_what_a_whole_stage_takes_longer_is_on_its_layers() -> None:
    curves = [layer(1e-3, sizes=(1, 16, 32, 256))] * 3
    whole = Curve((4, 32), (1.8 * 12e-3, 1.5 * 96e-3), (0.7 * 24e-3, 0.8 * 192e-3), 256)
    profile = fit_device(GRAPH, curves=curves, stages={WHOLE: whole}, costs=COSTS, optimizer_state_factor=1.0).profile
    assert [profile.forward(size, 0, 3) for size in (1, 32, 256)] == pytest.approx(
        [1.8 * 3e-3, 1.5 * 96e-3, 1.5 * 768e-3]
    )
    assert [profile.backward(size, 0, 3) for size in (1, 32)] == pytest.approx([0.7 * 6e-3, 0.8 * 192e-3])
    assert 1.5 * 48e-3 < profile.forward(16, 0, 3) < 1.8 * 48e-3


def test_more_samples_never_cost_less_for_a_factor_that_falls() -> None:
    flat = Curve((4, 32), (1e-3, 1e-3), (1e-3, 1e-3), 256)
    whole = Curve((4, 32), (6e-3, 3e-3), (3e-3, 3e-3), 256)
    profile = fit_device(
        GRAPH, curves=[flat] * 3, stages={WHOLE: whole}, costs=COSTS, optimizer_state_factor=1.0
    ).profile
    assert profile.forward(32, 0, 3) == profile.forward(4, 0, 3) == pytest.approx(6e-3)


def test_frames_and_updates_come_from_the_process() -> None:
    fitted = fit_device(GRAPH, curves=[layer(1e-3)] * 3, stages={}, costs=COSTS, optimizer_state_factor=1.0)
    overheads = fitted.profile.overheads
    assert (overheads.frame_seconds, overheads.byte_seconds) == (1e-3, BYTE_IN_A_TRAINING * 1e-9)
    assert overheads.action_seconds == pytest.approx(FRAMES_OF_AN_ACTION * 1e-3)
    assert overheads.round_seconds == pytest.approx(FRAMES_OF_A_ROUND * 1e-3)
    # Frozen tensors aren't stepped on: each layer has one of 32 bytes.
    assert fitted.profile.update_seconds == pytest.approx((1e-5 + 32e-7,) * 3)
    adam = fit_device(GRAPH, curves=[layer(1e-3)] * 3, stages={}, costs=COSTS, optimizer_state_factor=2.0)
    assert adam.profile.update_seconds == (0.0, 0.0, 0.0), "it wasn't measured"


def test_a_layer_is_off_by_what_repeats_scattered_or_the_fit_moved() -> None:
    steady = layer(1e-3)
    assert curve_error(steady) == 0.0
    assert curve_error(replace(steady, relative_errors=(0.03, 0.04, 0.0))) == pytest.approx((0.0025 / 3) ** 0.5)
    # 11 and 10 become one mean, by relative squares: each is moved by about 5 %, in the forward alone, half of the seconds.
    falls = Curve((1, 2), (11.0, 10.0), (10.5, 10.5), 2)
    assert curve_error(falls) == pytest.approx(0.5 * 0.0476, rel=0.02)
    assert curve_error(replace(falls, relative_errors=(0.2, 0.2))) == pytest.approx(0.2)


def test_what_whole_stages_still_show_is_an_error_of_sums() -> None:
    curves = [replace(layer(1e-3), relative_errors=(0.02,) * 3)] * 3
    # Two points that no factor explains: the same layers took 10 % more once, 10 % less the other time.
    more = Curve((32,), (1.1 * 96e-3,), (2 * 96e-3,), 256)
    less = Curve((32,), (0.9 * 96e-3,), (2 * 96e-3,), 256)
    stages = {WHOLE: more, CheckedStage(0, 3, (32,)): less}
    profile = fit_device(GRAPH, curves=curves, stages=stages, costs=COSTS, optimizer_state_factor=1.0).profile
    assert profile.layer_errors == pytest.approx((0.02,) * 3)
    # About 10 % of the forward, which is a third of the seconds.
    assert profile.sums_error == pytest.approx(0.1 / 3, rel=0.05)
    alone = fit_device(GRAPH, curves=curves, stages={}, costs=COSTS, optimizer_state_factor=1.0).profile
    assert alone.sums_error == 0.0


def test_where_a_layer_was_measured_less_far_than_others_it_is_said() -> None:
    short = Curve((1, 4), (1e-3, 4e-3), (2e-3, 8e-3), 256)
    profile = fit_device(
        GRAPH, curves=[layer(1e-3), short, layer(1e-3)], stages={}, costs=COSTS, optimizer_state_factor=1.0
    ).profile
    assert profile.batch_sizes == (1, 4, 16, 256)
    assert profile.largest_measured == (256, 4, 256)


def test_what_weights_take_apart_goes_with_each_layer() -> None:
    curves = [layer(1e-3), replace(layer(1e-3), rest_part=0.5, weights_part=0.6), layer(1e-3)]
    profile = fit_device(GRAPH, curves=curves, stages={}, costs=COSTS, optimizer_state_factor=1.0).profile
    whole = profile.backward(16, 1, 2)
    assert profile.backward_apart(16, 1, 2) == pytest.approx((0.5 * whole, 0.6 * whole))
    assert profile.backward_apart(16, 2, 3) == pytest.approx((profile.backward(16, 2, 3), 0.0))
