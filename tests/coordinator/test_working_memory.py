"""What layers hold while they compute, from what was seen on kinds of hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.model.node import Node
from edgeswarm.profile import TrainingSettings
from edgeswarm_coordinator.planner.passing_memory import WORKING_GROWTH
from edgeswarm_coordinator.profile_cache import Curve
from edgeswarm_coordinator.stage_checks import CheckedStage
from edgeswarm_coordinator.working_memory import (
    GAPS_OF_SAVED,
    KERNEL_BYTES,
    MOST_HEAP_SLACK,
    USUAL_GROWTH,
    SeenMemory,
    WorkingMemory,
    heap_slack,
    kernel_bytes,
    on_top,
    saved_growth,
    working_memory,
)

from .small_graphs import small_graph

GRAPH = small_graph([["a"], ["b", "frozen"], ["c"]])  # 32 bytes a tensor, 64 bytes saved for a sample
NO_SLACK = (1.0,) * 3
LARGEST = 32.0  # bytes of a layer's largest gradient


def alone(*peaks: float, sizes: tuple[int, ...] = (1, 8, 64)) -> Curve:
    """Of a layer."""
    times = (1.0,) * len(sizes)
    return Curve(sizes, times, times, 256, peak_bytes=tuple(map(round, peaks)))


def line(fixed: float, per_sample: float) -> Curve:
    """For the batch in between there was memory lying around."""
    return alone(fixed + per_sample, 0, fixed + 64 * per_sample)


def grown(taken: float, *, saved: float = 0.0) -> int:
    """As it is over many rounds, without what the layer saves."""
    return round(WORKING_GROWTH * max(0.0, taken - saved))


def test_layers_alone_say_what_they_take_beyond_what_they_save() -> None:
    """64 bytes of each, times the slack; whatever the batch at least as much as the largest gradient."""
    curves = [line(1000, 100), line(40, 164), line(0, 50)]
    found = working_memory(GRAPH, [SeenMemory(curves, {})], slack=(1.0, 1.5, 1.0))
    assert found.transient_bytes == (grown(100, saved=64), grown(164, saved=96), 0)
    assert found.workspace_bytes == (grown(1000), grown(40), grown(LARGEST))
    assert found.joint_workspace_bytes == (0,) * 3


def test_inputs_that_a_layer_keeps_are_not_taken_beside_what_a_stage_saves() -> None:
    """A stage has them among what it saves, of the layers before or since it begins with this one."""
    layers = tuple(replace(layer, held_input_bytes=30) for layer in GRAPH.layers)
    curves = [line(1000, 100), line(1000, 80), line(1000, 100)]
    found = working_memory(replace(GRAPH, layers=layers), [SeenMemory(curves, {})], slack=(1.0,) * len(layers))
    assert found.transient_bytes == (grown(100, saved=94), 0, grown(100, saved=94))


def test_of_a_table_no_gradient_of_its_size_is_there() -> None:
    nothing = SeenMemory([line(0, 64)] * 3, {})
    found = working_memory(GRAPH, [nothing], slack=NO_SLACK, tables={"a"})
    assert found.workspace_bytes == (0, grown(LARGEST), grown(LARGEST))


def test_kernels_of_a_layer_are_counted_by_themselves() -> None:
    operations = (
        ("aten.conv2d.default", 1),
        ("aten.linear.default", 1),
        ("aten.relu.default", 1),
        ("aten.conv2d.default", 2),
    )
    nodes = tuple(Node(f"node{place}", op, (), {}, layer) for place, (op, layer) in enumerate(operations))
    graph = replace(GRAPH, nodes=nodes)
    kernels = kernel_bytes(graph)
    assert kernels == (0, 2 * KERNEL_BYTES, KERNEL_BYTES)
    seen = SeenMemory([line(fixed, 100) for fixed in (1000, 1000 + kernels[1], 10)], {})
    found = working_memory(graph, [seen], slack=NO_SLACK)
    assert found.workspace_bytes == (grown(1000), grown(1000), grown(LARGEST))


def test_of_several_kinds_the_median_counts() -> None:
    kinds = [SeenMemory([line(fixed, 164 + more)] * 3, {}) for fixed, more in ((30, 10), (40, 80), (900, 120))]
    found = working_memory(GRAPH, kinds, slack=NO_SLACK)
    assert found.transient_bytes == (grown(244, saved=64),) * 3
    assert found.workspace_bytes == (grown(40),) * 3


def test_kinds_that_measured_small_batches_alone_are_not_asked_what_a_sample_takes() -> None:
    """A table of words: its dense gradient is there at one sample already, and is no sample's."""
    large = SeenMemory([line(5000, 104)] * 3, {})
    small = SeenMemory([alone(5104, 9000, sizes=(1, 8))] * 3, {})
    assert working_memory(GRAPH, [large, small, small], slack=NO_SLACK) == working_memory(
        GRAPH, [large], slack=NO_SLACK
    )
    one = SeenMemory([alone(5104, sizes=(1,))] * 3, {})
    assert working_memory(GRAPH, [large, one, one], slack=NO_SLACK) == working_memory(GRAPH, [large], slack=NO_SLACK)


