"""edgeswarm's own planner: a program over sets of devices finds the shapes, the simulator picks and polishes.

    all sets, orders, cuts, sizes       set_program.py      estimate by formula, everything at once
      -> some dozens of whole plans     moves.py            samples shared exactly, memory kept
      -> the best dozen                 pipeline_estimate   1F1B followed for all of them at once
      -> the best few                   judge.py            simulated
      -> the best, changed step by step local_search.py     simulated, until nothing helps or the budget is used

Asteroid's plan is among the finalists where making it is quick. The other planners' shapes are among what the program
looks at; `python -m bench.planner_table` compares the outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgeswarm.plan import IdleDevice, Plan
from edgeswarm.profile import PlanningInstance

from ..assemble import backup_holders
from ..prediction import with_prediction
from .candidate import Candidate, Outline, usual_in_flight
from .cut_points import candidate_cuts
from .group_costs import GroupCostTables
from .grouping import make_units, transitions
from .judge import Judge, candidate_of, make_bare_plan
from .local_search import LocalSearch
from .moves import Moves, canonical
from .pipeline_estimate import PipelineEstimator
from .problem import SearchProblem
from .sample_shares import SampleSharing
from .set_program import SetProgram
from .sizes import all_sizes, first_sizes

NAME = "edgeswarm"

# Finalists that are slower than the best by more than this are not climbed from.
_WORTH_A_CLIMB = 1.25


@dataclass(frozen=True)
class Effort:
    """How much to look at. budget: see Judge. sketches: of the set program, made into whole plans.

    beam_width, beam_steps: see LocalSearch.beam. wide: the width of another beam; wider ones follow until there is nothing
    new, or no more of the budget is left than the part `simulating`.
    finalists: simulated; more_finalists where more than the part `more_from` of the budget is left.
    climbs: finalists that are climbed from. patience: see LocalSearch.climb; last_patience: of the climb from the best.
    """

    budget: float = 64_000.0
    sketches: int = 60
    beam_width: int = 4
    beam_steps: int = 6
    wide: int = 12
    simulating: float = 0.6
    finalists: int = 10
    more_finalists: int = 60
    more_from: float = 0.4
    climbs: int = 8
    patience: int = 8
    last_patience: int = 64


def usual_effort(problem: SearchProblem) -> Effort:
    """About a second for a handful of devices, three for ten of them or for very deep models, a minute for a hundred."""
    if problem.device_count > 16:
        return Effort(budget=1_500_000.0)
    if problem.device_count > 6 or problem.layer_count > 180:
        return Effort(budget=200_000.0)
    return Effort()


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
    first = (micro_batch,) if micro_batch else first_sizes(problem.mini_batch, least_batch=least)
    sizes = (micro_batch,) if micro_batch else all_sizes(problem.mini_batch, least_batch=least)
    moves = Moves(problem, sharing, sizes)
    estimator = PipelineEstimator(problem)
    judge = Judge(problem, budget=effort.budget)
    local = LocalSearch(moves, estimator, judge)

    whole = [moves.realise(outline) for outline in _outlines(problem, first, effort.sketches)]
    starts = [candidate for candidate in whole if candidate is not None]
    floor = effort.simulating * effort.budget
    local.beam(starts, width=effort.beam_width, steps=effort.beam_steps, floor=floor)
    width, seen = effort.wide, 0
    while judge.budget > floor and seen < len(local.estimates):
        seen = len(local.estimates)
        few = {"of_each_size": width // 4, "of_each_shape": width // effort.wide}
        local.beam([], width=width, steps=effort.beam_steps, floor=floor, **few)
        width *= 2
    given = [canonical(problem, candidate_of(problem, plan)) for plan in seeds]
    # Given plans are simulated whatever it costs, and so is the best of ours.
    finalists = [*given, *local.best(effort.finalists), *local.best(effort.more_finalists, of_each_shape=2)]
    finalists = list(dict.fromkeys(finalists))
    simulated = []
    for place, candidate in enumerate(finalists):
        needed = place <= len(given)
        left = judge.budget - judge.work(candidate)
        most = 0.0 if place < len(given) + effort.finalists else effort.more_from * effort.budget
        if needed or left >= most:
            simulated.append((judge.seconds(candidate), place))
    simulated = sorted(entry for entry in simulated if math.isfinite(entry[0]))
    if not simulated:
        return None
    best, fastest = finalists[simulated[0][1]], simulated[0][0]
    for seconds, place in simulated[: effort.climbs]:
        if seconds < fastest * _WORTH_A_CLIMB:
            candidate, after = local.climb(finalists[place], patience=effort.patience)
            if after < fastest:
                best, fastest = candidate, after
    best, fastest = local.climb(best, patience=effort.last_patience)
    return _finished(problem, instance, best, fastest)


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
            tables.costs(size, _in_flight_options(problem, size, micro_batches)), micro_batches=micro_batches
        )
        sketches += [(sketch.seconds, number, -size, sketch.outline) for number, sketch in enumerate(found)]
    sketches.sort(key=lambda sketch: sketch[:3])
    kept = [outline for _, _, _, outline in sketches[:most]]
    kept += [outline for _, number, _, outline in sketches if number < 3]
    outlines = [_with_usual_in_flight(outline) for outline in kept] + kept
    for size in sizes:
        whole = (0, problem.layer_count)
        outlines += [Outline(size, whole, ((device,),), (1,)) for device in _one_of_each_kind(problem)]
        outlines.append(Outline(size, whole, (tuple(range(problem.device_count)),), (1,)))
    return list(dict.fromkeys(outlines))


def _in_flight_options(problem: SearchProblem, micro_batch: int, micro_batches: int) -> tuple[int, ...]:
    """K that a stage may hold: one where memory holds anything, else some that differ in what they need."""
    most = min(micro_batches, 3 * min(problem.device_count, problem.layer_count, 8) - 2)
    loose = all(
        problem.largest_share(device, 0, problem.layer_count, most) >= micro_batch
        for device in range(problem.device_count)
    )
    if loose:
        return (most,)
    return tuple(sorted({1, min(2, most), min(4, most), min(7, most), most}))


def _with_usual_in_flight(outline: Outline) -> Outline:
    return replace(outline, in_flight=usual_in_flight(len(outline.groups)))


def _one_of_each_kind(problem: SearchProblem) -> list[int]:
    return [problem.kinds.index(kind) for kind in sorted(set(problem.kinds))]


def _finished(problem: SearchProblem, instance: PlanningInstance, candidate: Candidate, seconds: float) -> Plan:
    """With idle devices and why, backup holders, and the prediction."""
    plan = make_bare_plan(problem, candidate, planner=NAME)
    idle = [name for name in instance.device_names if name not in plan.devices]
    plan = replace(
        plan,
        idle=tuple(IdleDevice(name, "the round is no faster with it") for name in idle),
        backup=backup_holders(plan.stages),
    )
    plan = with_prediction(instance, plan)
    assert plan.predicted is not None
    rate = plan.mini_batch / seconds if seconds > 0 else math.inf
    return replace(plan, predicted=replace(plan.predicted, round_seconds=seconds, samples_per_second=rate))
