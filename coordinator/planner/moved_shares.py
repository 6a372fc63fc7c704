"""Shares that follow the speed which replicas show in a training. Pure.

A plan's shares come from curves, and curves are some percent off; a box under the roof is slower at noon. Every round waits for
the replica that got more than it can do in its time:

    as planned    nx-1  |=========....|     a round     moved  nx-1  |==========|     a round
                  tx2-1 |=============|                        tx2-1 |===========|

Each device's curves are stretched so that they say what it showed, its stage's samples are shared anew by them, and both
plans are simulated by them. Layers, groups and micro-batches stay: no weight has to travel.

Replicas disturb one another (who is early sends its gradients while others compute), so that the one that is quicker with its
old share is not quicker with a new one by as much: shares go half of the way, but for large differences, which are real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import DeviceProfile, PlanningInstance
from edgeswarm.samples import split_micro_batch

from ..simulator.simulate import round_seconds
from .cost_model import fits_memory, passes_of_share
from .prediction import with_prediction
from .search.in_passes import PassSharing
from .search.problem import SearchProblem
from .search.sample_shares import SampleSharing
from .shortage import plan_shortages

# Of a round.
LEAST_GAIN_OF_A_STAGE = 0.01
LARGE_GAIN = 0.15


@dataclass(frozen=True)
class MovedShares:
    """plan: the same but for its shares, with a prediction by the stretched curves.

    gain: the part of a round that it is expected to save.
    """

    plan: Plan
    gain: float


def moved_shares(
    instance: PlanningInstance,
    plan: Plan,
    computing_seconds: Mapping[str, float],
    *,
    earlier: Sequence[Plan] = (),
) -> MovedShares | None:
    """The plan with shares by speed, and of a plan in passes with passes that suit them; None where that brings nothing.

    instance: what the plan was made of. computing_seconds: forward and backward of a whole round, by device. earlier: plans that
    the same workers followed before this one, with other shares; they hold the kernels of all of them.
    A stage stays as it is where a replica would get no sample, where memory holds the new shares with a smaller K alone or not
    beside all links and frames that wait, where a smaller last micro-batch can't be split by them, and where the round hardly
    gets shorter: replicas that wait for others anyway seem quicker one time and slower the next.
    """
    followed = (*earlier, plan)
    shown = stretched(instance, plan, computing_seconds)
    sharing = SampleSharing(SearchProblem(shown))
    bare = replace(plan, predicted=None)
    before = seconds = round_seconds(shown, bare)
    moved_plan: Plan | None = None
    lacks: Mapping[str, int] | None = None
    for place, stage in enumerate(plan.stages):
        there, half_way = _moved_both_ways(sharing, stage, plan)
        for moved, least_gain in ((there, LARGE_GAIN), (half_way, LEAST_GAIN_OF_A_STAGE)):
            changed = replace(bare, stages=(*bare.stages[:place], moved, *bare.stages[place + 1 :]))
            if not _can_be(instance, changed, followed):
                continue
            found = round_seconds(shown, changed)
            if seconds - found < least_gain * before:
                continue
            changed_plan = with_prediction(shown, changed, earlier=followed)
            lacks = _lacks(shown, with_prediction(shown, bare, earlier=earlier)) if lacks is None else lacks
            if any(lack > lacks.get(device, 0) for device, lack in _lacks(shown, changed_plan).items()):
                continue
            bare, moved_plan, seconds = changed, changed_plan, found
            break
    if moved_plan is None:
        return None
    return MovedShares(moved_plan, gain=1.0 - seconds / before)


def _can_be(instance: PlanningInstance, plan: Plan, earlier: Sequence[Plan]) -> bool:
    """Whether every replica takes enough samples for its layers, or none, and all memory holds it behind the earlier plans.

    What links and the all-reduce hold is known for a whole plan only: other shares are other peers, of neighbours too.
    """
    return not instance.too_few_samples(plan) and fits_memory(instance, plan, earlier=earlier)


def _lacks(instance: PlanningInstance, plan: Plan) -> dict[str, int]:
    """Bytes that devices lack by the plan's prediction, frames that wait among them: by how fast devices are, more may wait than
    was planned, whatever the shares.
    """
    assert plan.predicted is not None
    shortages = plan_shortages(instance, plan, needed=plan.predicted.memory_bytes)
    return {shortage.device.name: shortage.lacking_bytes for shortage in shortages}


def expected_seconds(instance: PlanningInstance, plan: Plan) -> dict[str, float]:
    """Forward and backward of one round by the curves, by device."""
    least = instance.model.largest_least_batch
    return {
        device: _expected_seconds(
            _profile_for(plan, instance.profile_of(device)), plan, stage, device, least_batch=least
        )
        for stage in plan.stages
        for device in stage.devices
    }


def stretched(instance: PlanningInstance, plan: Plan, computing_seconds: Mapping[str, float]) -> PlanningInstance:
    """The instance with curves of its own for each device of the plan, by which it takes as long as it took."""
    profiles = dict(instance.profiles)
    devices = list(instance.devices)
    for device, expected in expected_seconds(instance, plan).items():
        if expected > 0:
            place = instance.index_of[device]
            kind = f"{devices[place].profile} as {device} showed it"
            profile = _profile_for(plan, instance.profile_of(device))
            profiles[kind] = times_as_long(profile, computing_seconds[device] / expected)
            devices[place] = replace(devices[place], profile=kind)
    return replace(instance, profiles=profiles, devices=tuple(devices))


def _profile_for(plan: Plan, profile: DeviceProfile) -> DeviceProfile:
    """Where gradients of weights come apart: with backwards that take at once what both parts take, of which these are parts.

    Samples are shared by the whole, and rounds simulated by the parts.
    """
    if not plan.has_weights_apart or not profile.weights_parts:
        return profile
    rest, weights = np.array(profile.rest_parts), np.array(profile.weights_parts)
    both = rest + weights
    return replace(
        profile,
        backward_seconds=tuple(tuple((np.array(row) * both).tolist()) for row in profile.backward_seconds),
        rest_parts=tuple((rest / both).tolist()),
        weights_parts=tuple((weights / both).tolist()),
    )


def _expected_seconds(profile: DeviceProfile, plan: Plan, stage: Stage, device: str, *, least_batch: int) -> float:
    """Forward and backward of one round by the curves."""
    seconds = 0.0
    for size in plan.micro_batch_sizes():
        samples = split_micro_batch(stage.shares, size, least_batch=least_batch)[device].size
        for at_once in passes_of_share(stage, device, samples, least_batch=least_batch):
            seconds += profile.forward(at_once, stage.first_layer, stage.end_layer)
            seconds += profile.backward(at_once, stage.first_layer, stage.end_layer)
    return seconds


def times_as_long(profile: DeviceProfile, factor: float) -> DeviceProfile:
    """As if each layer's forward and backward took so many times as long."""
    forward, backward = (
        tuple(tuple(value * factor for value in row) for row in rows)
        for rows in (profile.forward_seconds, profile.backward_seconds)
    )
    return replace(profile, forward_seconds=forward, backward_seconds=backward)


