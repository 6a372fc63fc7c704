from __future__ import annotations

import pytest

from edgeswarm_coordinator.profile_cache import Curve
from edgeswarm_coordinator.unheld_layers import with_guesses

NONE = Curve((), (), (), asked=8)


def curve(seconds: float, *, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> Curve:
    """Of which a forward is a third."""
    times = tuple(seconds * size for size in sizes)
    return Curve(
        sizes, tuple(t / 3 for t in times), tuple(t * 2 / 3 for t in times), asked=8, peak_bytes=(9,) * len(sizes)
    )


def test_what_is_known_stays() -> None:
    known = {"nano": [curve(1.0), curve(2.0)], "nx": [curve(0.5), curve(0.25)]}
    assert with_guesses(known) == known


def test_a_layer_takes_as_many_times_longer_as_the_others_together() -> None:
    nano, nx = [curve(4.0), curve(8.0, sizes=(1, 2)), NONE], [curve(1.0), curve(3.0), curve(9.0)]
    found = with_guesses({"nano": nano, "nx": nx})
    assert found["nx"] == nx
    assert found["nano"][:2] == nano[:2]
    guessed = found["nano"][2]
    # At the largest size that both have: 8 samples of the one and 2 of the other.
    ratio = (8 * 4 + 2 * 8) / (8 * 1 + 2 * 3)
    assert guessed.batch_sizes == (1, 2, 4, 8)
    assert guessed.forward_seconds == pytest.approx([ratio * 3 * size for size in guessed.batch_sizes])
    assert guessed.backward_seconds == pytest.approx([ratio * 6 * size for size in guessed.batch_sizes])
    assert guessed.peak_bytes == ()


def test_the_hardware_with_the_most_layers_in_common_says_it() -> None:
    found = with_guesses({
        "nano": [curve(4.0), curve(4.0), NONE],
        "tx2": [curve(1.0), NONE, curve(1.0)],
        "nx": [curve(2.0), curve(2.0), curve(7.0)],
    })  # fmt: skip
    assert found["nano"][2].forward_seconds[0] == pytest.approx(2 * 7.0 / 3)
    assert found["tx2"][1].forward_seconds[0] == pytest.approx(2 * 2.0 / 9 / 3)


def test_two_that_lack_each_others_layers_have_both() -> None:
    found = with_guesses({"nano": [curve(4.0), NONE, curve(2.0)], "tx2": [NONE, curve(3.0), curve(1.0)]})
    assert found["nano"][1].forward_seconds[0] == pytest.approx(2.0)
    assert found["tx2"][0].forward_seconds[0] == pytest.approx(2.0 / 3)


def test_what_nothing_is_known_of_is_left_out() -> None:
    assert with_guesses({"nano": [curve(1.0), NONE], "nx": [curve(1.0), NONE]}) == {}
    assert list(with_guesses({"nano": [NONE, NONE], "nx": [curve(1.0), curve(1.0)]})) == ["nx"]
    assert with_guesses({"nano": [curve(1.0, sizes=(1,)), NONE], "nx": [NONE, curve(1.0)]}) == {}
    apart = {"nano": [curve(1.0, sizes=(1,)), NONE], "nx": [curve(1.0, sizes=(2,)), curve(1.0)]}
    assert list(with_guesses(apart)) == ["nx"]
