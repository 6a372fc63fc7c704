"""The planners by name, and `make_plan`, which every command calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from .assemble import assemble_plan
from .asteroid import FoundPipeline, memory_order, search
from .baselines import longest_pipeline, single
from .beyond_measured import most_beyond
from .comparison.dapple import dapple, dapple_shortage
from .comparison.eddl import data_parallel
from .comparison.exhaustive import exhaustive
from .comparison.gpipe import gpipe_by_size, gpipe_by_time, gpipe_shortage
from .comparison.pipedream import pipedream, pipedream_shortage
from .cost_model import plan_memory_bytes
from .micro_batches import micro_batch_sizes
from .needed_in_flight import with_needed_in_flight
from .planning_work import MOST_WORK, asteroid_work, dapple_work, pipedream_work, pipeline_work
from .prediction import predicted_seconds, with_prediction
from .room_for_frames import with_room_for_frames
from .search.edgeswarm import plan_by_search
from .search.effort import MANY_DEVICES
from .search.in_passes import plan_in_passes
from .search.seeds import seed_plans
from .shortage import Shortage, no_plan_fits, one_stage_shortage, pipeline_shortage, plan_shortages
from .whole_plan_memory import whole_plan_bytes

Search = Callable[[PlanningInstance, int, float], FoundPipeline | None]
WholeSearch = Callable[[PlanningInstance, tuple[int, ...]], Plan | None]

# A smaller micro-batch has to be this much faster: each one costs frames and calls that no profile shows.
WORTH_A_SMALLER_MICRO_BATCH = 1.01

LOOK_AT_EVERY_CUT = ("pipeline", "asteroid", "gpipe")

# How often a plan is made again with what its links and its all-reduce take, which are known for a whole plan only.
MOST_TRIES = 4
# By how much longer a round may be, with fewer micro-batches in flight for their frames' sake, before another plan is looked for.
_NO_LONGER = 0.005

# By how much faster than one stage on as many devices a plan of several has to be. What makes a device slower for a moment, which
# no simulation knows, holds up others at every micro-batch that they hand over; and where one is slower than its profile said,
# samples move to the others of its stage alone. Of two such plans of MobileNetV2 on two tx2s and three nanos, 0.1 % apart by what
# was expected of them, the one stage was 12 to 15 % faster in three pairs of runs (docs/benchmarks.md, B-100).
_WORTH_OF_STAGES = 0.02

# Devices with which a search goes first for samples at hand: with more of them one search alone takes most of a minute.
MOST_SEARCHED_TWICE = MANY_DEVICES

# Tried one after another where no pipeline with K_p micro-batches in flight fits memory.
FEWER_IN_FLIGHT = (3, 2, 1)


@dataclass(frozen=True)
class Planner:
    """One way to plan.

    searches: tried in order until one finds something at any micro-batch size. whole: in their place, one that chooses
    among the micro-batch sizes itself, and knows what plans hold beside their layers. left_out: why it leaves a device idle.
    one_stage: it never cuts the model. shortage: what devices lack, given the smallest micro-batch, for the plan that it would
    like to make; None for the pipeline that lacks least. use_most_devices: of micro-batch sizes the one that keeps most devices
    busy, and only then the fastest; else data parallelism would choose micro-batches so small that one device takes them all.
    needed_in_flight: its K is this runtime's own, and no larger than what a round needs.
    small_only: it can plan for small models and few devices alone. work: how much planning is, where it grows fast with devices.
    """

    name: str
    summary: str
    searches: tuple[Search, ...] = ()
    whole: WholeSearch | None = None
    left_out: str = "not used by this planner"
    shortage: Callable[[PlanningInstance, int], tuple[Shortage, ...]] | None = None
    one_stage: bool = False
    use_most_devices: bool = False
    needed_in_flight: bool = False
    small_only: bool = False
    work: Callable[[PlanningInstance], int] | None = None


def _asteroid(most_in_flight: int | None) -> Search:
    def found(instance: PlanningInstance, micro_batch: int, slowest_round: float) -> FoundPipeline | None:
        return search(instance, micro_batch=micro_batch, slowest_round=slowest_round, most_in_flight=most_in_flight)

    return found


def _pipeline(most_in_flight: int | None) -> Search:
    def found(instance: PlanningInstance, micro_batch: int, slowest_round: float) -> FoundPipeline | None:
        pipeline = longest_pipeline(instance, micro_batch=micro_batch, most_in_flight=most_in_flight)
        return pipeline if pipeline is not None and pipeline.round_seconds <= slowest_round else None

    return found


def _edgeswarm(instance: PlanningInstance, sizes: tuple[int, ...]) -> Plan | None:
    """One size is one that was asked for; where there are several, the search chooses among all."""
    micro_batch = sizes[0] if len(sizes) == 1 else None
    seeds = seed_plans(instance, sizes)
    if instance.data_source is not None and len(instance.devices) <= MOST_SEARCHED_TWICE:
        # A round with a data source takes twice as long to simulate, so that the search sees half as much; and mostly the source
        # isn't what a plan is chosen by.
        at_hand = plan_by_search(replace(instance, data_source=None), micro_batch=micro_batch, seeds=seeds)
        seeds += [at_hand] if at_hand is not None else []
    found = plan_by_search(instance, micro_batch=micro_batch, seeds=seeds)
    if found is None:
        # The search begins at a few cut points; where memory is short, all that fits may lie between them.
        names = [name for name in LOOK_AT_EVERY_CUT if not is_too_much_work(instance, name)]
        others = [_fitting_plan(instance, PLANNERS[name], sizes)[0] for name in names]
        seeds = [plan for plan in others if plan is not None]
        found = plan_by_search(instance, micro_batch=micro_batch, seeds=seeds) if seeds else None
        if found is None and seeds:
            # They fit by what simulated rounds hold; the search goes by a formula, which may ask for more.
            found = replace(min(seeds, key=predicted_seconds), planner="edgeswarm")
    in_passes = plan_in_passes(instance) if micro_batch is None else None
    return in_passes if _is_preferred(instance, in_passes, found) else found


def _is_preferred(instance: PlanningInstance, one_stage: Plan | None, other: Plan | None) -> bool:
    """By what is predicted, and expected where nobody measured so many samples at once; any plan is better than none."""
    if one_stage is None or other is None:
        return one_stage is not None
    likely, others = (predicted_seconds(each) * most_beyond(instance, each) for each in (one_stage, other))
    is_simpler = len(other.stages) > 1 and len(one_stage.devices) >= len(other.devices)
    return likely < others * (1 + _WORTH_OF_STAGES if is_simpler else 1)


PLANNERS: dict[str, Planner] = {
    planner.name: planner
    for planner in (
        Planner(
            "edgeswarm",
            "the fastest that a search over groups, orders, cuts and sizes finds by simulating rounds",
            whole=_edgeswarm,
            needed_in_flight=True,
        ),
        Planner(
            "asteroid",
            "stages of layers, each over a group of devices (Asteroid's Algorithms 1 and 2)",
            tuple(_asteroid(most) for most in (None, *FEWER_IN_FLIGHT)),
            work=asteroid_work,
        ),
        Planner(
            "data-parallel",
            "every device holds the whole model and takes samples by its speed (EDDL)",
            (data_parallel,),
            one_stage=True,
            use_most_devices=True,
        ),
        Planner(
            "pipeline",
            "one device for each stage",
            tuple(_pipeline(most) for most in (None, *FEWER_IN_FLIGHT)),
            left_out="no stage is left that it could hold",
            needed_in_flight=True,
            work=pipeline_work,
        ),
        Planner(
            "single",
            "the fastest device that holds the whole model",
            (single,),
            left_out="this planner uses one device",
            one_stage=True,
        ),
        Planner(
            "gpipe",
            "one device for each stage, stages of equal cost (GPipe)",
            (gpipe_by_time, gpipe_by_size),
            left_out="the model has fewer layers than there are devices",
            shortage=gpipe_shortage,
        ),
        Planner(
            "pipedream",
            "PipeDream's optimizer, for equal devices",
            (pipedream,),
            shortage=pipedream_shortage,
            work=pipedream_work,
        ),
        Planner(
            "dapple",
            "DAPPLE's planner, for equal devices",
            (dapple,),
            shortage=dapple_shortage,
            work=dapple_work,
        ),
        Planner(
            "exhaustive",
            "the fastest plan there is, for small models and few devices",
            whole=exhaustive,
            small_only=True,
        ),
    )
}


def make_plan(instance: PlanningInstance, planner: str = "edgeswarm", micro_batch: int | None = None) -> Plan:
    """Plan an instance; the plan fits memory and has its prediction, backup holders and idle devices filled in.

    planner: a name of PLANNERS (ValueError for another). micro_batch: samples of a micro-batch; None tries several.
    Raises EdgeswarmError: NO_PLAN_FITS where memory is too small or the planner's replicas can't split a micro-batch,
    PLAN_INVALID for a micro_batch that cannot be.
    """
    if planner not in PLANNERS:
        raise ValueError(f"there is no planner {planner!r}; known: {', '.join(PLANNERS)}")
    chosen = PLANNERS[planner]
    least = instance.model.largest_least_batch
    sizes = sizes_to_try(instance.training.mini_batch, micro_batch, least_batch=least)
    plan, burdened, shortages = _fitting_plan(instance, chosen, sizes)
    if plan is not None:
        return plan
    shortages = shortages or _shortages(burdened, chosen, min(sizes))
    if shortages[0].lacking_bytes <= 0:
        raise (
            _cannot_split(instance, planner, sizes)
            if instance.model.largest_least_batch > 1
            else _not_found(planner, micro_batch)
        )
    raise no_plan_fits(instance, shortages, planner=planner, fixed_micro_batch=micro_batch is not None)


def _fitting_plan(
    instance: PlanningInstance, planner: Planner, sizes: tuple[int, ...]
) -> tuple[Plan | None, PlanningInstance, tuple[Shortage, ...]]:
    """A plan that fits memory with what is known for a whole one only, or None; beside it the instance that it was made of.

    In that one, devices which had too little memory for an earlier plan's links and frames hold what those take from the
    beginning, so that the same plan isn't found again, unless fewer micro-batches in flight make room, and the round is hardly
    longer. Where plans were found and none fits, what the last one lacks.
    """
    burdened = instance
    best: Plan | None = None
    shortages: tuple[Shortage, ...] = ()
    for _ in range(MOST_TRIES):
        plan = _found_plan(burdened, planner, sizes)
        if plan is None:
            return best, burdened, ()
        if burdened is not instance:
            plan = with_prediction(instance, plan)
        assert plan.predicted is not None
        shortages = plan_shortages(instance, plan, needed=plan.predicted.memory_bytes)
        fitting = with_room_for_frames(instance, plan)
        if fitting is not None:
            best = fitting if best is None or predicted_seconds(fitting) < predicted_seconds(best) else best
            if predicted_seconds(fitting) <= predicted_seconds(plan) * (1 + _NO_LONGER):
                return best, burdened, ()
        beside = _not_searched_for(planner, instance, plan, plan.predicted.memory_bytes)
        devices = (
            replace(device, base_bytes=max(device.base_bytes, own.base_bytes + beside[device.name]))
            if any(shortage.device.name == device.name for shortage in shortages)
            else device
            for device, own in zip(burdened.devices, instance.devices, strict=True)
        )
        burdened = replace(burdened, devices=tuple(devices))
    return best, burdened, shortages


def _not_searched_for(
    planner: Planner, instance: PlanningInstance, plan: Plan, needed: Mapping[str, int]
) -> dict[str, int]:
    """By device, what the planner's search doesn't know: frames beyond those of the formula, and most know no links either."""
    by_formula = plan_memory_bytes(instance, plan)
    beside = whole_plan_bytes(instance, plan) if planner.whole is None else dict.fromkeys(needed, 0)
    return {name: beside[name] + max(0, needed[name] - by_formula[name]) for name in needed}


def _found_plan(instance: PlanningInstance, planner: Planner, sizes: tuple[int, ...]) -> Plan | None:
    plan = _searched_plan(instance, planner, sizes)
    return with_needed_in_flight(instance, plan) if plan is not None and planner.needed_in_flight else plan


def _searched_plan(instance: PlanningInstance, planner: Planner, sizes: tuple[int, ...]) -> Plan | None:
    if planner.whole is not None:
        return planner.whole(instance, sizes)
    for attempt in planner.searches:
        plan = _best_plan(instance, planner, attempt, sizes)
        if plan is not None:
            return plan
    return None


def comparison_planners(chosen: str) -> tuple[str, ...]:
    """The planners whose plans are shown beside a plan of the planner `chosen`, whatever the model and the devices."""
    return tuple(name for name, planner in PLANNERS.items() if name != chosen and not planner.small_only)


def is_too_much_work(instance: PlanningInstance, planner: str) -> bool:
    """Whether planning with it would take longer than its plan is worth to somebody who didn't ask for this planner."""
    work = PLANNERS[planner].work
    return work is not None and work(instance) > MOST_WORK


