"""edgeswarm's own planner: a program over sets of devices finds the shapes, the simulator picks and polishes.

    all sets, orders, cuts, sizes       set_program.py      estimate by formula, everything at once
      -> some dozens of whole plans     moves.py            samples shared exactly, memory kept
      -> the best dozen                 pipeline_estimate   1F1B followed for all of them at once
      -> the best few                   judge.py            simulated
      -> the best, changed step by step local_search.py     simulated, until nothing helps
      -> more of all that               ranking.py          until there is nothing new or the budget is used
  -> and that with a zero bubble                        where profiles tell what gradients of weights take

Asteroid's plan is among the finalists where making it is quick. The other planners' shapes are among what the program
looks at; `python -m bench.planner_table` compares the outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.schedule.policies import ZERO_BUBBLE

from ..assemble import finished_plan
from .candidate import Candidate, Outline, roomy_in_flight, usual_in_flight
from .cut_points import candidate_cuts
from .effort import Effort, has_many_devices, is_small, usual_effort
from .fewer_held import with_fewer_held
from .group_costs import GroupCostTables
from .grouping import groups_by_room, make_units, transitions
from .judge import Judge, candidate_of
from .local_search import LocalSearch
from .moves import Moves, canonical
from .pipeline_estimate import PipelineEstimator
from .problem import SearchProblem
from .ranking import Ranking
from .sample_shares import SampleSharing
from .set_program import SetProgram
from .sizes import EVERY_SIZE_UP_TO, all_sizes, balanced_sizes, first_sizes

NAME = "edgeswarm"
SLOWER_WITH_IT = "the round is no faster with it"
# By how much longer a round may take for micro-batches that are all of one size. A smaller last one takes compiled kernels of
# its own, 24 MB for all of MobileNetV2, and its blocks leave gaps for the others: a stage of MobileNetV2 held 107 MiB with 683
# samples every time, and 139 with 683 and 682 by turns.
_WORTH_OF_ONE_SIZE = 0.01
# Of the search's effort once more, for what begins with the program's groups and their layers shared anew.
_FROM_CUTS_ANEW = 0.1
# Likewise, for plans of several stages in which gradients of weights come apart, and so many of the plans without to begin with.
_WITH_WEIGHTS_APART, _TAKEN_OVER = 0.6, 8
# By how much faster a round has to be for that: what weights take apart is measured less often than what they take at once.
_WORTH_OF_APART = 0.01
# Of the search's effort once more, for what is left to do with the plan that was found.
_LAST_PART = 0.05


@dataclass(frozen=True)
class Found:
    """The best candidate so far and its seconds; all that was simulated with the schedule of its stages."""

    candidate: Candidate
    seconds: float
    schedule: str
    simulated: Mapping[Candidate, float]


def plan_by_search(
    instance: PlanningInstance,
    *,
    micro_batch: int | None = None,
    seeds: Sequence[Plan] = (),
    effort: Effort | None = None,
) -> Plan | None:
    """The best plan found; None where none fits memory. The prediction's round is the simulator's.

    micro_batch: samples of a micro-batch, where that is given. seeds: plans that it must not be worse than.
    The same instance and arguments give the same plan, in whatever order the instance lists its devices.
    """
    problem = SearchProblem(instance)
    effort = effort or usual_effort(problem)
    least = problem.least_batch
    looks_at = balanced_sizes if is_small(problem) else first_sizes
    first = (micro_batch,) if micro_batch else looks_at(problem.mini_batch, least_batch=least)
    sizes = (micro_batch,) if micro_batch else all_sizes(problem.mini_batch, least_batch=least)
    moves = Moves(problem, SampleSharing(problem), sizes)
    sketched = _outlines(problem, first, effort.sketches)
    # The program weighs cuts by a formula, looks at some of them alone, and at the best groups by these.
    cut_anew = list(dict.fromkeys(filter(None, map(moves.cut_anew, sketched))))
    given = [canonical(problem, candidate_of(problem, plan)) for plan in seeds]
    found = _without_weights_apart(moves, sketched=sketched, cut_anew=cut_anew, given=given, effort=effort)
    if found is None:
        return None
    if problem.has_weights_apart:
        begun = [found.candidate, *(begin for begin, plan in zip(given, seeds, strict=True) if plan.has_weights_apart)]
        found = _with_weights_apart(moves, found=found, outlines=[*sketched, *cut_anew], given=begun, effort=effort)
    if micro_batch is None:
        found = of_one_size(found, problem.mini_batch)
    last = Judge(problem, budget=effort.budget * _LAST_PART, schedule=found.schedule)
    candidate, seconds = with_fewer_held(last, found.candidate, found.seconds)
    return _finished(last, instance, candidate, seconds)


def _without_weights_apart(
    moves: Moves,
    *,
    sketched: Sequence[Outline],
    cut_anew: Sequence[Outline],
    given: Sequence[Candidate],
    effort: Effort,
) -> Found | None:
    """With 1F1B: from the sketches and what is given, then from the sketches' groups with their layers shared anew."""
    problem = moves.problem
    estimator = PipelineEstimator(problem)

    def searched(outlines: Iterable[Outline], begins: Sequence[Candidate], effort: Effort) -> Found | None:
        judge = Judge(problem, budget=effort.budget)
        starts = [candidate for candidate in map(moves.realise, outlines) if candidate is not None]
        best = Ranking(LocalSearch(moves, estimator, judge), effort).run(starts, begins)
        return None if best is None else Found(*best, judge.schedule, dict(judge.known()))

    found = searched(sketched, given, effort)
    if found is None:
        return None
    more = searched(cut_anew, [found.candidate], effort.times(_FROM_CUTS_ANEW))
    if more is None:
        return found
    best = more if more.seconds < found.seconds else found
    return replace(best, simulated={**found.simulated, **more.simulated})


