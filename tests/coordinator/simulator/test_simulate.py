"""Rounds whose timeline can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.chunk_owners import LEAST_CHUNK_BYTES
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.feed_ahead import FEED_CALL_BYTES
from edgeswarm.plan import Plan
from edgeswarm.profile import DataSource, Network, Overheads, PlanningInstance
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE
from edgeswarm_coordinator.simulator.simulate import round_seconds, simulate
from edgeswarm_coordinator.simulator.simulation import TimelineEvent

from .plans import make_instance, make_plan


def computed(events: tuple[TimelineEvent, ...], device: str) -> str:
    """F0@0-1 B0@1-3: what a device computes."""
    return " ".join(
        f"{event.kind[0].upper()}{event.micro_batch}@{event.start_seconds:g}-{event.end_seconds:g}"
        for event in events
        if event.device == device and event.track == "compute" and event.end_seconds > event.start_seconds
    )


def test_one_device_computes_one_thing_after_another() -> None:
    instance = make_instance([(1.0, 2.0), (1.0, 2.0)], update_seconds=(0.25, 0.25))
    plan = make_plan((2, {"a": 2}, 1), micro_batches=2)
    result = simulate(instance, plan, timeline=True)
    assert result.round_seconds == 2 * (4 + 8) + 0.5
    assert computed(result.events, "a") == "F0@0-4 B0@4-12 F1@12-16 B1@16-24 S-1@24-24.5"
    assert result.samples_per_second == 4 / 24.5
    assert result.devices["a"].busy == 1.0
    assert [(limit.kind, limit.fraction) for limit in result.limits] == [("stage", 1.0)]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 4, 9])
def test_equal_stages_have_the_bubble_of_the_book(stages: int, micro_batches: int) -> None:
    """(M + P - 1) (f + b), with links that take no time."""
    instance = make_instance([(1.0, 2.0)] * stages, devices=stages, mini_batch=micro_batches)
    names = instance.device_names
    plan = make_plan(
        *((1, {names[place]: 1}, 2 * (stages - place) - 1) for place in range(stages)), micro_batches=micro_batches
    )
    assert round_seconds(instance, plan) == pytest.approx((micro_batches + stages - 1) * 3.0)


def test_the_schedule_of_two_stages() -> None:
    """A link of 1 s for each frame: f = 1, b = 2.

    a        F0 F1 F2 .  .  .  B0 B0 F3 B1 B1 ...
    a to b      -0 -1 -2
    b        .  .  F0 B0 B0 F1 B1 B1 F2 ...
    b to a                  -0       -1
    """
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, bandwidth=10.0, cut_bytes=10)
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=4)
    result = simulate(instance, plan, timeline=True)
    assert computed(result.events, "a") == "F0@0-1 F1@1-2 F2@2-3 B0@6-8 F3@8-9 B1@9-11 B2@12-14 B3@15-17"
    assert computed(result.events, "b") == "F0@2-3 B0@3-5 F1@5-6 B1@6-8 F2@8-9 B2@9-11 F3@11-12 B3@12-14"
    sent = [event for event in result.events if event.track == "egress" and event.device == "a"]
    assert [(event.start_seconds, event.end_seconds) for event in sent] == [(1, 2), (2, 3), (3, 4), (9, 10)]
    assert result.round_seconds == 17
    assert result.sent_bytes == {"a": 40, "b": 40}


def test_the_schedule_of_two_stages_with_weights_apart() -> None:
    """f = b = w = 1, links that take no time; the round before ends at 0, where b is still at its last weights.

    a   F0 F1 F2 B0 W0 B1 W1 B2 W2           weights fill the time in which the next gradient isn't there
    b      F0 B0 F1 B1 F2 B2 W0 W1 W2        and come last where there is always something else to do
    """
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, mini_batch=3, apart=(0.5, 0.5))
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 3), micro_batches=3, schedule=ZERO_BUBBLE)
    result = simulate(instance, plan, timeline=True)
    assert computed(result.events, "a") == "F0@-1-0 F1@0-1 F2@1-2 B0@2-3 W0@3-4 B1@4-5 W1@5-6 B2@6-7 W2@7-8"
    assert computed(result.events, "b") == "F0@0-1 B0@1-2 F1@2-3 B1@3-4 F2@4-5 B2@5-6 W0@6-7 W1@7-8 W2@8-9"
    assert result.round_seconds == 9
    assert [result.devices[name].busy for name in "ab"] == [1.0, 1.0]  # F0 of a's next round among it
    assert round_seconds(instance, replace(plan, schedule=ONE_FORWARD_ONE_BACKWARD)) == 12


def test_weights_hold_memory_until_they_are_computed_and_make_room_for_forwards() -> None:
    """K = 2 in b: its third forward has to wait for W0."""
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, mini_batch=3, apart=(0.5, 0.5), saved_bytes=100)
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 2), micro_batches=3, schedule=ZERO_BUBBLE)
    result = simulate(instance, plan, timeline=True)
    assert computed(result.events, "b").split()[4:] == ["W0@5-6", "F2@6-7", "B2@7-8", "W1@8-9", "W2@9-10"]
    three = simulate(instance, replace(plan, stages=(plan.stages[0], replace(plan.stages[1], in_flight=3))))
    assert three.memory["b"].peak_bytes == result.memory["b"].peak_bytes + 100


def replicas_with_gradients(*, apart: tuple[float, float]) -> tuple[PlanningInstance, Plan]:
    """c alone, then a and b with two layers of 2 MiB each, which take 2 s between them."""
    mebibyte = 1 << 20
    instance = make_instance(
        [(1.0, 2.0)] * 3,
        devices=3,
        mini_batch=2,
        bandwidth=[[1e12, float(mebibyte), 1e12], [float(mebibyte), 1e12, 1e12], [1e12] * 3],
        gradient_bytes=2 * mebibyte,
        apart=apart,
    )
    return instance, make_plan((1, {"c": 2}, 1), (2, {"a": 1, "b": 1}, 1), micro_batches=1, schedule=ZERO_BUBBLE)


def test_where_weights_come_apart_the_all_reduce_is_beside_the_last_of_them() -> None:
    """Two layers of 2 MiB, a second for the weights of each: the gradients of the last are there after F F B B W.

    a, b     F  F  B  B  W1 W0 .  .  .
    network                 1  1  0  0       2 s for each bucket
    """
    instance, plan = replicas_with_gradients(apart=(0.5, 0.5))
    events = simulate(instance, plan, timeline=True).events
    reduces = [event for event in events if event.track == "all-reduce"]
    weights = [event for event in events if event.kind == "weights"]
    assert {event.device for event in reduces} == {"a", "b"}
    assert {event.device for event in weights} == {"a", "b", "c"}
    ends = {event.device: event.end_seconds for event in weights}
    for event in reduces:
        assert event.start_seconds == pytest.approx(ends[event.device])
        assert event.end_seconds - event.start_seconds == pytest.approx(3.0)


def test_where_no_weights_can_wait_the_all_reduce_is_beside_the_last_backward() -> None:
    instance, plan = replicas_with_gradients(apart=(1.0, 0.0))
    in_one_go = replace(plan, schedule=ONE_FORWARD_ONE_BACKWARD)
    assert round_seconds(instance, plan) == pytest.approx(round_seconds(instance, in_one_go))


def test_a_slow_link_sets_the_pace() -> None:
    """Each frame takes 10 s each way; frames of one direction follow one another without a gap while K allows it."""
    instance = make_instance([(1.0, 1.0)] * 2, devices=2, mini_batch=8, bandwidth=1.0, cut_bytes=10)
    plan = make_plan((1, {"a": 1}, 8), (1, {"b": 1}, 1), micro_batches=8)
    result = simulate(instance, plan)
    # The first forward; eight frames; the last one's forward and backward, its gradient's way, and its backward.
    assert result.round_seconds == 1 + 80 + 2 + 10 + 1
    assert result.limits[0].text == "the link from stage 0 to stage 1"
    # From 8 s on, when the last forward is computed, to 81 s.
    assert result.limits[0].seconds == pytest.approx(73)


def test_the_latency_comes_after_the_last_byte() -> None:
    instance = make_instance([(1.0, 1.0)] * 2, devices=2, mini_batch=1, bandwidth=10.0, cut_bytes=10, latency=0.25)
    plan = make_plan((1, {"a": 1}, 1), (1, {"b": 1}, 1), micro_batches=1)
    assert round_seconds(instance, plan) == 1 + 1.25 + 2 + 1.25 + 1


def test_two_receivers_share_an_egress() -> None:
    """a's card sends to b and c at once, each at half the speed; the gradients come back by two egresses into one ingress."""
    instance = make_instance([(1.0, 1.0)] * 2, devices=3, mini_batch=2, bandwidth=10.0, cut_bytes=10)
    plan = make_plan((1, {"a": 2}, 1), (1, {"b": 1, "c": 1}, 1), micro_batches=1)
    assert round_seconds(instance, plan) == 2 + 2 + 1 + 1 + 2 + 2


