from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm_coordinator.segments import CHECKPOINT_TIME_FRACTION, Pace, Segment, Segments

UNKNOWN = Pace(checkpoint_seconds=1.0)


def ends(segments: Segments, pace: Pace) -> list[Segment]:
    """All segments of a training that keeps this pace."""
    found, first_round = [], 0
    while first_round < segments.rounds:
        found.append(segments.after(first_round, pace))
        first_round = found[-1].end_round
    return found


def test_the_picture_of_the_module() -> None:
    segments = Segments(rounds=40, rounds_per_epoch=8, evaluate_every=2, checkpoint_every=24)
    assert [(segment.end_round, segment.evaluates) for segment in ends(segments, UNKNOWN)] == [
        (16, True),
        (24, False),
        (32, True),
        (40, True),
    ]
    assert [segments.checkpoint_is_due(end, UNKNOWN) for end in (16, 24, 32, 40)] == [False, True, False, True]


def test_without_a_number_segments_are_epochs_as_long_as_the_pace_is_unknown() -> None:
    assert [segment.end_round for segment in ends(Segments(rounds=30, rounds_per_epoch=10), UNKNOWN)] == [10, 20, 30]


def test_short_epochs_are_not_held_up() -> None:
    segments = Segments(rounds=1000, rounds_per_epoch=5)
    # A checkpoint of 1 s wants 50 s before it: 500 rounds of 0.1 s.
    pace = Pace(checkpoint_seconds=1.0, round_seconds=0.1)
    assert [segment.end_round for segment in ends(segments, pace)] == [500, 1000]
    assert segments.after(500, Pace(1.0, round_seconds=0.1, since_checkpoint_seconds=49.9)).end_round == 505
    slow = Pace(checkpoint_seconds=1.0, round_seconds=60.0)
    assert segments.after(0, slow).end_round == 5


def test_a_long_epoch_has_checkpoints_within() -> None:
    segments = Segments(rounds=50_000, rounds_per_epoch=50_000)
    assert segments.after(0, UNKNOWN).end_round == 6
    # A checkpoint of 1 s wants 50 s before it: 500 rounds of 0.1 s, of which 6 s are over.
    pace = Pace(checkpoint_seconds=1.0, round_seconds=0.1, since_checkpoint_seconds=6.0)
    assert segments.after(60, pace).end_round == 500
    # Rounds so slow that each could have its checkpoint: a pause has its price.
    assert segments.after(500, Pace(checkpoint_seconds=1.0, round_seconds=60.0)).end_round == 506
    # The epoch's end is waited for where it isn't far.
    assert segments.after(49_100, Pace(checkpoint_seconds=1.0, round_seconds=0.1)).end_round == 50_000


def test_a_checkpoint_costs_its_part_of_the_time() -> None:
    segments = Segments(rounds=1000, rounds_per_epoch=5)
    assert not segments.checkpoint_is_due(5, Pace(1.0, 0.1, since_checkpoint_seconds=49.0))
    assert segments.checkpoint_is_due(5, Pace(1.0, 0.1, since_checkpoint_seconds=50.0))
    assert segments.checkpoint_is_due(1000, UNKNOWN)


def test_the_first_guess_grows_with_bytes_and_layers() -> None:
    assert Pace.at_the_beginning(checkpoint_bytes=50_000_000, layers=20).checkpoint_seconds == pytest.approx(10.2)


def test_the_first_checkpoint_comes_sooner_than_its_guessed_cost_allows_the_others() -> None:
    segments = Segments(rounds=10_000, rounds_per_epoch=10_000)
    first = Pace.at_the_beginning(checkpoint_bytes=5_000_000, layers=0)
    assert first.checkpoint_seconds == pytest.approx(1.0)
    paced = dataclasses.replace(first, round_seconds=0.1)
    assert segments.after(0, paced).end_round == 100
    assert segments.checkpoint_is_due(100, dataclasses.replace(paced, since_checkpoint_seconds=10.0))
    assert not segments.checkpoint_is_due(100, dataclasses.replace(paced, since_checkpoint_seconds=9.9))
    assert segments.after(0, Pace(1.0, round_seconds=0.1)).end_round == 500


@given(
    epochs=st.integers(1, 6),
    rules=st.builds(
        Segments,
        rounds=st.just(0),
        rounds_per_epoch=st.integers(1, 9),
        evaluate_every=st.none() | st.integers(1, 4),
        checkpoint_every=st.none() | st.integers(1, 20),
    ),
    pace=st.builds(
        Pace,
        checkpoint_seconds=st.floats(0.0, 1e4),
        round_seconds=st.none() | st.floats(0.0, 1e3),
        since_checkpoint_seconds=st.floats(0.0, 1e6),
    ),
)
def test_the_job_is_covered_and_nothing_that_was_asked_for_is_passed_over(
    epochs: int, rules: Segments, pace: Pace
) -> None:
    segments = dataclasses.replace(rules, rounds=epochs * rules.rounds_per_epoch)
    found = ends(segments, pace)
    assert [segment.first_round for segment in found] == [0, *(segment.end_round for segment in found[:-1])]
    assert found[-1].end_round == segments.rounds
    every = segments.evaluate_every
    assert {segment.end_round for segment in found if segment.evaluates} == {
        (epoch + 1) * segments.rounds_per_epoch
        for epoch in range(epochs)
        if every is not None and ((epoch + 1) % every == 0 or epoch + 1 == epochs)
    }
    for place, segment in enumerate(found):
        still_to_come = sum(later.evaluates for later in found[place:])
        assert segments.evaluations_from(segment.first_round) == still_to_come
    if segments.checkpoint_every is not None:
        asked = set(range(segments.checkpoint_every, segments.rounds, segments.checkpoint_every))
        assert asked <= {segment.end_round for segment in found}


def test_the_fraction_is_the_promised_one() -> None:
    assert CHECKPOINT_TIME_FRACTION == 0.02


def test_looks_come_half_as_often_each_time_up_to_a_limit() -> None:
    segments = Segments(rounds=400, rounds_per_epoch=400, checkpoint_every=400, looks_from=10)
    found, first_round = [], 10
    while first_round < segments.rounds:
        end = segments.after(first_round, UNKNOWN).end_round
        assert segments.looks_at(end) == (end < 400)
        found.append(end)
        first_round = end
    assert found == [16, 22, 34, 58, 106, 202, 298, 394, 400]


def test_an_end_for_another_reason_is_no_look() -> None:
    segments = Segments(rounds=40, rounds_per_epoch=8, evaluate_every=1, looks_from=0)
    looks = {segment.end_round for segment in ends(segments, UNKNOWN) if segments.looks_at(segment.end_round)}
    assert looks == {6, 12, 24}
    assert not Segments(rounds=40, rounds_per_epoch=8).looks_at(6)
