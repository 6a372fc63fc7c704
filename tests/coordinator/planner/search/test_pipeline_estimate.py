"""The estimate of many pipelines at once: timelines by hand, and the simulator's seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.profile import DataSource, DeviceProfile, Network, Overheads
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD, SCHEDULES, has_weights_apart
from edgeswarm_coordinator.planner.search.candidate import Candidate, CandidateStage
from edgeswarm_coordinator.planner.search.judge import Judge
from edgeswarm_coordinator.planner.search.pipeline_batch import PipelineBatch, follow
from edgeswarm_coordinator.planner.search.pipeline_estimate import PipelineEstimator
from edgeswarm_coordinator.planner.search.problem import SearchProblem

from ..instances import make_instance, with_weights_apart


def batch_of(stages: int, *, count: int, in_flight: list[int], latency: float = 0.0) -> PipelineBatch:
    """One row: forward 1 and backward 2 in every stage, links that take no time."""
    batch = PipelineBatch(1, stages, latency=latency)
    batch.counts[0], batch.last[0] = count, stages - 1
    batch.forward[0], batch.backward[0] = 1.0, 2.0
    batch.in_flight[0] = in_flight
    return batch


def test_one_stage_does_one_after_another() -> None:
    assert follow(batch_of(1, count=4, in_flight=[1])).tolist() == [12.0]


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (3, 5), (4, 40)])
def test_balanced_stages_have_the_bubble_of_1f1b(stages: int, count: int) -> None:
    in_flight = [2 * (stages - stage) - 1 for stage in range(stages)]
    assert follow(batch_of(stages, count=count, in_flight=in_flight))[0] == pytest.approx((count + stages - 1) * 3.0)


def test_gradients_of_weights_fill_gaps() -> None:
    """As drawn in simulator/test_simulate.py: three micro-batches in two stages, of which the second has from 1 to 10."""
    batch = batch_of(2, count=3, in_flight=[3, 3])
    batch.backward[0] = 1.0
    batch.weights = np.ones((1, 2, 2))
    assert follow(batch)[0] == pytest.approx(9.0)
    # No room for waiting: f b w by turns in the second stage, whose last gradient the first one waits for.
    batch.in_flight[0] = [3, 1]
    assert follow(batch)[0] == pytest.approx(1 + 3 * 3 - 1 + 1 + 1)


def test_one_in_flight_waits_for_each_to_come_back() -> None:
    # f0 . b0 b0: one forward and one backward of both stages, four times.
    assert follow(batch_of(2, count=4, in_flight=[1, 1]))[0] == pytest.approx(4 * 6.0)


def test_latency_is_paid_there_and_back() -> None:
    assert follow(batch_of(2, count=1, in_flight=[1, 1], latency=0.5))[0] == pytest.approx(6.0 + 2 * 0.5)


def test_a_slow_link_sets_the_pace() -> None:
    batch = batch_of(2, count=10, in_flight=[10, 1])
    batch.forward_out[0, 0, :] = batch.forward_in[0, 0, :] = 5.0
    # The first forward, ten transfers, the last micro-batch forward and back.
    assert follow(batch)[0] == pytest.approx(1.0 + 10 * 5.0 + 3.0 + 2.0)


def test_what_is_behind_counts_from_each_stage() -> None:
    batch = batch_of(2, count=2, in_flight=[3, 1])
    batch.behind[0] = [0.0, 100.0]
    # The second stage ends 2 earlier than the first.
    assert follow(batch)[0] == pytest.approx((2 + 1) * 3.0 - 2.0 + 100.0)


def test_rows_do_not_disturb_each_other() -> None:
    one, other = batch_of(2, count=4, in_flight=[3, 1]), batch_of(1, count=7, in_flight=[1])
    both = PipelineBatch(2, 2, latency=0.0)
    both.counts[:], both.last[:] = [4, 7], [1, 0]
    both.forward[:, :, :], both.backward[:, :, :] = 1, 2
    both.in_flight[:] = [[3, 1], [1, 1]]
    assert follow(both).tolist() == [follow(one)[0], follow(other)[0]]


@given(
    cut=st.integers(1, 3),
    micro_batch=st.sampled_from([1, 2, 4]),
    held=st.integers(1, 5),
    bandwidth=st.floats(5, 1e4),
    schedule=st.sampled_from(sorted(SCHEDULES)),
)
def test_two_unreplicated_stages_are_as_simulated(
    cut: int, micro_batch: int, held: int, bandwidth: float, schedule: str
) -> None:
    plain = make_instance((1.0, 0.5, 2.0, 1.0), (1.0, 1.5), bandwidth=bandwidth, latency=0.1)
    problem = SearchProblem(with_weights_apart(plain, 0.5))
    candidate = Candidate(
        micro_batch,
        (
            CandidateStage(0, cut, (0,), (micro_batch,), held),
            CandidateStage(cut, 4, (1,), (micro_batch,), 1 if schedule == ONE_FORWARD_ONE_BACKWARD else held),
        ),
    )
    simulated = Judge(problem, budget=1e9, schedule=schedule).seconds(candidate)
    estimated = PipelineEstimator(problem, weights_apart=has_weights_apart(schedule)).estimate([candidate])
    assert np.allclose(estimated, simulated, rtol=0.02)


def seconds_of(problem: SearchProblem, candidate: Candidate) -> tuple[float, float]:
    """Estimated and simulated."""
    return PipelineEstimator(problem).estimate([candidate])[0], Judge(problem, budget=1e9).seconds(candidate)


def test_a_smaller_last_micro_batch_takes_less() -> None:
    problem = SearchProblem(make_instance((1.0, 1.0), (1.0,), mini_batch=7))
    estimated, simulated = seconds_of(problem, Candidate(5, (CandidateStage(0, 2, (0,), (5,), 1),)))
    assert estimated == pytest.approx(simulated) == pytest.approx(7 * 2 * 3.0)


def test_a_replica_without_samples_in_the_last_micro_batch_is_done_before() -> None:
    """Shares 2 and 1 of 3 samples: the one that is left goes to the first device, which is four times as fast."""
    problem = SearchProblem(make_instance((1.0, 1.0), (1.0, 4.0), param_bytes=0, mini_batch=4))
    stage = CandidateStage(0, 2, (0, 1), (2, 1), 1)
    estimated, simulated = seconds_of(problem, Candidate(3, (stage,)))
    # The second device has one sample in all, 2 layers of 3 seconds each; the first has three of them in that time.
    assert estimated == pytest.approx(simulated) == pytest.approx(4 * 2 * 3.0)


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(1, 3), micro_batch=st.sampled_from([3, 5, 7, 11, 15]), bandwidth=st.floats(5, 1e4))
def test_two_stages_with_a_rest_are_as_simulated(cut: int, micro_batch: int, bandwidth: float) -> None:
    problem = SearchProblem(make_instance((1.0, 0.5, 2.0, 1.0), (1.0, 1.5), bandwidth=bandwidth, latency=0.1))
    stages = (CandidateStage(0, cut, (0,), (micro_batch,), 4), CandidateStage(cut, 4, (1,), (micro_batch,), 1))
    estimated, simulated = seconds_of(problem, Candidate(micro_batch, stages))
    assert estimated == pytest.approx(simulated, rel=0.02)


def test_a_replica_is_slow_forward_and_another_one_backward() -> None:
    """5 samples of 1 and 2 seconds, against 1 of 9 and 3: forward 5 and 9, backward 10 and 3, both 15 and 12."""
    instance = make_instance((1.0,), (1.0, 4.0), param_bytes=0, mini_batch=6)
    slow = DeviceProfile((1,), ((9.0,),), ((3.0,),))
    instance = replace(instance, profiles={**instance.profiles, "class-b": slow})
    problem = SearchProblem(instance)
    estimated, simulated = seconds_of(problem, Candidate(6, (CandidateStage(0, 1, (0, 1), (5, 1), 1),)))
    assert estimated == pytest.approx(simulated) == pytest.approx(15.0)


def test_an_all_reduce_takes_processors() -> None:
    """Three replicas of a slow processor and a quick link: frames and bytes are what the round waits for."""
    instance = make_instance((1.0, 1.0), (1.0, 1.0, 1.0), param_bytes=8 << 20, bandwidth=1e12, mini_batch=3)
    overheads = Overheads(frame_seconds=0.01, byte_seconds=1e-7)
    profiles = {name: replace(profile, overheads=overheads) for name, profile in instance.profiles.items()}
    problem = SearchProblem(replace(instance, profiles=profiles))
    stage = CandidateStage(0, 2, (0, 1, 2), (1, 1, 1), 1)
    estimated, simulated = seconds_of(problem, Candidate(3, (stage,)))
    computing = 2 * 3.0
    bytes_handled = 2 * (4 / 3) * (16 << 20) * 1e-7
    assert simulated > computing + bytes_handled
    assert estimated - computing == pytest.approx(simulated - computing, rel=0.2)


def test_an_all_reduce_over_slow_links_goes_over_many_of_them_at_once() -> None:
    """Six replicas in two rooms: over each link between these goes a sixth of the gradients, and a sixth of the sums."""
    instance = make_instance((1.0,), (1.0,) * 6, param_bytes=6_000_000, mini_batch=6)
    rates = tuple(tuple(1e6 if a // 3 == b // 3 else 1e5 for b in range(6)) for a in range(6))
    problem = SearchProblem(replace(instance, network=Network(0.0, rates)))
    stage = CandidateStage(0, 1, tuple(range(6)), (1,) * 6, 1)
    estimated, simulated = seconds_of(problem, Candidate(6, (stage,)))
    computing = 3.0
    assert simulated - computing >= 2 / 6 * 6_000_000 / 1e5
    assert estimated - computing == pytest.approx(simulated - computing, rel=0.25)


@pytest.mark.parametrize(
    ("on_its_machine", "seconds"), [((False, False), 160.0), ((False, True), 80.0), ((True, True), 24.0)]
)
def test_samples_over_the_sources_card_alone(on_its_machine: tuple[bool, bool], seconds: float) -> None:
    """16 samples of 80 bytes and a label of 20 each, half to each replica, over a card of 10 bytes a second; 24 s computed."""
    instance = make_instance((1.0,), (1.0, 1.0), param_bytes=0, mini_batch=16)
    source = DataSource((1e4, 1e4), 10.0, label_bytes=20, input_bytes=80, on_its_machine=on_its_machine)
    problem = SearchProblem(replace(instance, data_source=source))
    # The search has its own order of devices.
    there = [device for device, is_there in enumerate(problem.at_source) if not is_there]
    assert len(there) == on_its_machine.count(False)
    estimated, simulated = seconds_of(problem, Candidate(4, (CandidateStage(0, 1, (0, 1), (2, 2), 1),)))
    assert [estimated, simulated] == pytest.approx([seconds, seconds], rel=0.01)


@pytest.mark.parametrize(("shares", "epochs", "seconds"), [((4,), 2, 80.0), ((2, 2), 2, 120.0), ((2, 2), 1, 160.0)])
def test_samples_that_devices_have_had_are_not_fetched_again(
    shares: tuple[int, ...], epochs: int, seconds: float
) -> None:
    """16 samples of 100 bytes for whoever takes them whole, over a card of 10 bytes a second."""
    instance = make_instance((1.0,), (1.0, 1.0), param_bytes=0, mini_batch=16)
    source = DataSource((1e4, 1e4), 10.0, label_bytes=100, input_bytes=100, joint_bytes=100, epochs=epochs)
    problem = SearchProblem(replace(instance, data_source=source))
    estimated, simulated = seconds_of(
        problem, Candidate(4, (CandidateStage(0, 1, tuple(range(len(shares))), shares, 1),))
    )
    assert [estimated, simulated] == pytest.approx([seconds, seconds], rel=0.01)


def test_together_they_are_estimated_as_each_by_itself() -> None:
    problem = SearchProblem(make_instance((1.0, 2.0, 1.0, 3.0), (1.0, 1.3, 2.0), bandwidth=20.0, mini_batch=16))
    candidates = [
        Candidate(4, (CandidateStage(0, 4, (0,), (4,), 1),)),
        Candidate(
            4,
            (
                CandidateStage(0, 1, (1,), (4,), 4),
                CandidateStage(1, 3, (0,), (4,), 3),
                CandidateStage(3, 4, (2,), (4,), 1),
            ),
        ),
        # The last micro-batch of a round has one sample.
        Candidate(5, (CandidateStage(0, 2, (0, 1), (3, 2), 3), CandidateStage(2, 4, (2,), (5,), 1))),
    ]
    alone = [float(PipelineEstimator(problem).estimate([candidate])[0]) for candidate in candidates]
    assert PipelineEstimator(problem).estimate(candidates).tolist() == pytest.approx(alone)