def test_the_all_reduce_overlaps_the_last_backward() -> None:
    """Two layers of 2 MiB; the gradients of the last are done in the middle of the backward.

    a, b     F F B1 B1 B0 B0 .  .  .
    network              1  1  1  1  0 0 0 0       1 MiB/s: 2 s for each bucket at 1 MiB/s
    """
    mebibyte = 1 << 20
    instance = make_instance(
        [(1.0, 2.0)] * 2, devices=2, mini_batch=2, bandwidth=float(mebibyte), gradient_bytes=2 * mebibyte
    )
    plan = make_plan((2, {"a": 1, "b": 1}, 1), micro_batches=1)
    result = simulate(instance, plan, timeline=True)
    assert result.round_seconds == 2 + 2 + 2 + 2
    assert result.devices["a"].all_reduce == pytest.approx(2 / 8)
    assert result.sent_bytes == {"a": 4 * mebibyte, "b": 4 * mebibyte}
    assert {limit.kind: limit.seconds for limit in result.limits} == {"stage": 6, "all-reduce": 2}


@pytest.mark.parametrize(
    ("owners", "seconds", "sent"),
    [
        pytest.param((), 4.0, {"a": 4, "b": 4, "c": 4}, id="each owns a third: 2 chunks come, then 2 sums go"),
        pytest.param(
            ("b",), 12.0, {"a": 3, "b": 6, "c": 3}, id="one owns all: it takes twice the buffer, and sends it twice"
        ),
        pytest.param(("c", "a"), 6.0, {"a": 4.5, "b": 3, "c": 4.5}, id="two own halves"),
    ],
)
def test_an_all_reduce_of_three(owners: tuple[str, ...], seconds: float, sent: dict[str, float]) -> None:
    """A buffer of three least chunks, of which links carry one a second, to the owners and from them; a latency each time."""
    chunk = LEAST_CHUNK_BYTES
    instance = make_instance(
        [(1.0, 2.0)], devices=3, mini_batch=3, bandwidth=float(chunk), gradient_bytes=3 * chunk, latency=0.5
    )
    plan = make_plan((1, {"a": 1, "b": 1, "c": 1}, 1), micro_batches=1)
    plan = replace(plan, stages=(replace(plan.stages[0], owners=owners),))
    result = simulate(instance, plan)
    assert result.round_seconds == 1 + 2 + seconds + 2 * 0.5
    assert {device: size / chunk for device, size in result.sent_bytes.items()} == pytest.approx(sent)


