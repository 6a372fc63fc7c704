from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.model_costs import LayerCosts, ModelCosts
from edgeswarm_coordinator.stage_checks import (
    Comparison,
    Correction,
    learn_correction,
    least_memory_bytes,
    stages_to_check,
)


def model(flops: list[float], *, param_bytes: int = 100, saved_bytes: int = 10) -> ModelCosts:
    layers = [
        LayerCosts(f"layer{number}", param_bytes, 4, saved_bytes, flops_forward=each)
        for number, each in enumerate(flops)
    ]
    return ModelCosts(input_bytes=4, layers=tuple(layers))


def spans(costs: ModelCosts, *, memory_bytes: int = 10**9) -> list[tuple[int, int]]:
    found = stages_to_check(costs, largest_batch=256)
    return [(stage.first_layer, stage.end_layer) for stage in found if least_memory_bytes(costs, stage) <= memory_bytes]


def test_parts_by_computing_and_the_whole() -> None:
    assert spans(model([1e6] * 8)) == [(0, 2), (2, 4), (4, 6), (6, 8), (0, 8)]
    # What computes more is in a smaller part; a part of one layer is left out, the third one here.
    assert spans(model([9e6, 9e6, *[1e6] * 8])) == [(0, 2), (3, 7), (7, 10), (0, 10)]
    found = stages_to_check(model([1e6] * 8), largest_batch=16)
    assert {stage.batch_sizes for stage in found} == {(1, 4, 16)}


def test_nothing_larger_than_half_of_the_memory() -> None:
    costs = model([1e6] * 8)
    # The whole: 2 x 800 bytes of parameters and gradients, 80 saved of one sample; a quarter takes a quarter of it.
    assert spans(costs, memory_bytes=3360)[-1] == (0, 8)
    assert spans(costs, memory_bytes=3359) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert spans(costs, memory_bytes=839) == []
    assert spans(model([1e6, 1e6])) == []


def compared(size: int, first: int, layers: Sequence[float], factors: Sequence[float]) -> Comparison:
    whole = sum(seconds * factor for seconds, factor in zip(layers, factors, strict=True))
    return Comparison(first, size, tuple(layers), whole)


@given(
    st.floats(0.7, 1.8),
    st.floats(0.7, 1.8),
    st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4),
)
def test_a_common_factor_is_found_again(small: float, large: float, layers: list[float]) -> None:
    found = learn_correction(
        [
            compared(size, first, layers[first:end], [factor] * (end - first))
            for size, factor in ((4, small), (32, large))
            for first, end in ((0, 2), (2, 4), (0, 4))
        ]
    )
    assert found.of_layers(4, 4) == pytest.approx([small] * 4, rel=1e-6)
    assert found.of_layers(32, 4) == pytest.approx([large] * 4, rel=1e-6)
    assert found.relative_error == pytest.approx(0.0, abs=1e-6)
    assert found.of_layers(1, 4) == pytest.approx(found.of_layers(4, 4))
    assert found.of_layers(500, 4) == pytest.approx(found.of_layers(32, 4))
    between = found.of_layers(11, 4)[0]
    assert min(small, large) * 0.999 <= between <= max(small, large) * 1.001


def test_each_part_has_a_factor_of_its_own() -> None:
    layers, factors = [1.0, 1.0, 1.0, 1.0], [0.9, 0.9, 1.2, 1.2]
    found = learn_correction(
        [
            compared(4, 0, layers[:2], factors[:2]),
            compared(4, 2, layers[2:], factors[2:]),
            compared(4, 0, layers, factors),
        ]
    )
    assert found.cuts == (0, 2, 4)
    first, _, _, last = found.of_layers(4, 4)
    # Drawn a little to what is common, since a single measurement may be wrong.
    assert 0.9 < first < 0.93
    assert 1.15 < last < 1.2
    assert 0 < found.relative_error < 0.03