def test_where_no_more_is_known_it_is_the_gradient_and_the_rest_is_the_samples() -> None:
    one = SeenMemory([alone(132, sizes=(1,))] * 3, {})
    assert working_memory(GRAPH, [one], slack=NO_SLACK) == WorkingMemory(
        (grown(100, saved=64),) * 3, (grown(32),) * 3, (0,) * 3
    )
    falling = SeenMemory([alone(9000, 100, 464)] * 3, {})
    assert working_memory(GRAPH, [falling], slack=NO_SLACK) == WorkingMemory((0,) * 3, (grown(9000),) * 3, (0,) * 3)
    unknown = SeenMemory([Curve((1,), (1.0,), (1.0,), 256)] * 3, {})
    assert working_memory(GRAPH, [unknown], slack=NO_SLACK) == WorkingMemory((0,) * 3, (grown(32),) * 3, (0,) * 3)


def test_what_a_layer_takes_with_few_samples_already_is_no_samples() -> None:
    """As a convolution of many weights does, from two samples on."""
    steep = SeenMemory([alone(100, 4000, 5000, 7800, sizes=(1, 2, 12, 40))] * 3, {})
    expected = WorkingMemory((grown(100, saved=64),) * 3, (grown(3800),) * 3, (0,) * 3)
    assert working_memory(GRAPH, [steep], slack=NO_SLACK) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 256), st.floats(0, 1e6)), min_size=2, unique_by=lambda point: point[0]))
def test_no_point_is_above_the_line(points: list[tuple[int, float]]) -> None:
    sizes, peaks = zip(*sorted(points), strict=True)
    found = working_memory(GRAPH, [SeenMemory([alone(*peaks, sizes=sizes)] * 3, {})], slack=(0.0,) * 3)
    for size, peak in zip(sizes, peaks, strict=True):
        assert found.workspace_bytes[0] + found.transient_bytes[0] * size >= WORKING_GROWTH * round(peak) - size - 1


def held(sample_bytes: float) -> Curve:
    return Curve((4,), (1.0,), (1.0,), 4, held_sample_bytes=sample_bytes)


def test_activations_take_what_stages_in_flight_were_seen_to_take() -> None:
    # The layers save 64 bytes a sample each: 128 in the first two, 192 in all.
    whole, first = CheckedStage(0, 3, (4,)), CheckedStage(0, 2, (4,))
    kinds = [SeenMemory([], {whole: held(1.2 * 192), first: held(factor * 128)}) for factor in (1.1, 1.4, 1.5)]
    assert heap_slack(GRAPH, kinds) == pytest.approx((1.4, 1.4, 1.2))


