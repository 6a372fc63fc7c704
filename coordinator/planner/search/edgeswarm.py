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
from collections.abc import Sequence
from dataclasses import replace

from edgeswarm.plan import IdleDevice, Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.schedule.policies import ZERO_BUBBLE

from ..backups import with_backups
from ..prediction import with_prediction
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
    sharing = SampleSharing(problem)
    least = problem.least_batch
    looks_at = balanced_sizes if is_small(problem) else first_sizes
    first = (micro_batch,) if micro_batch else looks_at(problem.mini_batch, least_batch=least)
    sizes = (micro_batch,) if micro_batch else all_sizes(problem.mini_batch, least_batch=least)
    moves = Moves(problem, sharing, sizes)
    estimator = PipelineEstimator(problem)
    judge = Judge(problem, budget=effort.budget)
    local = LocalSearch(moves, estimator, judge)

    sketched = _outlines(problem, first, effort.sketches)
    whole = [moves.realise(outline) for outline in sketched]
    starts = [candidate for candidate in whole if candidate is not None]
    given = [canonical(problem, candidate_of(problem, plan)) for plan in seeds]
    found = Ranking(local, effort).run(starts, given)
    if found is None:
        return None
    # The program weighs cuts by a formula, looks at some of them alone, and at the best groups by these.
    cut_anew = dict.fromkeys(filter(None, map(moves.cut_anew, sketched)))
    others = [candidate for candidate in map(moves.realise, cut_anew) if candidate is not None]
    less = replace(effort, budget=effort.budget * _FROM_CUTS_ANEW)
    second = Judge(problem, budget=less.budget)
    better = Ranking(LocalSearch(moves, estimator, second), less).run(others, [found[0]])
    if better is not None and better[1] < found[1]:
        found, judge = better, second
    if problem.has_weights_apart:
        few = sorted(judge.known(), key=lambda known: known[1])[:_TAKEN_OVER]
        more = replace(effort, budget=effort.budget * _WITH_WEIGHTS_APART)
        apart = Judge(problem, budget=more.budget, schedule=ZERO_BUBBLE)
        roomy = Moves(problem, sharing, sizes, usual=roomy_in_flight)
        local = LocalSearch(roomy, PipelineEstimator(problem, weights_apart=True), apart)
        outlines = dict.fromkeys([*(Outline.of(candidate) for candidate, _ in few), *sketched, *cut_anew])
        begins = [
            roomy.realise(outline._replace(in_flight=roomy_in_flight(len(outline.groups)))) for outline in outlines
        ]
        better = Ranking(local, more).run([begin for begin in begins if begin is not None], [found[0]])
        if better is not None and better[1] < found[1] * (1 - _WORTH_OF_APART):
            found, judge = better, apart
    if micro_batch is None:
        found = of_one_size(judge, *found)
    last = Judge(problem, budget=effort.budget * _LAST_PART, schedule=judge.schedule)
    found = with_fewer_held(last, *found)
    return _finished(last, instance, *found)


def of_one_size(judge: Judge, candidate: Candidate, seconds: float) -> tuple[Candidate, float]:
    """The best with micro-batches of one size among all that was simulated, where that is hardly slower; else the candidate.

    Small mini-batches, of which micro-batches of few samples are made, are left as they are.
    """
    mini_batch = judge.problem.mini_batch
    if mini_batch <= EVERY_SIZE_UP_TO or mini_batch % candidate.micro_batch == 0:
        return candidate, seconds
    even = [(known, taken) for known, taken in judge.known() if mini_batch % known.micro_batch == 0]
    best = min(even, key=lambda each: each[1], default=(candidate, math.inf))
    return best if best[1] <= seconds * (1 + _WORTH_OF_ONE_SIZE) else (candidate, seconds)


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
    plan = judge.plan(candidate, planner=NAME)
    idle = [name for name in instance.device_names if name not in plan.devices]
    plan = replace(
        plan,
        idle=tuple(IdleDevice(name, SLOWER_WITH_IT) for name in idle),
    )
    plan = with_prediction(instance, with_backups(instance, plan))
    assert plan.predicted is not None
    rate = plan.mini_batch / seconds if seconds > 0 else math.inf
    return replace(plan, predicted=replace(plan.predicted, round_seconds=seconds, samples_per_second=rate))
