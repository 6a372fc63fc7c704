"""What layers hold while they compute, from what was seen on kinds of hardware."""

from __future__ import annotations

import pytest

from edgeswarm_coordinator.profile_cache import Curve
from edgeswarm_coordinator.stage_checks import CheckedStage
from edgeswarm_coordinator.working_memory import (
    LEAST_HEAP_SLACK,
    MOST_HEAP_SLACK,
    SeenMemory,
    heap_slack,
    working_memory,
)

from .small_graphs import small_graph

GRAPH = small_graph([["a"], ["b", "frozen"], ["c"]])  # 32 bytes a tensor, 64 bytes saved for a sample
WHOLE = CheckedStage(0, 3, (4, 32))


def seen(*peaks: int, sizes: tuple[int, ...] = (1, 2, 8, 16)) -> Curve:
    times = (1.0,) * len(sizes)
    return Curve(sizes, times, times, 16, peak_bytes=peaks)


def line(fixed: int, per_sample: int) -> Curve:
    return seen(*(fixed + per_sample * size for size in (1, 2, 8, 16)))


def test_it_is_what_a_layer_holds_beyond_what_it_saves() -> None:
    curves = [line(1000, 64), line(500, 164), line(70, 50)]
    assert working_memory(GRAPH, [SeenMemory(curves, {})]) == ((0, 100, 0), (1000, 500, 70))
    # The whole saves 192 bytes a sample and was seen to hold 342, and 5000 whatever the batch: 1.5 times as much.
    whole = Curve((4, 32), (1.0, 2.0), (1.0, 2.0), 256, peak_bytes=(5000 + 4 * 342, 5000 + 32 * 342))
    assert working_memory(GRAPH, [SeenMemory(curves, {WHOLE: whole})])[0] == (0, 150, 0)


def test_the_smallest_batch_is_no_part_of_a_line() -> None:
    curves = [seen(9000, 1000 + 2 * 80, 1000 + 8 * 80, 1000 + 16 * 80)] * 3
    assert working_memory(GRAPH, [SeenMemory(curves, {})]) == ((16,) * 3, (1000,) * 3)


def test_where_sizes_make_no_line_the_gradients_are_there_whatever_the_batch() -> None:
    # A gradient of 32 bytes is there twice: 64 of the 1664 and of the 464 bytes are no sample's.
    two = seen(800, 1664, sizes=(1, 16))
    falling = seen(9000, 700, 464, sizes=(1, 2, 4))
    one = seen(30, sizes=(1,))
    assert working_memory(GRAPH, [SeenMemory([two, falling, one], {})]) == ((100 - 64, 100 - 64, 0), (64, 64, 30))


def test_a_kind_that_measured_one_size_is_asked_where_no_other_knows() -> None:
    """A table of words: its dense gradient is there at one sample already, and is no sample's."""
    large = SeenMemory([line(120_000, 70), line(0, 64), seen(640, sizes=(1,))], {})
    small = SeenMemory([seen(118_000, sizes=(1,)), line(10, 80), seen(164, sizes=(1,))], {})
    transient, workspace = working_memory(GRAPH, [large, small])
    # Elsewhere the median of the two counts.
    assert transient == (6, (0 + 16) / 2, (640 - 64 - 64 + 164 - 64 - 64) / 2)
    assert workspace == (120_000, (0 + 10) / 2, 64)


def held(sample_bytes: float) -> Curve:
    return Curve((4,), (1.0,), (1.0,), 4, held_sample_bytes=sample_bytes)


def test_activations_take_what_stages_in_flight_were_seen_to_take() -> None:
    # The layers save 64 bytes a sample each: 128 in the first two, 192 in all.
    whole, first = CheckedStage(0, 3, (4,)), CheckedStage(0, 2, (4,))
    kinds = [SeenMemory([], {whole: held(1.2 * 192), first: held(factor * 128)}) for factor in (1.1, 1.4, 1.5)]
    assert heap_slack(GRAPH, kinds) == pytest.approx((1.4, 1.4, 1.2))


def test_little_slack_and_very_much_are_not_believed() -> None:
    assert heap_slack(GRAPH, []) == (LEAST_HEAP_SLACK,) * 3
    for seen_bytes, slack in ((0.0, LEAST_HEAP_SLACK), (0.9 * 192, LEAST_HEAP_SLACK), (9 * 192, MOST_HEAP_SLACK)):
        kinds = [SeenMemory([], {CheckedStage(0, 3, (4,)): held(seen_bytes)})]
        assert heap_slack(GRAPH, kinds) == (slack,) * 3
