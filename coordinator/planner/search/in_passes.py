"""Data parallelism in one micro-batch: each device computes its share of the mini-batch in passes of a size of its own.

    micro-batches    nx    | 440 | 440 |        all devices cut the mini-batch alike: the slow one's parts are small where the
                     nano  | 60  | 60  |        fast one's memory is full
    passes           nx    | 440 | 440 |
                     nano  |    120    |        the same samples, gradients added up likewise

A pass is as large as suits the device's curve and its memory, and no larger than was measured where that costs next to nothing
(../beyond_measured.py). Where the whole model is on every device nothing is lost by it: nobody waits for a micro-batch of another
stage. But a bucket's all-reduce begins when its gradients are final, in the backward of the last pass, which is short where there
are many: what doesn't fit beside it, all wait for. So the plan with fewer passes is tried, too:

    passes      | 100 | 100 | 100 | 100 |          | 200       | 200       |
    all-reduce                       ----------                     ----------
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.chunk_owners import traffic
from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance

from ...simulator.simulate import round_seconds
from ..assemble import finished_plan
from ..beyond_measured import most_beyond, slower_beyond
from ..chunk_owners import handling_seconds
from ..connection_memory import connection_bytes
from ..cost_model import fits_memory
from ..passing_memory import passing_of_runs
from .edgeswarm import NAME, SLOWER_WITH_IT
from .problem import SearchProblem
from .sample_shares import shares_by_time

MOST_PASSES = 64
# A smaller number of passes is taken where it costs no more than this part: curves aren't better than that.
_ALIKE = 0.002
# How many times a plan is tried with fewer passes: most of what there is to win is in the first few.
_MOST_FEWER = 3
_MOST_GROUPS = 6
# Of numbers of devices of each kind.
_MOST_COUNTED = 500


@dataclass(frozen=True)
class PassTable:
    """Of one device: arrays [mini_batch + 1] over its share. seconds: of a round's computing, infinite where memory is too small
    for the share. passes: in how many."""

    seconds: FloatArray
    passes: IntArray


def plan_in_passes(instance: PlanningInstance) -> Plan | None:
    """The fastest such plan, over all devices or some of them; None where none fits memory.

    The round of its prediction is the simulator's. The same for whatever order the instance lists its devices in.
    """
    problem = SearchProblem(instance)
    plans = [plan for devices in _groups(problem) if (plan := share_in_passes(problem, devices)) is not None]
    if not plans:
        return None
    best = min(plans, key=lambda plan: round_seconds(problem.instance, plan))
    return finished_plan(instance, _in_fewer_passes(problem, best), left_out=SLOWER_WITH_IT)


def _in_fewer_passes(problem: SearchProblem, plan: Plan) -> Plan:
    """The same devices in fewer passes, where a round is expected to be shorter so."""

    def expected_seconds(some: Plan) -> float:
        return round_seconds(problem.instance, some) * most_beyond(problem.instance, some)

    (stage,) = plan.stages
    devices = tuple(problem.instance.index_of[name] for name in stage.devices)
    best, seconds, one_less = plan, expected_seconds(plan), max(stage.passes.values()) - 1
    for most_passes in range(one_less, max(0, one_less - _MOST_FEWER), -1):
        fewer = share_in_passes(problem, devices, most_passes=most_passes)
        if fewer is not None and (of_fewer := expected_seconds(fewer)) < seconds * (1 - _ALIKE):
            best, seconds = fewer, of_fewer
    return best


def share_in_passes(problem: SearchProblem, devices: tuple[int, ...], *, most_passes: int = MOST_PASSES) -> Plan | None:
    """The plan of these devices, in this order, with shares by which they are done together; None where memory can't hold one, or
    an epoch's last round leaves one of them too few samples.

    A device for which no sample is left is left out. most_passes: of a share; more only where memory demands them.
    """
    while devices:
        sharing = PassSharing(problem, devices, most_passes=most_passes)
        shares = sharing.shares()
        if shares is None:
            return None
        used = [place for place, share in enumerate(shares) if share >= problem.least_batch]
        if len(used) == len(devices):
            plan = Plan(NAME, problem.mini_batch, 1, (sharing.stage(shares),))
            possible = not problem.instance.too_few_samples(plan) and fits_memory(problem.instance, plan)
            return plan if possible else None
        devices = tuple(devices[place] for place in used)
    return None


def _groups(problem: SearchProblem) -> list[tuple[int, ...]]:
    """All devices, and those groups of like kinds that look fastest: by what they compute together, and their all-reduce."""
    members = problem.members
    speeds = [_samples_per_second(problem, devices[0]) for devices in members]
    fastest_first = sorted(range(len(members)), key=lambda kind: (-speeds[kind], kind))
    counts: Iterable[tuple[int, ...]] = itertools.product(*(range(len(members[kind]) + 1) for kind in fastest_first))
    if math.prod(len(devices) + 1 for devices in members) > _MOST_COUNTED:
        whole = [len(members[kind]) for kind in fastest_first]
        counts = [(*whole[:kept], *(0 for _ in whole[kept:])) for kept in range(1, len(whole) + 1)]
    groups = [
        tuple(
            sorted(itertools.chain(*(members[kind][:count] for kind, count in zip(fastest_first, some, strict=True))))
        )
        for some in counts
        if any(some)
    ]
    rough = {
        group: _rough_seconds(problem, group, [speeds[problem.kinds[device]] for device in group]) for group in groups
    }
    every = tuple(range(problem.device_count))
    return [every, *(group for group in sorted(groups, key=lambda group: (rough[group], group)) if group != every)][
        :_MOST_GROUPS
    ]


def _samples_per_second(problem: SearchProblem, device: int) -> float:
    """At the best size of a pass that its memory might hold."""
    kind, last = problem.class_of[device], problem.layer_count
    most = problem.largest_share(device, (0, last), in_flight=1, micro_batch=problem.mini_batch)
    if most < problem.least_batch:
        return 0.0
    forward, backward = problem.seconds
    sizes = slice(max(1, problem.least_batch), most + 1)
    seconds = forward[kind, sizes, last] + backward[kind, sizes, last]
    seconds = seconds + 2 * problem.profiles[kind].overheads.action_seconds
    return float(np.max(np.arange(sizes.start, sizes.stop) / np.maximum(seconds, 1e-300), initial=0.0))


def _rough_seconds(problem: SearchProblem, group: tuple[int, ...], speeds: list[float]) -> float:
    together, size = sum(speeds), len(group)
    if together <= 0:
        return math.inf
    seconds = problem.mini_batch / together
    if size > 1:
        does = traffic(size, size, is_owner=True)
        slowest = max(replica.byte_seconds(does) for replica in problem.replicas(group).values())
        seconds += slowest * problem.gradient_bytes(0, problem.layer_count)
    return seconds


class PassSharing:
    """How devices that each hold the whole model share a mini-batch. devices: their places, in the order of the replicas.
    most_passes: of a share; more only where memory demands them.
    """

    def __init__(self, problem: SearchProblem, devices: tuple[int, ...], *, most_passes: int = MOST_PASSES) -> None:
        self.problem = problem
        self.devices = devices
        self._most_passes = most_passes
        self._names = [problem.instance.device_names[device] for device in devices]
        self._tables = [self._table(device, free) for device, free in zip(devices, self._free(), strict=True)]

    def shares(self) -> list[int] | None:
        """With which all are done soonest, what a processor does beside computing included. None where memory holds none."""
        samples = self.problem.mini_batch
        least = min(self.problem.least_batch, samples)
        times, largest = [], []
        for table, more in zip(self._tables, self._beside(), strict=True):
            held = np.flatnonzero(~np.isfinite(table.seconds[least:]))
            most = least + int(held[0]) - 1 if len(held) else samples
            largest.append(most if most >= least else 0)
            seconds = table.seconds.copy()
            seconds[:least] = np.where(np.arange(least) > 0, seconds[least], 0.0)
            times.append(np.maximum.accumulate(seconds) + np.where(np.arange(samples + 1) > 0, more, 0.0))
        if sum(largest) < samples:
            return None
        served = self.problem.served_seconds(self.devices)
        whole = np.maximum(np.array(times), served[:, np.newaxis] * np.arange(samples + 1))
        return [int(share) for share in shares_by_time(whole, np.array(largest), samples)]

    def stage(self, shares: Sequence[int]) -> Stage:
        """With the passes that suit these shares."""
        passes = [int(table.passes[share]) for table, share in zip(self._tables, shares, strict=True)]
        return self._stage(shares, passes)

    def _stage(self, shares: Sequence[int], passes: Sequence[int]) -> Stage:
        owners = self.problem.owners(0, self.problem.layer_count, self.devices)
        return Stage(
            0,
            self.problem.layer_count,
            dict(zip(self._names, shares, strict=True)),
            in_flight=1,
            owners=tuple(self.problem.instance.device_names[device] for device in owners),
            passes=dict(zip(self._names, passes, strict=True)),
        )

    def _free(self) -> list[float]:
        """By device: bytes for samples, beside weights, links and the all-reduce."""
        problem, ones = self.problem, [1] * len(self.devices)
        plan = Plan(NAME, len(ones), 1, (self._stage(ones, ones),))
        links = connection_bytes(problem.instance, plan)
        return [
            problem.memory[device] - links[name] - problem.weight_bytes(0, problem.layer_count)
            for device, name in zip(self.devices, self._names, strict=True)
        ]

    def _table(self, device: int, free: float) -> PassTable:
        problem, last = self.problem, self.problem.layer_count
        kind = problem.class_of[device]
        forward, backward = problem.seconds
        both = forward[kind, :, last] + backward[kind, :, last]
        action = problem.profiles[kind].overheads.action_seconds
        run = passing_of_runs(problem.instance, np.array([0]), np.array([last]))
        share = np.arange(problem.mini_batch + 1)
        expected = slower_beyond(problem.profiles[kind], share, first_layer=0, end_layer=last)
        rows, likely = [], []
        for passes in range(1, MOST_PASSES + 1):
            size, over = np.divmod(share, passes)
            at_once = size + (over > 0)
            seconds = over * both[at_once] + (passes - over) * both[size] + 2 * passes * action
            # An epoch's smaller last round is split anew: one size in one pass, or two.
            of_rest = 0 if not problem.instance.training.rest else 1 if passes == 1 else 2
            kernels = problem.kernel_bytes_before[last] * (((size > 0) & (over > 0)) + of_rest)
            saved = (problem.saved_bytes[-1] - problem.saved_bytes_from[0]) * at_once
            fits = run.bytes_of(share, at_once) + saved + kernels <= free
            rows.append(np.where(fits & (size >= problem.least_batch), seconds, np.inf))
            likely.append(rows[-1] * expected[at_once])
        table, by_likely = np.array(rows), np.array(likely)
        is_possible = np.isfinite(by_likely[: self._most_passes]).any(axis=0)
        by_likely[self._most_passes :, is_possible] = np.inf
        chosen: IntArray = np.argmax(by_likely <= by_likely.min(axis=0) * (1 + _ALIKE), axis=0)
        return PassTable(np.take_along_axis(table, chosen[np.newaxis], axis=0)[0], chosen + 1)

    def _beside(self) -> list[float]:
        """By device: seconds of its processor whatever its share. Its optimizer's step, and the all-reduce's frames and bytes."""
        problem, size = self.problem, len(self.devices)
        owners = problem.owners(0, problem.layer_count, self.devices) or self.devices
        found = []
        for device in self.devices:
            kind = problem.class_of[device]
            overheads = problem.profiles[kind].overheads
            seconds = float(problem.update_before[kind, -1]) + overheads.round_seconds
            if size > 1:
                seconds += handling_seconds(
                    overheads,
                    size=size,
                    owners=len(owners),
                    gradient_bytes=problem.gradient_bytes(0, problem.layer_count),
                    is_owner=device in owners,
                )
            found.append(seconds)
        return found
