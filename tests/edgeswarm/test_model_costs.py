from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeswarm.model_costs import LayerCosts, ModelCosts, TiedCosts


def test_model_sums() -> None:
    model = ModelCosts(
        7, (LayerCosts("a", 10, 1, 2), LayerCosts("b", 20, 3, 4, least_batch=2), LayerCosts("c", 0, 5, 6))
    )
    assert model.param_bytes(0, 2) == 30
    assert model.saved_bytes(1, 3) == 10
    assert model.cut_bytes.tolist() == [7, 1, 3, 5]
    assert (model.least_batch(0, 1), model.least_batch(0, 3)) == (1, 2)


def test_what_is_trained_and_what_is_answered_is_all_of_it_unless_it_is_said() -> None:
    model = ModelCosts(
        7,
        (
            LayerCosts("a", 10, 1, 2),
            LayerCosts("b", 20, 3, 4, trained_bytes=5, answered_bytes=0),
            LayerCosts("c", 9, 2, 0),
        ),
    )
    assert model.trained_bytes_before.tolist() == [0, 10, 15, 24]
    assert model.trained_bytes(1, 3) == 14
    assert model.cut_bytes.tolist() == [7, 1, 3, 2]
    assert model.answered_bytes.tolist() == [0, 1, 0, 2]


def test_what_waits_for_weights_is_all_that_is_saved_unless_it_is_said_of_every_layer() -> None:
    first, second = LayerCosts("a", 10, 1, 6, held_input_bytes=3, waiting_bytes=4), LayerCosts("b", 20, 3, 4)
    assert ModelCosts(7, (first, second)).waiting_bytes(0, 2) == 3 + 6 + 4
    assert ModelCosts(7, (first, second)).waiting_bytes(0, 1) == 4
    # Both read what is held once.
    assert ModelCosts(7, (first, replace(second, waiting_bytes=10))).waiting_bytes(0, 2) == 3 + 6 + 4


def test_no_more_can_be_trained_than_there_is() -> None:
    with pytest.raises(ValueError, match="layer a: trained_bytes is 11, of 10 param_bytes"):
        LayerCosts("a", 10, 1, 2, trained_bytes=11)


def test_a_tied_parameter_counts_once_in_a_stage_that_has_it_several_times() -> None:
    layers = tuple(LayerCosts(name, 10, 1, 2) for name in "abcd")
    model = ModelCosts(7, layers, tied=(TiedCosts((0, 2, 3), 8, 6),))
    assert [model.gradient_bytes(0, end) for end in (1, 2, 3, 4)] == [10, 20, 24, 28]
    assert (model.gradient_bytes(1, 3), model.gradient_bytes(2, 4)) == (20, 14)
    first, end = np.array([0, 1]), np.array([[4], [3]])
    assert model.gradient_bytes_of_runs(first, end).tolist() == [[28, 24], [24, 20]]


@pytest.mark.parametrize(("layers", "said"), [((1,), "two at least"), ((2, 1), "ascending"), ((0, 3), "among the 3")])
def test_what_is_no_tied_parameter(layers: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModelCosts(7, tuple(LayerCosts(name, 10, 1, 2) for name in "abc"), tied=(TiedCosts(layers, 8, 8),))