def test_a_cut_that_needs_no_gradients_is_answered_by_nothing() -> None:
    """Two stages of a second a sample each way, frames of 10 bytes at 10 a second: there and back, or there alone."""
    instance = make_instance([(1.0, 1.0), (1.0, 1.0)], devices=2, mini_batch=1, bandwidth=10.0, cut_bytes=10)
    plan = make_plan((1, {"a": 1}, 1), (1, {"b": 1}, 1), micro_batches=1)
    both_ways = simulate(instance, plan)
    assert (both_ways.round_seconds, both_ways.sent_bytes) == (6.0, {"a": 10, "b": 10})
    first, second = instance.model.layers
    frozen = replace(instance, model=replace(instance.model, layers=(replace(first, answered_bytes=0), second)))
    one_way = simulate(frozen, plan)
    assert (one_way.round_seconds, one_way.sent_bytes) == (5.0, {"a": 10, "b": 0})


def test_of_a_table_replicas_send_the_rows_that_they_met_and_owners_the_sums_of_all() -> None:
    """Of 300 bytes that three samples meet, one sample meets 120, two 210; b adds up all."""
    instance = make_instance([(1.0, 2.0)], devices=3, mini_batch=3, bandwidth=10.0, gradient_bytes=300)
    layer = replace(instance.model.layers[0], met_gradient_bytes=((1, 120), (3, 300)))
    instance = replace(instance, model=replace(instance.model, layers=(layer,)))
    plan = make_plan((1, {"a": 1, "b": 1, "c": 1}, 1), micro_batches=1)
    plan = replace(plan, stages=(replace(plan.stages[0], owners=("b",)),))
    assert simulate(instance, plan).sent_bytes == {"a": 120, "b": 600, "c": 120}
    two = make_plan((1, {"a": 1, "b": 2}, 1), micro_batches=1)
    assert simulate(instance, two).sent_bytes == {"a": 120, "b": 210}