def test_the_whole_says_how_large_factors_are_and_the_parts_how_they_are_spread() -> None:
    layers = [1.0, 1.0, 1.0, 1.0]
    parts = [(0, [1.0, 1.0]), (2, [1.5, 1.5])]
    measured = [compared(size, first, layers[:2], factors) for size in (32, 64, 128) for first, factors in parts]
    warm = learn_correction(measured)
    found = learn_correction([*measured, Comparison(0, 64, tuple(layers), 6.0)])
    assert sum(found.of_layers(64, 4)) == pytest.approx(6.0)
    assert found.of_layers(64, 4)[2] > 1.3 * found.of_layers(64, 4)[0]
    # A small device didn't time the whole with so many samples.
    assert found.of_layers(128, 4) == pytest.approx(warm.of_layers(128, 4) * 6 / 5, rel=0.05)
    assert found.relative_error > warm.relative_error


def test_with_few_samples_half_of_what_the_whole_says_counts() -> None:
    layers = [1.0, 1.0, 1.0, 1.0]
    measured = [compared(32, first, layers[:2], [1.0, 1.0]) for first in (0, 2)]
    found = learn_correction([*measured, Comparison(0, 32, tuple(layers), 4 * 1.44)])
    assert found.of_layers(32, 4) == pytest.approx([1.22] * 4, rel=0.04)


def test_what_the_whole_said_of_a_few_samples_fades_with_more() -> None:
    layers = [1.0, 1.0, 1.0, 1.0]
    measured = [compared(size, first, layers[:2], [1.0, 1.0]) for size in (1, 4, 16) for first in (0, 2)]
    found = learn_correction([*measured, Comparison(0, 1, tuple(layers), 4 * 1.44)])
    assert [found.of_layers(size, 4)[0] for size in (1, 4, 16)] == pytest.approx(
        [1.22, 1.22**0.5, 1.22**0.25], rel=0.04
    )


def test_a_part_that_a_small_device_could_not_time_is_halfway_to_what_fewer_samples_said() -> None:
    parts = [(0, 1.0), (2, 1.0), (4, 1.44)]
    few = [compared(4, first, [1.0, 1.0], [factor] * 2) for first, factor in parts]
    # Calls count for less with more samples: of the parts that were timed again, the factors are lower by a quarter.
    many = [compared(32, first, [1.0, 1.0], [0.75 * factor] * 2) for first, factor in parts[:2]]
    found = learn_correction([*few, *many]).of_layers(32, 6)
    assert found[:4] == pytest.approx([0.75] * 4, rel=0.01)
    assert found[4:] == pytest.approx([0.75 * 1.2] * 2, rel=0.04)
    # What it did time counts, whatever fewer samples said.
    timed = learn_correction([*few, *many, compared(32, 4, [1.0, 1.0], [0.75] * 2)]).of_layers(32, 6)
    assert timed == pytest.approx([0.75] * 6, rel=0.01)


def test_layers_outside_of_all_parts_go_with_the_nearest() -> None:
    found = Correction((8,), (1, 2, 4), ((0.8, 1.3),))
    assert found.of_layers(8, 6) == pytest.approx([0.8, 0.8, 1.3, 1.3, 1.3, 1.3])


@given(
    st.lists(
        st.builds(
            Comparison,
            st.integers(0, 3),
            st.integers(1, 64),
            st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=4).map(tuple),
            st.floats(1e-6, 1e3),
        ),
        max_size=8,
    )
)
def test_a_correction_stays_plausible_whatever_was_measured(comparisons: list[Comparison]) -> None:
    found = learn_correction(comparisons)
    for size in (1, 8, 300):
        factors = found.of_layers(size, 7)
        assert np.all((factors >= 0.5) & (factors <= 2.0))


def test_what_the_stages_disagree_about_is_its_error() -> None:
    found = learn_correction([Comparison(0, 8, (1.0,), 1.1), Comparison(0, 8, (1.0,), 1.3)])
    assert 1.1 < found.of_layers(8, 1)[0] < 1.3
    assert 0.05 < found.relative_error < 0.15
    assert learn_correction([]).of_layers(8, 2).tolist() == [1.0, 1.0]
