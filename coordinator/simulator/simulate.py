"""Simulate a plan: what a round of training takes when the pipeline has settled.

first round   |== from idle devices, samples not yet fetched ==|
second round                                                   |== this one counts ==|
"""

from __future__ import annotations

import math

from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance

from ..planner.cost_model import plan_memory_bytes
from .accounting import device_memory, device_uses, sent_bytes, timeline
from .critical_path import critical_path
from .engine import Engine
from .log import Log
from .simulation import Simulation
from .waiting_frames import frame_bytes, frame_changes, saved_changes


def round_seconds(instance: PlanningInstance, plan: Plan) -> float:
    """Seconds of a round; the quick way, for ranking plans.

    Raises EdgeswarmError(PLAN_INVALID) where the plan is not one for the instance.
    """
    return round_and_in_flight(instance, plan)[0]


def round_and_in_flight(instance: PlanningInstance, plan: Plan) -> tuple[float, tuple[int, ...]]:
    """Seconds of a round, and by stage the smallest K with which the very same would have happened.

    So it would with every K from that to the plan's. Raises EdgeswarmError(PLAN_INVALID) as `round_seconds` does.
    """
    instance.validate_plan(plan)
    engine = Engine(instance, plan)
    engine.run(0)
    return _round_seconds(engine, instance), engine.most_in_flight()


def simulate(instance: PlanningInstance, plan: Plan, *, timeline: bool = False) -> Simulation:
    """All that simulated rounds tell. timeline: the last one's events and memory over time too.

    The same instance and plan give the same result. Raises EdgeswarmError(PLAN_INVALID) as `round_seconds` does.
    """
    instance.validate_plan(plan)
    log = Log()
    engine = Engine(instance, plan, log=log)
    engine.run(0)
    seconds = _round_seconds(engine, instance)
    engine.run(engine.rounds - 1)
    return _told(instance, plan, engine, log, seconds, with_timeline=timeline)


def _round_seconds(engine: Engine, instance: PlanningInstance) -> float:
    """Goes on from the end of the first round where later ones may be others."""
    if engine.repeats():
        return engine.second_round_begins()
    last = engine.rounds - 1
    engine.run(last)
    seconds = engine.longest_period(engine.warm_up - 1, last)
    # What was fetched ahead before these rounds may be used up in them; in the long run it is not.
    return max(seconds, _source_seconds(engine, instance))


def _sample_bytes(engine: Engine) -> list[float]:
    """By replica, what it gets from the data source in a round."""
    return [work.sample_bytes * sum(part.samples for part in work.parts if part) for work in engine.works]


def _source_wait(engine: Engine, instance: PlanningInstance, seconds: float) -> tuple[int, float]:
    """As `critical_path` has it; seconds: of a round in the long run."""
    sizes = _sample_bytes(engine)
    stage = engine.works[sizes.index(max(sizes))].stage
    if not max(sizes) or seconds > _source_seconds(engine, instance):
        return stage, 0.0
    return stage, seconds - engine.longest_period(engine.warm_up - 1, engine.rounds - 1)


def _source_seconds(engine: Engine, instance: PlanningInstance) -> float:
    """What the samples of a round take the data source at the least."""
    source = instance.data_source
    if source is None:
        return 0.0
    sizes = _sample_bytes(engine)
    rates = [source.bandwidth[work.device] for work in engine.works]
    over_card = [size for size, work in zip(sizes, engine.works, strict=True) if not source.on_its_machine[work.device]]
    return max(sum(over_card) / source.egress, *(size / rate for size, rate in zip(sizes, rates, strict=True)))


def _told(
    instance: PlanningInstance, plan: Plan, engine: Engine, log: Log, seconds: float, *, with_timeline: bool
) -> Simulation:
    begin, last_begins = engine.end_of(engine.warm_up - 1), engine.end_of(engine.rounds - 2)
    works = engine.works
    saved, frames = saved_changes(log, instance, plan, works), frame_changes(log, works)
    of_frames = frame_bytes(instance, plan, works, saved=saved, frames=frames)
    return Simulation(
        round_seconds=seconds,
        samples_per_second=plan.mini_batch / seconds if seconds > 0 else math.inf,
        devices=device_uses(
            log,
            works,
            windows=engine.between_ends(engine.warm_up - 1, engine.rounds - 1),
            round_seconds=seconds,
            rounds=engine.rounds - engine.warm_up,
        ),
        memory=device_memory(
            instance,
            plan,
            works,
            held=plan_memory_bytes(instance, plan, frame_bytes=of_frames),
            saved=saved,
            frames=frames if of_frames else [[] for _ in works],
            begin=last_begins,
            over_time=with_timeline,
        ),
        frame_bytes=of_frames,
        sent_bytes=sent_bytes(instance, works, plan),
        limits=critical_path(
            log,
            works,
            begin=begin,
            latency_seconds=instance.network.latency_seconds,
            round_seconds=seconds,
            source_wait=_source_wait(engine, instance, seconds),
        ),
        events=timeline(log, works, begin=last_begins, round_number=engine.rounds - 1) if with_timeline else (),
    )