def test_a_small_buffer_has_one_owner() -> None:
    """30 bytes at 10 a second: two chunks of them come to it, one after another, then two sums go."""
    instance = make_instance([(1.0, 2.0)], devices=3, mini_batch=3, bandwidth=10.0, gradient_bytes=30, latency=0.5)
    plan = make_plan((1, {"a": 1, "b": 1, "c": 1}, 1), micro_batches=1)
    result = simulate(instance, plan)
    assert result.round_seconds == 1 + 2 + 2 * (6 + 0.5)
    assert result.sent_bytes == {"a": 60, "b": 30, "c": 30}


@pytest.mark.parametrize(("statistics_bytes", "seconds"), [(10, 5.0), (30, 6.0)])
def test_statistics_are_sent_during_the_backward(statistics_bytes: int, seconds: float) -> None:
    """On links of 10 bytes a second: the sums of batch norms from second 1 on, when the forward is done, gradients from 3.

    30 bytes of sums are not through by then: gradients share the link with the last 10.
    """
    instance = make_instance(
        [(1.0, 2.0)], devices=2, mini_batch=2, bandwidth=10.0, gradient_bytes=20, statistics_bytes=statistics_bytes
    )
    result = simulate(instance, make_plan((1, {"a": 1, "b": 1}, 1), micro_batches=1))
    assert result.round_seconds == pytest.approx(seconds)
    bytes_sent = 20.0 + statistics_bytes
    assert result.sent_bytes == {"a": bytes_sent, "b": bytes_sent}
    alone = simulate(instance, make_plan((1, {"a": 2}, 1), micro_batches=1))
    assert (alone.round_seconds, alone.sent_bytes) == (6.0, {"a": 0})


def test_a_frame_goes_before_an_all_reduce() -> None:
    """The last stage's all-reduce waits while its last gradients go upstream.

    Stage 1 (b, c) ends its backward at 4; from then on each sends 10 bytes upstream and 20 bytes to the other. The
    frames share a's ingress, 2 s for both; only then the all-reduce begins, whose 2 s end after a's backward.
    """
    instance = make_instance([(1.0, 1.0)] * 2, devices=3, mini_batch=2, bandwidth=10.0, cut_bytes=10, gradient_bytes=20)
    plan = make_plan((1, {"a": 2}, 1), (1, {"b": 1, "c": 1}, 1), micro_batches=1)
    events = simulate(instance, plan, timeline=True).events
    reduced = [event for event in events if event.kind == "all-reduce" and event.track == "egress" and event.size_bytes]
    assert [(event.start_seconds, event.end_seconds) for event in reduced] == [(8, 10), (8, 10)]


def test_a_transfer_takes_its_own_pairs_latency() -> None:
    """Two frames: from a to b 1 s on its way, and back 3 s; c, with 100 s to everybody, is idle."""
    instance = make_instance([(1.0, 1.0)] * 2, devices=3, mini_batch=1)
    latencies = ((0.0, 1.0, 100.0), (3.0, 0.0, 100.0), (100.0, 100.0, 0.0))
    network = Network.of_pairs(latencies, instance.network.bandwidth)
    plan = make_plan((1, {"a": 1}, 1), (1, {"b": 1}, 1), micro_batches=1)
    assert round_seconds(replace(instance, network=network), plan) == pytest.approx(4.0 + 1.0 + 3.0)


def test_a_backward_comes_before_a_forward_whose_samples_are_late() -> None:
    """A micro-batch's samples come every 4 s; f = b = 1.

    a   F0 .  .  B0 F1 .  .  B1 F2 .  .  B2
    b   .  F0 B0 .  .  F1 B1 .  .  F2 B2
    """
    source = DataSource((FEED_CALL_BYTES / 4, 1e12), 1e12)
    instance = make_instance([(1.0, 1.0)] * 2, devices=2, mini_batch=3, input_bytes=FEED_CALL_BYTES, data_source=source)
    plan = make_plan((1, {"a": 1}, 2), (1, {"b": 1}, 1), micro_batches=3)
    result = simulate(instance, plan, timeline=True)
    assert computed(result.events, "a") == "F0@0-1 B0@3-4 F1@4-5 B1@7-8 F2@8-9 B2@11-12"


