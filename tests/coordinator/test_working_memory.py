"""What layers hold while they compute, from what was seen on kinds of hardware."""

from __future__ import annotations

import pytest

from edgeswarm_coordinator.profile_cache import Curve
from edgeswarm_coordinator.stage_checks import CheckedStage
from edgeswarm_coordinator.working_memory import (
    GROWTH_OVER_ROUNDS,
    LEAST_HEAP_SLACK,
    MOST_HEAP_SLACK,
    SeenMemory,
    heap_slack,
    working_memory,
)

from .small_graphs import small_graph

GRAPH = small_graph([["a"], ["b", "frozen"], ["c"]])  # 32 bytes a tensor, 64 bytes saved for a sample
WHOLE = CheckedStage(0, 3, (4, 32))
NO_SLACK = (1.0,) * 3
LARGEST = 32.0  # bytes of a layer's largest gradient


def alone(*, at_once: int, per_sample: float, fixed: float = LARGEST) -> Curve:
    """Of a layer; what small batches say of it is noise."""
    sizes = (1, at_once) if at_once > 1 else (1,)
    peaks = (9999, round(fixed + per_sample * at_once))[-len(sizes) :]
    return Curve(sizes, (1.0,) * len(sizes), (1.0,) * len(sizes), 256, peak_bytes=peaks)


def in_one_go(*, fixed: int, per_sample: int) -> Curve:
    return Curve((4, 32), (1.0, 2.0), (1.0, 2.0), 32, peak_bytes=(fixed + 4 * per_sample, fixed + 32 * per_sample))


def beyond(bytes_: float) -> int:
    """As it is over many rounds."""
    return round(GROWTH_OVER_ROUNDS * bytes_)


def test_layers_alone_say_what_they_take_beyond_what_they_save() -> None:
    """64 bytes of each, times the slack; and whatever the batch as much as the largest gradient."""
    curves = [alone(at_once=64, per_sample=size) for size in (100, 164, 50)]
    transient, workspace = working_memory(GRAPH, [SeenMemory(curves, {})], slack=(1.0, 1.5, 1.0))
    assert transient == (beyond(36), beyond(164 - 96), 0)
    assert workspace == (LARGEST,) * 3


def test_a_part_in_one_go_says_how_much_it_is_in_all() -> None:
    curves = [alone(at_once=64, per_sample=size) for size in (94, 124, 64)]
    first = CheckedStage(0, 2, (4, 32))
    # The two layers save 128 bytes a sample and were seen to take 218 in one go: 90 more, where the larger one alone took 60.
    parts = {first: in_one_go(fixed=80, per_sample=218)}
    transient, workspace = working_memory(GRAPH, [SeenMemory(curves, parts)], slack=NO_SLACK)
    assert transient == (beyond(45), beyond(90), 0)
    assert workspace == (80, 80, LARGEST)


def test_of_several_kinds_the_median_counts_and_a_smaller_part_says_more() -> None:
    curves = [alone(at_once=64, per_sample=164)] * 3
    first = CheckedStage(0, 2, (4, 32))
    whole = in_one_go(fixed=48, per_sample=192 + 50)
    kinds = [
        SeenMemory(curves, {first: in_one_go(fixed=fixed, per_sample=128 + more), WHOLE: whole})
        for fixed, more in ((30, 10), (40, 80), (900, 120))
    ]  # fmt: skip
    transient, workspace = working_memory(GRAPH, kinds, slack=NO_SLACK)
    assert transient == (beyond(80), beyond(80), beyond(50))
    assert workspace == (40, 40, 48)


def test_what_contradicts_the_layers_is_not_followed_far() -> None:
    curves = [alone(at_once=64, per_sample=164)] * 3
    huge = SeenMemory(curves, {WHOLE: in_one_go(fixed=10**6, per_sample=10**6)})
    none = SeenMemory(curves, {WHOLE: in_one_go(fixed=-500, per_sample=100)})
    assert working_memory(GRAPH, [huge], slack=NO_SLACK) == ((beyond(300),) * 3, (96,) * 3)
    assert working_memory(GRAPH, [none], slack=NO_SLACK) == ((0,) * 3, (32,) * 3)


def test_kinds_that_measured_small_batches_alone_are_not_asked() -> None:
    large = [alone(at_once=64, per_sample=104)] * 3
    small = [alone(at_once=1, per_sample=9000)] * 3
    found = [working_memory(GRAPH, kinds, slack=NO_SLACK) for kinds in (
        [SeenMemory(large, {})], [SeenMemory(large, {}), SeenMemory(small, {}), SeenMemory(small, {})]
    )]  # fmt: skip
    assert found[0] == found[1]
    unknown = [Curve((1,), (1.0,), (1.0,), 256)] * 3
    assert working_memory(GRAPH, [SeenMemory(unknown, {})], slack=NO_SLACK) == ((0,) * 3, (32,) * 3)


def held(sample_bytes: float) -> Curve:
    return Curve((4,), (1.0,), (1.0,), 4, held_sample_bytes=sample_bytes)


def test_activations_take_what_stages_in_flight_were_seen_to_take() -> None:
    # The layers save 64 bytes a sample each: 128 in the first two, 192 in all.
    whole, first = CheckedStage(0, 3, (4,)), CheckedStage(0, 2, (4,))
    kinds = [SeenMemory([], {whole: held(1.2 * 192), first: held(factor * 128)}) for factor in (1.1, 1.4, 1.5)]
    assert heap_slack(GRAPH, kinds) == pytest.approx([GROWTH_OVER_ROUNDS * factor for factor in (1.4, 1.4, 1.2)])


def test_little_slack_and_very_much_are_not_believed() -> None:
    assert heap_slack(GRAPH, []) == (GROWTH_OVER_ROUNDS * LEAST_HEAP_SLACK,) * 3
    for seen_bytes, slack in ((0.0, LEAST_HEAP_SLACK), (0.9 * 192, LEAST_HEAP_SLACK), (9 * 192, MOST_HEAP_SLACK)):
        kinds = [SeenMemory([], {CheckedStage(0, 3, (4,)): held(seen_bytes)})]
        assert heap_slack(GRAPH, kinds) == (GROWTH_OVER_ROUNDS * slack,) * 3
