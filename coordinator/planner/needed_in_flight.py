"""K no larger than a round needs: what a stage holds beyond that is memory for nothing. Pure.

    K of a plan                                5 5 5
    reached in a round                         4 2 1      the very same happens with these
    the least with which no round is longer    3 2 1      what a stage takes in early, it often computes late

No round: neither one as predicted, nor one with a stage, or the links, slower than they are said to be.

A K that is needed is reached in each round, so that its memory can be foretold; one that is merely allowed is reached in one
training and not in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from ..simulator.simulate import round_and_in_flight, round_seconds
from .prediction import with_prediction

# Predictions of rounds are off by less (bench.predictions: the 95th percentile).
_SLOWER = 1.15
# A round is longer where it is by more than rounding; one with something slower, by more than nobody would notice.
_LONGER, _LONGER_WHERE_SLOWER = 1 + 1e-6, 1.002
# What may be simulated, in micro-batches of a device: with 8000 a plan of 0.7 s took up to 0.4 more, and 3000 brought one K
# of all that were seen from 28 to 27.
MOST_WORK = 2_000


def with_needed_in_flight(instance: PlanningInstance, plan: Plan, *, most_work: int = MOST_WORK) -> Plan:
    """The same plan, with its prediction; each stage's K is smaller or as it was, and the round no longer.

    most_work: in micro-batches of a device. A plan for so many devices or micro-batches that little of it could be tried keeps
    more than is needed.
    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for this instance.
    """
    in_flight = tuple(stage.in_flight for stage in plan.stages)
    if max(in_flight) > 1:
        needed = _Trials(instance, plan, most_work=most_work).needed()
        if needed != in_flight:
            return with_prediction(instance, _with_in_flight(plan, needed))
    return plan


class _Trials:
    """Rounds of a plan with other K, as long as the work lasts."""

    def __init__(self, instance: PlanningInstance, plan: Plan, *, most_work: int) -> None:
        self._plan = plan
        self._work_left = most_work
        seconds, self._reached = round_and_in_flight(instance, plan)
        self._spend()
        # Each with the seconds that its round may take. One that forbade something is the first to be asked again.
        self._circumstances = [(instance, _LONGER * seconds)]
        for slower in _slower_in_part(instance, plan):
            if not self._affords():
                break
            self._circumstances.append((slower, _LONGER_WHERE_SLOWER * self._seconds(slower, plan)))

    def needed(self) -> tuple[int, ...]:
        in_flight = tuple(stage.in_flight for stage in self._plan.stages)
        if self._reached != in_flight and self._suffices(self._reached):
            in_flight = self._reached
        for stage in range(len(in_flight)):  # the first ones hold most
            while in_flight[stage] > 1:
                fewer = (*in_flight[:stage], in_flight[stage] - 1, *in_flight[stage + 1 :])
                if not self._suffices(fewer):
                    break
                in_flight = fewer
        return in_flight

    def _suffices(self, in_flight: Sequence[int]) -> bool:
        """Whether no round is longer with it, as far as is known: not where that can't be tried any more."""
        plan = _with_in_flight(self._plan, in_flight)
        for place, (instance, longest) in enumerate(self._circumstances):
            if not self._affords():
                return False
            if self._seconds(instance, plan) > longest:
                self._circumstances.insert(0, self._circumstances.pop(place))
                return False
        return True

    def _seconds(self, instance: PlanningInstance, plan: Plan) -> float:
        self._spend()
        return round_seconds(instance, plan)

    def _affords(self) -> bool:
        return self._work_left >= self._work_of_a_round

    def _spend(self) -> None:
        self._work_left -= self._work_of_a_round

    @property
    def _work_of_a_round(self) -> int:
        return self._plan.micro_batches * len(self._plan.devices)


def _with_in_flight(plan: Plan, in_flight: Sequence[int]) -> Plan:
    stages = zip(plan.stages, in_flight, strict=True)
    return replace(plan, stages=tuple(replace(stage, in_flight=most) for stage, most in stages))


def _slower_in_part(instance: PlanningInstance, plan: Plan) -> Iterator[PlanningInstance]:
    """One stage's layers after the other, then all links."""
    for stage in plan.stages:
        factors = np.ones(instance.model.layer_count)
        factors[stage.first_layer : stage.end_layer] = _SLOWER
        profiles = {kind: profile.with_seconds_times(factors) for kind, profile in instance.profiles.items()}
        yield replace(instance, profiles=profiles)
    network = instance.network
    bandwidth = tuple(tuple(rate / _SLOWER for rate in row) for row in network.bandwidth)
    yield replace(instance, network=replace(network, bandwidth=bandwidth))