def test_what_a_device_spends_beside_the_layers() -> None:
    """An action costs 0.1; a frame 0.2 and 0.01 a byte, on the sender's and the receiver's processor; a round 0.5."""
    overheads = Overheads(action_seconds=0.1, frame_seconds=0.2, byte_seconds=0.01, round_seconds=0.5)
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, mini_batch=2, cut_bytes=10, overheads=overheads)
    plan = make_plan((1, {"a": 1}, 2), (1, {"b": 1}, 1), micro_batches=2)
    result = simulate(instance, plan, timeline=True)
    # a pays for its first frame in its second forward; b, idle when the frames come at once, for one of them still.
    forward = [event for event in result.events if event.kind == "forward" and event.track == "compute"]
    assert [event.end_seconds - event.start_seconds for event in forward if event.device == "a"] == pytest.approx(
        [1.1, 1.1 + 0.3]
    )
    step = next(event for event in result.events if event.kind == "step" and event.device == "a")
    assert step.end_seconds - step.start_seconds == pytest.approx(0.5)
    # Three tensors cross the cut, each in a frame of its own, of as many bytes together.
    first, second = instance.model.layers
    several = replace(instance.model, layers=(replace(first, output_frames=3), second))
    events = simulate(replace(instance, model=several), plan, timeline=True).events
    forward = [event for event in events if (event.device, event.track, event.kind) == ("a", "compute", "forward")]
    assert [event.end_seconds - event.start_seconds for event in forward] == pytest.approx([1.1, 1.1 + 0.3 + 2 * 0.2])


def test_a_later_stage_may_still_reduce_when_the_first_goes_on() -> None:
    """Stage 0 is over at 8; stage 1's all-reduce takes until 34, then its next round begins with what has come by then.

    From then on stage 1 is the clock: a forward and a backward of 2 s and 30 s for the all-reduce.
    """
    instance = make_instance([(1.0, 1.0)] * 2, devices=3, mini_batch=2, bandwidth=10.0, gradient_bytes=300)
    plan = make_plan((1, {"a": 2}, 3), (1, {"b": 1, "c": 1}, 1), micro_batches=1)
    result = simulate(instance, plan)
    assert result.round_seconds == pytest.approx(32.0)
    assert {name: use.busy for name, use in result.devices.items()} == pytest.approx(
        {"a": 4 / 32, "b": 2 / 32, "c": 2 / 32}
    )
    assert {name: use.all_reduce for name, use in result.devices.items()} == pytest.approx(
        {"a": 0.0, "b": 30 / 32, "c": 30 / 32}
    )


def test_memory_holds_what_is_in_flight() -> None:
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, saved_bytes=100, gradient_bytes=7)
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=4)
    memory = simulate(instance, plan, timeline=True).memory
    assert memory["a"].peak_bytes == 3 * 7 + 3 * 100
    assert memory["b"].peak_bytes == 3 * 7 + 100
    assert memory["b"].over_time[0] == (0.0, 21)
    assert memory["b"].over_time[-1][1] == 21


def test_a_plan_of_another_instance_is_refused() -> None:
    instance = make_instance([(1.0, 2.0)] * 2)
    with pytest.raises(EdgeswarmError) as caught:
        simulate(instance, make_plan((2, {"z": 1}, 1), micro_batches=4))
    assert caught.value.code is ErrorCode.PLAN_INVALID


def test_latencies_of_one_bucket_pass_while_the_next_one_has_the_link() -> None:
    """Two buckets of 1 MiB that are ready at once, three replicas: 4/3 of each in a second, then two latencies."""
    bucket = 1 << 20
    instance = make_instance(
        [(0.0, 0.0)] * 2, devices=3, mini_batch=3, bandwidth=4 / 3 * bucket, gradient_bytes=bucket, latency=0.125
    )
    plan = make_plan((2, {"a": 1, "b": 1, "c": 1}, 1), micro_batches=1)
    assert round_seconds(instance, plan) == pytest.approx(1 + 1 + 2 * 0.125)