def _moved_both_ways(sharing: SampleSharing, stage: Stage, plan: Plan) -> tuple[Stage, Stage]:
    """The stage with the shares that suit its devices, and half of the way there."""
    if stage.passes and plan.micro_batches == 1:
        places = sharing.problem.instance.index_of
        in_passes = PassSharing(
            sharing.problem,
            tuple(places[device] for device in stage.devices),
            most_passes=max(stage.passes.values()),  # in how many its all-reduce suits the round
        )
        shares = in_passes.shares()
        if shares is None or min(shares) < max(1, sharing.problem.least_batch):
            return stage, stage
        there = in_passes.stage(shares)
        return there, in_passes.stage(tuple(_half_way(stage.shares, there.shares).values()))
    there = _moved(sharing, stage, plan.micro_batch)
    return there, replace(stage, shares=_half_way(stage.shares, there.shares))


def _moved(sharing: SampleSharing, stage: Stage, micro_batch: int) -> Stage:
    if not stage.replicated or stage.passes:  # passes within micro-batches are somebody's choice by hand
        return stage
    places = sharing.problem.instance.index_of
    devices = tuple(places[device] for device in stage.devices)
    found = sharing.stage(stage.first_layer, stage.end_layer, devices, micro_batch, stage.in_flight)
    if found is None or found.devices != devices or found.in_flight != stage.in_flight:
        return stage
    return replace(stage, shares=dict(zip(stage.devices, found.shares, strict=True)))


def _half_way(here: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
    """Shares in the middle between both; what is lost to rounding goes to those who get more, the first ones first."""
    shares = {device: min(share, there[device]) + abs(share - there[device]) // 2 for device, share in here.items()}
    missing = sum(here.values()) - sum(shares.values())
    for device in sorted(shares, key=lambda device: shares[device] - there[device])[:missing]:
        shares[device] += 1
    return shares