def _with_weights_apart(
    usual: Moves, *, found: Found, outlines: Sequence[Outline], given: Sequence[Candidate], effort: Effort
) -> Found:
    """What was found, or a plan with a zero bubble that is enough faster; it begins at the best of those simulated without.

    given: simulated whatever it costs.
    """
    problem = usual.problem
    moves = Moves(problem, usual.sharing, usual.sizes, usual=roomy_in_flight)
    few = sorted(found.simulated, key=lambda candidate: found.simulated[candidate])[:_TAKEN_OVER]
    roomy = dict.fromkeys(
        outline._replace(in_flight=roomy_in_flight(len(outline.groups)))
        for outline in [*map(Outline.of, few), *outlines]
    )
    begins = [candidate for candidate in map(moves.realise, roomy) if candidate is not None]
    effort = effort.times(_WITH_WEIGHTS_APART)
    judge = Judge(problem, budget=effort.budget, schedule=ZERO_BUBBLE)
    local = LocalSearch(moves, PipelineEstimator(problem, weights_apart=True), judge)
    best = Ranking(local, effort).run(begins, given)
    if best is None or best[1] >= found.seconds * (1 - _WORTH_OF_APART):
        return found
    return Found(*best, judge.schedule, dict(judge.known()))


def of_one_size(found: Found, mini_batch: int) -> Found:
    """The best with micro-batches of one size among all that was simulated, where that is hardly slower; else as it is.

    Small mini-batches, of which micro-batches of few samples are made, are left as they are.
    """
    if mini_batch <= EVERY_SIZE_UP_TO or mini_batch % found.candidate.micro_batch == 0:
        return found
    even = [candidate for candidate in found.simulated if mini_batch % candidate.micro_batch == 0]
    best = min(even, key=lambda candidate: found.simulated[candidate], default=found.candidate)
    seconds = found.simulated.get(best, math.inf)
    return (
        replace(found, candidate=best, seconds=seconds)
        if seconds <= found.seconds * (1 + _WORTH_OF_ONE_SIZE)
        else found
    )


def _outlines(problem: SearchProblem, sizes: Sequence[int], most: int) -> list[Outline]:
    """From the set program at every size: the best of all, and the best of each size; plus the plainest plans."""
    kinds = make_units(problem)
    count = transitions([len(kind.units) for kind in kinds])
    cuts = candidate_cuts(problem.instance, 28 if count <= 300 else 20 if count <= 1300 else 14)
    tables = GroupCostTables(problem, kinds, cuts)
    program = SetProgram(tables)
    sketches = []
    for size in sizes:
        micro_batches = -(-problem.mini_batch // size)
        found = program.run(
            tables.costs(size, _in_flight_options(problem, size, micro_batches)),
            micro_batches=problem.mini_batch / size,
        )
        sketches += [(sketch.seconds, number, -size, sketch.outline) for number, sketch in enumerate(found)]
    sketches.sort(key=lambda sketch: sketch[:3])
    kept = [outline for _, _, _, outline in sketches[:most]]
    kept += [outline for _, number, _, outline in sketches if number < 3]
    outlines = [_with_usual_in_flight(outline) for outline in kept] + kept
    whole = (0, problem.layer_count)
    for size in sizes:
        outlines += [Outline(size, whole, ((device,),), (1,)) for device in _one_of_each_kind(problem)]
        outlines.append(Outline(size, whole, (tuple(range(problem.device_count)),), (1,)))
    if has_many_devices(problem):
        # In the largest micro-batches; where memory wants smaller ones, the search makes them.
        outlines += [Outline(max(sizes), whole, (group,), (1,)) for group in groups_by_room(problem)]
    return list(dict.fromkeys(outlines))


def _in_flight_options(problem: SearchProblem, micro_batch: int, micro_batches: int) -> tuple[int, ...]:
    """K that a stage may hold: one where memory holds anything, else some that differ in what they need."""
    most = min(micro_batches, 3 * min(problem.device_count, problem.layer_count, 8) - 2)
    loose = all(
        problem.largest_share(device, (0, problem.layer_count), in_flight=most, micro_batch=micro_batch) >= micro_batch
        for device in range(problem.device_count)
    )
    if loose:
        return (most,)
    return tuple(sorted({1, min(2, most), min(4, most), min(7, most), most}))


def _with_usual_in_flight(outline: Outline) -> Outline:
    return outline._replace(in_flight=usual_in_flight(len(outline.groups)))


def _one_of_each_kind(problem: SearchProblem) -> list[int]:
    return [problem.kinds.index(kind) for kind in sorted(set(problem.kinds))]


def _finished(judge: Judge, instance: PlanningInstance, candidate: Candidate, seconds: float) -> Plan:
    """With idle devices and why, backup holders, and the prediction."""
    plan = finished_plan(instance, judge.plan(candidate, planner=NAME), left_out=SLOWER_WITH_IT)
    assert plan.predicted is not None
    rate = plan.mini_batch / seconds if seconds > 0 else math.inf
    return replace(plan, predicted=replace(plan.predicted, round_seconds=seconds, samples_per_second=rate))