@pytest.mark.parametrize(
    ("bandwidth", "seconds"),
    [
        pytest.param(float("inf"), 2 * 3 * 2.0, id="no time for bytes"),
        pytest.param(1.0, 30.0 + 3 * 2.0, id="30 s for the bucket's bytes: it is handled after them"),
    ],
)
def test_an_all_reduce_is_over_when_the_processors_are_done_with_it(bandwidth: float, seconds: float) -> None:
    """Of the bucket and of the statistics each replica sends a frame, takes one, and adds it."""
    instance = make_instance(
        [(1.0, 2.0)],
        devices=2,
        mini_batch=2,
        gradient_bytes=30,
        bandwidth=bandwidth,
        overheads=Overheads(frame_seconds=2.0),
    )
    plan = make_plan((1, {"a": 1, "b": 1}, 1), micro_batches=1)
    assert round_seconds(instance, plan) == pytest.approx(1 + 2 + seconds)


def test_a_quota_that_was_not_used_for_a_moment_is_there_at_once() -> None:
    """Who waited for the other one is done 0.5 s earlier, who never idles isn't."""
    alone = make_instance([(1.0, 2.0)], devices=1, mini_batch=2, overheads=Overheads(burst_seconds=0.5))
    one = make_plan((1, {"a": 1}, 1), micro_batches=2)
    assert round_seconds(alone, one) == pytest.approx(2 * 3.0)
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, mini_batch=1, overheads=Overheads(burst_seconds=0.5))
    plan = make_plan((1, {"a": 1}, 1), (1, {"b": 1}, 1), micro_batches=1)
    # a's forward, b's, b's backward at once, a's backward.
    assert round_seconds(instance, plan) == pytest.approx(1 + (1 - 0.5) + 2 + (2 - 0.5))


def test_an_all_reduce_takes_half_of_the_processor_from_a_backward() -> None:
    """Bucket 0 is ready after 1 of the 2 s of the backward, bucket 1 after 2: each takes 0.75 s, and ends the backward later."""
    bucket = 1 << 20
    instance = make_instance(
        [(0.0, 1.0)] * 2, devices=2, mini_batch=2, gradient_bytes=bucket, overheads=Overheads(frame_seconds=0.25)
    )
    plan = make_plan((2, {"a": 1, "b": 1}, 1), micro_batches=1)
    # Then the statistics, whose frame is handled as theirs.
    assert round_seconds(instance, plan) == pytest.approx(2 + 3 * 0.75)


def test_a_bucket_waits_for_gradients_that_an_earlier_one_made_late() -> None:
    bucket = 1 << 20
    instance = make_instance(
        [(0.0, 1.0)] * 2,
        devices=2,
        mini_batch=2,
        gradient_bytes=bucket,
        bandwidth=float(bucket),
        overheads=Overheads(frame_seconds=0.25),
    )
    plan = make_plan((2, {"a": 1, "b": 1}, 1), micro_batches=1)
    # The first bucket's 0.75 s end the backward at 2.75; only then there is a second one to send (1 s), handled at both ends and
    # added (0.25 s each). The statistics go beside it.
    assert round_seconds(instance, plan) == pytest.approx(2.75 + 1 + 3 * 0.25)


def test_passes_follow_one_another_and_hold_what_one_of_them_saves() -> None:
    """5 samples in 2 passes, of 3 and 2: all but the last backward, of 4 s, counts as forward."""
    instance = make_instance([(1.0, 2.0)], mini_batch=5, saved_bytes=100, overheads=Overheads(action_seconds=0.5))
    plan = make_plan((1, {"a": 5}, 1), micro_batches=1)
    in_passes = replace(plan, stages=(replace(plan.stages[0], passes={"a": 2}),))
    at_once, result = (simulate(instance, each, timeline=True) for each in (plan, in_passes))
    assert computed(at_once.events, "a") == "F0@0-5.5 B0@5.5-16"
    assert computed(result.events, "a") == "F0@0-12.5 B0@12.5-17"
    assert at_once.memory["a"].peak_bytes - result.memory["a"].peak_bytes == 200


def test_a_round_of_a_day_has_an_end() -> None:
    """What is missing of a bucket's gradients is then less than the clock's last digit."""
    for part in range(20):
        seconds = [(1000.0 / (3 + part + layer), 2000.0 / (7 + part + 2 * layer)) for layer in range(8)]
        instance = make_instance(
            [(50 * forward, 50 * backward) for forward, backward in seconds],
            devices=2,
            mini_batch=4,
            bandwidth=1e4,
            gradient_bytes=3_000_000,
        )
        plan = make_plan((8, {"a": 3, "b": 1}, 1), micro_batches=1)
        assert simulate(instance, plan).round_seconds > 16384