def test_layers_alike_leave_the_gaps_of_the_one_that_shows_most() -> None:
    """The first one's are hidden by memory that was lying around."""
    first, second, third = GRAPH.layers
    graph = replace(GRAPH, layers=(first, second, replace(third, signature=first.signature)))
    stages = {CheckedStage(0, 1, (4,)): held(0.0), CheckedStage(2, 3, (4,)): held(1.3 * 64)}
    assert heap_slack(graph, [SeenMemory([], stages)]) == pytest.approx((1.3, 1.0, 1.3))


def test_the_inputs_of_a_stage_are_no_slack() -> None:
    second = replace(GRAPH.layers[1], held_input_bytes=32)
    graph = replace(GRAPH, layers=(GRAPH.layers[0], second, GRAPH.layers[2]))
    kinds = [SeenMemory([], {CheckedStage(1, 3, (4,)): held(128 + 32 + 16)})]
    assert heap_slack(graph, kinds) == pytest.approx((1.0, 1.125, 1.125))


def test_gaps_are_where_layers_made_what_they_let_go() -> None:
    first, second, third = GRAPH.layers
    graph = replace(GRAPH, layers=(replace(first, let_go_bytes=51), replace(second, let_go_bytes=0), third))
    of_saved = GAPS_OF_SAVED * 64
    gaps = 6.4
    stages = {CheckedStage(0, 2, (4,)): held(128 + gaps)}
    by_weight = gaps / (51 + 2 * of_saved) / 64
    expected = (1 + by_weight * (51 + of_saved), 1 + by_weight * of_saved, 1.0)
    assert heap_slack(graph, [SeenMemory([], stages)]) == pytest.approx(expected)


def test_a_layer_that_saves_nothing_has_no_gaps() -> None:
    first, second, third = GRAPH.layers
    graph = replace(GRAPH, layers=(replace(first, let_go_bytes=500, saved_bytes=0), second, third))
    stages = {CheckedStage(0, 2, (4,)): held(1.2 * 64)}
    assert heap_slack(graph, [SeenMemory([], stages)]) == pytest.approx((1.0, 1.2, 1.0))


def test_little_slack_and_very_much_are_not_believed() -> None:
    assert heap_slack(GRAPH, []) == (1.0,) * 3
    for seen_bytes, slack in ((0.0, 1.0), (0.95 * 192, 1.0), (9 * 192, MOST_HEAP_SLACK)):
        kinds = [SeenMemory([], {CheckedStage(0, 3, (4,)): held(seen_bytes)})]
        assert heap_slack(GRAPH, kinds) == (slack,) * 3


def test_what_held_less_than_is_saved_had_memory_lying_around() -> None:
    first = CheckedStage(0, 2, (4,))
    kinds = [SeenMemory([], {first: held(factor * 128)}) for factor in (0.6, 0.0, 1.2)]
    assert heap_slack(GRAPH, kinds) == pytest.approx((1.2, 1.2, 1.0))


PARTS = (CheckedStage(0, 2, (1, 64)), CheckedStage(2, 3, (1, 64)))


def seen_together(first: float, second: float, *, alone: float = 100.0, sizes: tuple[int, int] = (1, 64)) -> SeenMemory:
    """Two parts of the model in one go: bytes of a sample at the peak. alone: of each layer, which saves 64 of them."""
    times = (1.0, 1.0)
    stages = {
        stage: Curve(sizes, times, times, 64, peak_bytes=(500, round(500 + (sizes[1] - sizes[0]) * per_sample)))
        for stage, per_sample in zip(PARTS, (first, second), strict=True)
    }
    return SeenMemory([line(0, alone)] * 3, stages)