def _best_plan(instance: PlanningInstance, planner: Planner, attempt: Search, sizes: tuple[int, ...]) -> Plan | None:
    """The best over the micro-batch sizes, which come largest first."""
    best: Plan | None = None
    slowest_round = math.inf
    for size in sizes:
        found = attempt(instance, size, math.inf if planner.use_most_devices else slowest_round)
        if found is None:
            continue
        plan = assemble_plan(instance, found, planner=planner.name, left_out=planner.left_out)
        if plan is None:
            continue
        more = planner.use_most_devices and best is not None and len(plan.devices) - len(best.devices)
        if more > 0 or (more == 0 and found.round_seconds < slowest_round):
            best = plan
            slowest_round = found.round_seconds / WORTH_A_SMALLER_MICRO_BATCH
    return best


def sizes_to_try(mini_batch: int, micro_batch: int | None, *, least_batch: int) -> tuple[int, ...]:
    """The sizes of micro-batches to plan with, largest first; just `micro_batch` where that is given.

    least_batch: the largest of any layer. Raises EdgeswarmError: PLAN_INVALID for a micro_batch that cannot be,
    NO_PLAN_FITS where none can be.
    """
    sizes = micro_batch_sizes(mini_batch, least_batch=least_batch)
    if not sizes:
        raise EdgeswarmError(
            ErrorCode.NO_PLAN_FITS,
            f"The batch size is {mini_batch}, but a layer of the model needs at least {least_batch} samples at once.",
            f"Set batch_size to {least_batch} or more.",
        )
    if micro_batch is None:
        return sizes
    if not 1 <= micro_batch <= mini_batch:
        raise EdgeswarmError(
            ErrorCode.PLAN_INVALID,
            f"A micro-batch of {micro_batch} samples is not possible: the batch size is {mini_batch}.",
            f"Choose a micro-batch from 1 to {mini_batch}.",
        )
    rest = mini_batch % micro_batch
    if micro_batch < least_batch or 0 < rest < least_batch:
        what = "are too small" if micro_batch < least_batch else f"leave one of {rest} sample(s)"
        raise EdgeswarmError(
            ErrorCode.PLAN_INVALID,
            f"Micro-batches of {micro_batch} {what} in a round of {mini_batch}: a layer of the model needs at least "
            f"{least_batch} samples at once.",
            f"Choose one of {', '.join(map(str, sizes))}.",
        )
    return (micro_batch,)


