"""Who decides: the simulator, as long as the budget lasts. The budget counts work, not time, so that plans repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan, Stage
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD, has_weights_apart

from ...simulator.simulate import round_seconds
from ...simulator.stage_work import MOST_BUCKETS
from ..cost_model import fits_memory
from .candidate import Candidate, CandidateStage
from .problem import SearchProblem


class Judge:
    """Simulates candidates of one problem, each once.

    budget: work that may still be done, in actions and frames (see `work`). Nothing is simulated beyond it.
    schedule: of plans of several stages; one alone has nobody who would wait.
    """

    def __init__(self, problem: SearchProblem, *, budget: float, schedule: str = ONE_FORWARD_ONE_BACKWARD) -> None:
        self.problem = problem
        self.budget = budget
        self.schedule = schedule
        self.simulated = 0
        self._known: dict[Candidate, float] = {}

    def knows(self, candidate: Candidate) -> bool:
        return candidate in self._known

    def known(self) -> list[tuple[Candidate, float]]:
        """All that was simulated, in that order, with its seconds."""
        return list(self._known.items())

    def affords(self, candidate: Candidate) -> bool:
        return candidate in self._known or self.work(candidate) <= self.budget

    def seconds(self, candidate: Candidate) -> float:
        """Seconds of a round; infinite for a plan that isn't one, or that doesn't fit memory."""
        if candidate not in self._known:
            self.budget -= self.work(candidate)
            self.simulated += 1
            self._known[candidate] = self._simulate(candidate)
        return self._known[candidate]

    def work(self, candidate: Candidate) -> float:
        """What simulating it costs: its actions and frames in all micro-batches, and something for each plan."""
        replicas = sum(len(stage.devices) for stage in candidate.stages)
        frames = sum(
            len(sender.devices) + len(receiver.devices) - 1
            for sender, receiver in zip(candidate.stages, candidate.stages[1:], strict=False)
        )
        rounds = 1 if self.problem.instance.data_source is None else 2
        shared = frames - len(candidate.stages) + 1  # streams on cards that others share, which cost more
        kinds = 3 if has_weights_apart(self.schedule) else 2
        actions = kinds * replicas + 3 * frames + 3 * shared
        once = sum(self._all_reduce_work(stage) for stage in candidate.stages if len(stage.devices) > 1)
        return rounds * (candidate.micro_batches(self.problem.mini_batch) * actions + once) + 120

    def _all_reduce_work(self, stage: CandidateStage) -> float:
        """Of the transfers out of each card and into it, for each bucket of gradients and the statistics."""
        size = len(stage.devices)
        before = self.problem.buckets_before
        buffers = min(before[stage.end] - before[stage.first] + 1, MOST_BUCKETS) + 1
        return 6.0 * buffers * 2 * size

    def plan(self, candidate: Candidate, *, planner: str) -> Plan:
        return make_bare_plan(self.problem, candidate, planner=planner, schedule=self.schedule)

    def _simulate(self, candidate: Candidate) -> float:
        plan = self.plan(candidate, planner="candidate")
        instance = self.problem.instance
        if instance.too_few_samples(plan) or not fits_memory(instance, plan, passing=self.problem.passing):
            return math.inf
        try:
            return round_seconds(instance, plan)
        except EdgeswarmError:
            return math.inf  # a smaller last micro-batch would leave a replica fewer samples than a layer needs


def make_bare_plan(
    problem: SearchProblem, candidate: Candidate, *, planner: str, schedule: str = ONE_FORWARD_ONE_BACKWARD
) -> Plan:
    """The plan without idle devices, backup holders and prediction. schedule: as for a Judge."""
    names = problem.instance.device_names
    micro_batches = candidate.micro_batches(problem.mini_batch)
    return Plan(
        planner=planner,
        micro_batch=candidate.micro_batch,
        micro_batches=micro_batches,
        last_micro_batch=problem.mini_batch % candidate.micro_batch or None,
        schedule=schedule if len(candidate.stages) > 1 else ONE_FORWARD_ONE_BACKWARD,
        stages=tuple(
            Stage(
                stage.first,
                stage.end,
                {names[device]: share for device, share in zip(stage.devices, stage.shares, strict=True)},
                min(stage.in_flight, micro_batches),
                tuple(names[device] for device in problem.owners(stage.first, stage.end, stage.devices)),
            )
            for stage in candidate.stages
        ),
    )


def candidate_of(problem: SearchProblem, plan: Plan) -> Candidate:
    """A whole plan of another planner as a candidate."""
    places = problem.instance.index_of
    return Candidate(
        plan.micro_batch,
        tuple(
            CandidateStage(
                stage.first_layer,
                stage.end_layer,
                tuple(places[name] for name in stage.shares),
                tuple(stage.shares.values()),
                stage.in_flight,
            )
            for stage in plan.stages
        ),
    )


def fastest(judge: Judge, candidates: Sequence[Candidate]) -> tuple[Candidate, float] | None:
    """The fastest of those that the budget allows, in their order; the first of equals, None where none fits."""
    best: tuple[Candidate, float] | None = None
    for candidate in candidates:
        if judge.affords(candidate):
            seconds = judge.seconds(candidate)
            if math.isfinite(seconds) and (best is None or seconds < best[1]):
                best = (candidate, seconds)
    return best