def test_what_a_part_takes_beyond_its_layers_alone_is_of_each_of_them() -> None:
    reckoned = grown(100, saved=64)  # of a layer; the first part has two, which save 64 each
    more = working_memory(
        GRAPH, [seen_together(2 * 64 + reckoned + 10, 64 + reckoned - 10)], slack=NO_SLACK
    ).transient_bytes
    assert more == (reckoned + 10, reckoned + 10, reckoned)
    # With slack between what waits there is less that was not seen; one kind of three says nothing.
    slack = (1.0625, 1.0, 1.0)
    less = working_memory(GRAPH, [seen_together(2 * 64 + reckoned + 10, 64)], slack=slack).transient_bytes
    assert less == (grown(100, saved=68) + 6, reckoned + 6, reckoned)
    odd = seen_together(300, 300)
    none = [seen_together(64, 64), odd, seen_together(64, 64)]
    assert working_memory(GRAPH, none, slack=NO_SLACK).transient_bytes == (reckoned,) * 3


def test_what_a_part_takes_whatever_the_batch_beyond_its_largest_layer_is_of_all_in_proportion() -> None:
    times = (1.0, 1.0)
    part = Curve((1, 64), times, times, 64, peak_bytes=(3000 + 64, 3000 + 64 * 64))
    seen = SeenMemory([line(1000, 64), line(2000, 64), line(1000, 64)], {PARTS[0]: part})
    found = working_memory(GRAPH, [seen], slack=NO_SLACK)
    assert found.workspace_bytes == (grown(1000), grown(2000), grown(1000))
    beyond = grown(3000) - grown(2000)
    assert found.joint_workspace_bytes == (round(beyond / 3), round(2 * beyond / 3), 0)
    small = replace(part, peak_bytes=(1500 + 64, 1500 + 64 * 64))  # with memory lying around
    seen = SeenMemory(seen.curves, {PARTS[0]: small})
    assert working_memory(GRAPH, [seen], slack=NO_SLACK).joint_workspace_bytes == (0,) * 3


@pytest.mark.parametrize(
    ("peaks", "fixed"),
    [
        ((9000, 3000 + 4 * 64, 3000 + 64 * 64), 3000),  # a kernel for two samples alone
        ((2000, 3000 + 4 * 64, 3000 + 64 * 64), 3000),
        ((9000, 9000 + 2 * 64, 9000 + 62 * 64), 9000 - 2 * 64),  # more samples take more
    ],
)
def test_few_samples_that_take_more_than_many_say_nothing_of_a_part(peaks: tuple[int, ...], fixed: int) -> None:
    times = (1.0,) * 3
    seen = SeenMemory([line(0, 64)] * 3, {PARTS[0]: Curve((2, 4, 64), times, times, 64, peak_bytes=peaks)})
    found = working_memory(GRAPH, [seen], slack=NO_SLACK)
    assert found.workspace_bytes[0] + sum(found.joint_workspace_bytes) == pytest.approx(grown(fixed), abs=2)


def test_the_whole_says_what_comes_on_top_of_all_that_is_saved() -> None:
    def whole(per_sample: float) -> SeenMemory:
        times = (1.0, 1.0)
        # The first one found memory lying around.
        curve = Curve((1, 64), times, times, 64, peak_bytes=(0, round(64 * per_sample)))
        return SeenMemory([], {CheckedStage(0, 3, (1, 64)): curve})

    def part_of(*kinds: SeenMemory) -> float:
        return on_top(GRAPH, kinds, slack=NO_SLACK, transient=(100.0, 200.0, 50.0))

    # 192 bytes are saved of a sample.
    assert part_of(whole(192 + 80)) == pytest.approx(80 / 200)
    assert part_of(whole(192 + 80), whole(900), whole(192)) == pytest.approx(80 / 200)
    assert part_of(whole(100)) == 0
    assert part_of(whole(900)) == part_of() == TrainingSettings.on_top


def test_where_nobody_looked_at_large_batches_growth_is_the_usual() -> None:
    assert saved_growth(GRAPH, []) == USUAL_GROWTH
    assert (
        saved_growth(GRAPH, [seen_together(900, 900, sizes=(1, 8)), SeenMemory([line(0, 9)] * 3, {})]) == USUAL_GROWTH
    )
    assert saved_growth(GRAPH, [SeenMemory([line(0, 9)] * 3, {}), seen_together(900, 900)]) == 1.0