def _not_found(planner: str, micro_batch: int | None) -> EdgeswarmError:
    """Where one fits that the planner doesn't look at: with many devices it leaves out what would take it too long.

    micro_batch: as it was asked for; None where all were looked at.
    """
    others = [name for name in ("edgeswarm", "pipeline") if name != planner]
    remedies = [
        "give the agents more memory (--memory)",
        f"try --planner {' or '.join(others)}, which may take minutes",
    ]
    if micro_batch is not None:
        remedies.insert(0, "choose another --micro-batch, or none")
    told = "; or ".join(remedies)
    return EdgeswarmError(
        ErrorCode.NO_PLAN_FITS,
        f"The planner '{planner}' found no plan that fits the devices' memory, among those that it looked at.",
        f"{told[0].upper()}{told[1:]}.",
    )


def _cannot_split(instance: PlanningInstance, planner: str, sizes: tuple[int, ...]) -> EdgeswarmError:
    """Why there is no plan where memory isn't what is missing."""
    least = instance.model.largest_least_batch
    other_planner = "" if planner == "edgeswarm" else ", or --planner edgeswarm, which leaves devices out"
    rest = instance.training.rest
    of_rest, dropped = (
        (f", or in an epoch's last one of {rest},", ", or drop_last=True in the job") if rest else ("", "")
    )
    return EdgeswarmError(
        ErrorCode.NO_PLAN_FITS,
        f"The planner '{planner}' has no plan with micro-batches of {', '.join(map(str, sizes))} samples: in a round of "
        f"{instance.training.mini_batch}{of_rest} its replicas can't split each of them so that all get the {least} samples "
        "that a layer of the model needs at once.",
        f"Choose another batch_size or --micro-batch{dropped}{other_planner}.",
    )


def _shortages(instance: PlanningInstance, planner: Planner, samples: int) -> tuple[Shortage, ...]:
    if planner.shortage is not None:
        return planner.shortage(instance, samples)
    if planner.one_stage:
        return one_stage_shortage(instance, samples=samples)
    return pipeline_shortage(instance, memory_order(instance), samples=samples, most_in_flight=min(FEWER_IN_FLIGHT))
