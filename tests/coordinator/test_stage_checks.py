from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.profile import LayerCosts, ModelCosts
from edgeswarm_coordinator.stage_checks import Comparison, learn_correction, stages_to_check


def model(flops: list[float], *, param_bytes: int = 100, saved_bytes: int = 10) -> ModelCosts:
    layers = [
        LayerCosts(f"layer{number}", param_bytes, 4, saved_bytes, flops_forward=each)
        for number, each in enumerate(flops)
    ]
    return ModelCosts(input_bytes=4, layers=tuple(layers))


def test_halves_by_computing_and_the_whole() -> None:
    found = stages_to_check(model([4e6, 1e6, 1e6, 1e6]), largest_batch=256, memory_bytes=10**9)
    assert [(stage.first_layer, stage.end_layer) for stage in found] == [(0, 1), (1, 4), (0, 4)]
    assert {stage.batch_sizes for stage in found} == {(4, 32)}


def test_nothing_larger_than_half_of_the_memory() -> None:
    costs = model([1e6] * 4)
    # The whole: 2 x 400 bytes of parameters and gradients, 4 x 40 saved; a half takes half of it.
    assert [s.end_layer - s.first_layer for s in stages_to_check(costs, largest_batch=8, memory_bytes=1920)] == [
        2,
        2,
        4,
    ]
    assert [s.end_layer - s.first_layer for s in stages_to_check(costs, largest_batch=8, memory_bytes=1919)] == [2, 2]
    assert stages_to_check(costs, largest_batch=8, memory_bytes=959) == ()
    assert stages_to_check(model([1e6, 1e6]), largest_batch=8, memory_bytes=10**9) == ()


@given(st.floats(0.6, 1.9), st.floats(0.6, 1.9), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6))
def test_the_factors_are_found_again(small: float, large: float, summed: list[float]) -> None:
    found = learn_correction(
        [Comparison(size, each, factor * each) for size, factor in ((4, small), (32, large)) for each in summed]
    )
    assert found.factor(4) == pytest.approx(small, rel=1e-6)
    assert found.factor(32) == pytest.approx(large, rel=1e-6)
    assert found.relative_error == pytest.approx(0.0, abs=1e-9)
    assert found.factor(1) == found.factor(4)
    assert found.factor(500) == found.factor(32)
    assert min(small, large) * 0.999 <= found.factor(11) <= max(small, large) * 1.001


@given(st.lists(st.builds(Comparison, st.integers(1, 64), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)), max_size=8))
def test_a_correction_stays_plausible_whatever_was_measured(comparisons: list[Comparison]) -> None:
    found = learn_correction(comparisons)
    assert all(0.5 <= found.factor(size) <= 2.0 for size in (1, 8, 300))


def test_what_the_stages_disagree_about_is_its_error() -> None:
    found = learn_correction([Comparison(8, 1.0, 1.1), Comparison(8, 1.0, 1.3)])
    assert 1.1 < found.factor(8) < 1.3
    assert 0.05 < found.relative_error < 0.15
    assert learn_correction([]).factor(8) == 1.0
