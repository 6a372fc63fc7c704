"""A cell of the measurements on the testbed: devices, their links' rate, a model; how it is profiled, and how a plan is trained.

bed of emulated devices --> profile_in_turn --> instance --> a planner's plan --> run --> seconds of its rounds, peaks
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.interrupts import ends_all
from bench.measuring import say
from bench.refit import prepared_job
from bench.starved_profile import MOST_STARVED, MOST_TRIES, forget, read_profiles, slowed, starved
from bench.testbed.bed import SPEED_LOGS
from bench.testbed.cluster import BedCluster
from bench.testbed.speed import best_pace, slowness
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_to_json
from edgeswarm_coordinator.controller import TrainOptions, make_plan_for_job, train
from edgeswarm_coordinator.events import (
    MEASURE_LINKS,
    PREPARE_WORKERS,
    PROFILE_LAYERS,
    Event,
    Listener,
    RoundDone,
    StepDone,
    StepStarted,
)
from edgeswarm_coordinator.plan_by_hand import with_node_ids
from edgeswarm_coordinator.profile_cache import ProfileCache, Profiles
from edgeswarm_coordinator.train_job import TrainResult

JOBS = Path(__file__).parent / "jobs"
PROFILED_AGAIN = "again"
_JOB = "from paper_models import make_job\n\njob = make_job({model!r}, {settings})\n"
# Of a checkpoint, which would be an accident in a training that is measured: after so many rounds.
NEVER = 10**6
FIRST_ROUNDS = 2  # which begin with cold memory and unfilled buffers
# Of a processor (bench/testbed/speed.py): beyond it a round says more of the machine's other tenants than of its plan.
MOST_SLOWNESS = 1.1
LEAST_QUIET_ROUNDS = 4
# The first step of a training for which the devices' speed counts.
_TIMED = (PROFILE_LAYERS, MEASURE_LINKS, PREPARE_WORKERS)
# Of a run whose rounds are to be counted: seconds that they shall take, and how many at least and at most.
RUN_SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 45.0, 4, 14


@dataclass(frozen=True)
class Cell:
    """environment: A to D, or another built-in one. mbps: of every link. model: a job in bench/jobs."""

    environment: str
    mbps: float
    model: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Raises ValueError for what is none."""
        try:
            environment, mbps, model = text.split(":")
            rate = float(mbps)
        except ValueError:
            raise ValueError(f"{text!r} is not ENVIRONMENT:MBPS:MODEL, as C:100:mobilenet_v2 is") from None
        if not (JOBS / f"{model}.py").is_file():
            raise ValueError(f"no such model: {model}")
        return cls(environment, rate, model)

    @classmethod
    def given(cls, text: str) -> Cell:
        """For argparse."""
        try:
            return cls.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    @property
    def name(self) -> str:
        return f"{self.environment}-{self.mbps:.0f}-{self.model}"

    @classmethod
    def named(cls, name: str) -> Cell:
        """From its name, which has no other hyphens."""
        return cls.parse(name.replace("-", ":"))

    @property
    def job(self) -> Path:
        return JOBS / f"{self.model}.py"

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.json"

    def work(self, folder: Path) -> Path:
        """Where the cell's devices and its operator keep what is theirs."""
        return folder / f"{self.name}.work"

    def is_complete(self, folder: Path) -> bool:
        path = self.file(folder)
        return path.exists() and bool(json.loads(path.read_text()).get("complete", True))


def written_job(folder: Path, model: str, **settings: Any) -> Path:
    """A job like the one in bench/jobs with settings of its `make_job`; the same file where it is there already."""
    path = folder / "job.py"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(JOBS / "paper_models.py", folder)
        written = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        path.write_text(_JOB.format(model=model, settings=written))
    return path


@dataclass(frozen=True)
class Profiling:
    """What devices measured. seconds: in which layers were timed, by the device that stands for its class; PROFILED_AGAIN once
    more for all, by what is known then. slowness: of the machine meanwhile (bench/testbed/speed.py), by the same names: where it
    differs, one class seems slower beside another than it is.
    """

    instance: PlanningInstance
    seconds: dict[str, float]
    slowness: dict[str, float | None]


def whole_stage(cluster: BedCluster, job_path: Path) -> Path:
    """A file with the job's model as one stage, for the devices that train beside the one that is measured."""
    path = cluster.folder / "whole-stage.json"
    if not path.exists():
        graph = prepared_job(job_path).layer_graph
        path.write_text(json.dumps(graph.stage(0, len(graph.layers)).to_json()))
    return path


def profile_in_turn(cluster: BedCluster, options: TrainOptions) -> Profiling:
    """Profiles one class of devices after the other, each while the other devices train.

    All at once they would spoil each other's caches more than a training does, and alone they would be faster than in one.
    Those with least memory come first, since what all are asked to time depends on them. One from which something else took the
    processor is profiled again, and one for which the machine was slower than for the others. The links between the devices that
    were profiled are measured in the same go, while these are at rest.
    """
    of_class: dict[float, str] = {}
    for device in sorted(cluster.bed.environment.devices, key=lambda device: (device.memory_bytes, -device.cores)):
        of_class.setdefault(device.cores, device.name)
    chosen = tuple(of_class.values())
    seconds: dict[str, float] = {}
    slow: dict[str, float | None] = {}

    def measured(some: TrainOptions, name: str, *, then: Callable[[], None] = lambda: None) -> PlanningInstance:
        """then: called when layers are timed."""
        seconds[name] = 0.0

        def listen(event: Event) -> None:
            if isinstance(event, StepDone) and event.step == PROFILE_LAYERS:
                seconds[name] = event.seconds
                end = time.monotonic()
                slow[name] = slowness(SPEED_LOGS, end - event.seconds, end)
                then()

        with ends_all():
            return make_plan_for_job(some, folders=cluster.folders, listener=listen)[1]

    cache = cluster.folders.cache_dir
    cores = {device.name: device.cores for device in cluster.bed.environment.devices}
    kinds: dict[str, str] = {}

    def profile(name: str, beside: Sequence[str]) -> None:
        """beside: those that were profiled before, to which the links are measured."""
        nodes = tuple(cluster.node_id(each) for each in (*beside, name))
        some = replace(options, discovery=replace(options.discovery, devices=nodes))
        others = [each for each in cluster.names if each != name]
        known = set(read_profiles(cache).processes)
        # Too few devices for a plan: what was measured is kept.
        with (
            cluster.accompanied(others, whole_stage(cluster, options.job_path)) as leave,
            contextlib.suppress(EdgeswarmError),
        ):
            measured(some, name, then=partial(leave, beside))
        for kind in set(read_profiles(cache).processes) - known:
            kinds[name] = kind

    def profile_again(name: str, beside: Sequence[str], *, why: str) -> None:
        say(f"{why} while {name} was profiled: once more")
        if name in kinds:
            forget(cache, kinds.pop(name))
        slow.pop(name, None)
        profile(name, beside)

    for count, name in enumerate(chosen):
        profile(name, chosen[:count])
        for _ in range(1, MOST_TRIES):
            if name not in slow:
                profile(name, chosen[:count])
            elif (
                name in kinds
                and (times := starved(read_profiles(cache), kinds[name], cores=cores[name])) > MOST_STARVED
            ):
                profile_again(name, chosen[:count], why=f"there was {1 / times:.0%} of its part of a processor")
    for _ in range(1, MOST_TRIES):
        for name in slowed(slow):
            profile_again(
                name, [each for each in chosen if each != name], why=f"the machine was slow by {slow[name]:.2f}"
            )
    return Profiling(measured(options, PROFILED_AGAIN), seconds, slow)


def profile_at_once(cluster: BedCluster, options: TrainOptions) -> Profiling:
    """As a user has it."""
    with ends_all():
        return Profiling(make_plan_for_job(options, folders=cluster.folders)[1], {}, {})


def profile_anew(
    cluster: BedCluster, options: TrainOptions, *, in_turn: bool = True
) -> tuple[PlanningInstance, dict[str, Any]]:
    """Forgets what was measured, and measures all of it. The instance, and what a cell's file has of it: what it was made of
    and how slow the machine was; both with short names for the devices. in_turn: as `profile_in_turn` does, else all at once.
    """
    shutil.rmtree(cluster.folders.cache_dir, ignore_errors=True)
    begin = time.monotonic()
    profiling = profile_in_turn(cluster, options) if in_turn else profile_at_once(cluster, options)
    slow = slowness(SPEED_LOGS, begin, time.monotonic())
    instance, told = _with_its_measurements(cluster, profiling.instance)
    return instance, {
        "seconds": profiling.seconds,
        "slowness": slow,
        "slowness_by_class": profiling.slowness,
        **told,
    }


def profile_missing(
    cluster: BedCluster, options: TrainOptions, known: dict[str, Any]
) -> tuple[PlanningInstance, dict[str, Any]]:
    """As `profile_anew`, where devices of these classes timed the layers before: links alone are measured.

    known: what was told then.
    """
    layers_alone = replace(Profiles.from_json(known["profiles"]), links={})
    ProfileCache(cluster.folders.cache_dir, warn=say).add(layers_alone)
    with ends_all():
        instance = make_plan_for_job(options, folders=cluster.folders)[1]
    instance, told = _with_its_measurements(cluster, instance)
    return instance, {**known, "seconds": {}, **told}


def _with_its_measurements(cluster: BedCluster, instance: PlanningInstance) -> tuple[PlanningInstance, dict[str, Any]]:
    """The instance, and it and what it was made of as a cell's file has them; all with short names."""
    names = {cluster.node_id(name): name for name in cluster.names}
    instance = with_names(instance, names)
    profiles = read_profiles(cluster.folders.cache_dir)
    links = {(names.get(sender, sender), names[receiver]): link for (sender, receiver), link in profiles.links.items()}
    return instance, {
        "instance": instance_to_json(instance),
        "profiles": replace(profiles, links=links).to_json(),
    }


def with_names(instance: PlanningInstance, names: dict[str, str]) -> PlanningInstance:
    """The same instance with other names for its devices."""
    return replace(instance, devices=tuple(replace(device, name=names[device.name]) for device in instance.devices))


def train_from_full_speed(
    cluster: BedCluster, options: TrainOptions, listener: Listener, *, cancel: threading.Event | None = None
) -> TrainResult:
    """Workers import torch at full speed: nobody times that, and on an eighth of a core it takes eight times as long.

    Agents are asked what they are at that speed, too, by which all are of one class: the plan is to be there before.
    """
    with contextlib.ExitStack() as starting:
        starting.enter_context(cluster.bed.at_full_speed(cluster.names))

        def heard(event: Event) -> None:
            if isinstance(event, StepStarted) and event.step in _TIMED:
                starting.close()
            listener(event)

        with ends_all(cancel):
            return train(options, folders=cluster.folders, listener=heard, cancel=cancel)


def rounds_of_a_run(round_seconds: float) -> int:
    """How many rounds are trained to measure one, the first ones among them. round_seconds: as predicted."""
    return FIRST_ROUNDS + min(MOST_ROUNDS, max(LEAST_ROUNDS, math.ceil(RUN_SECONDS / round_seconds)))


def run(cluster: BedCluster, options: TrainOptions, plan: Plan, folder: Path) -> dict[str, Any]:
    """One training of a plan; its prediction beside what came out, or the error that ended it.

    plan: names its devices in short or by their ids; what is told has the short ones.
    """
    node_ids = {name: cluster.node_id(name) for name in cluster.names}
    short = {**{name: name for name in node_ids}, **{node_id: name for name, node_id in node_ids.items()}}
    plan = with_node_ids(plan, short)
    folder.mkdir()
    plan_path = folder / "plan.json"
    plan_path.write_text(json.dumps(with_node_ids(plan, node_ids).to_json()))
    ends: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone):
            ends.append(time.monotonic())

    assert plan.predicted is not None
    told: dict[str, Any] = {"document": plan.to_json(), "predicted_seconds": plan.predicted.round_seconds}
    options = replace(options, plan_path=plan_path, output=folder / "result", checkpoint_every=NEVER)
    try:
        result = train_from_full_speed(cluster, options, listen)
    except EdgeswarmError as error:
        return {**told, "error": f"{error.code.word}: {error.message}"}
    rounds = result.metrics["rounds"]
    return {
        **told,
        "round_seconds": [done["seconds"] for done in rounds],
        "losses": [done["loss"] for done in rounds],
        "slowness": [slowness(SPEED_LOGS, end - done["seconds"], end) for done, end in zip(rounds, ends, strict=True)],
        "best_pace": best_pace(SPEED_LOGS),
        "parts": {name: rounds[-1]["parts"][node_ids[name]] for name in plan.devices},
        "peak_bytes": {
            name: max(done["parts"][node_ids[name]]["peak_memory_bytes"] for done in rounds) for name in plan.devices
        },
        "predicted_bytes": dict(plan.predicted.memory_bytes),
    }


def counted_rounds(run_told: dict[str, Any]) -> list[float]:
    """Seconds of the rounds that count."""
    return [taken for _, taken in _counted(run_told)]


def counted_slowness(run_told: dict[str, Any]) -> list[float]:
    """How slow the machine was in each of the rounds that count, 1 where it wasn't or nobody looked."""
    return [slow for slow, _ in _counted(run_told)]


def _counted(run_told: dict[str, Any]) -> list[tuple[float, float]]:
    """(slowness, seconds) of the rounds that count: not the first ones, nor those in which something else slowed the machine.

    Where too few are left, those of the least slowness.
    """
    seconds = run_told["round_seconds"]
    slownesses = [each or 1.0 for each in run_told.get("slowness", [1.0] * len(seconds))]
    first = run_told.get("first_rounds", FIRST_ROUNDS)
    by_slowness = sorted(zip(slownesses[first:], seconds[first:], strict=True))
    quiet = [each for each in by_slowness if each[0] <= MOST_SLOWNESS]
    return quiet if len(quiet) >= LEAST_QUIET_ROUNDS else by_slowness[:LEAST_QUIET_ROUNDS]


def paced_seconds(run_told: dict[str, Any]) -> float:
    """Of a run: the median of the rounds that count, had the machine been at its best pace."""
    return statistics.median(taken / slow for slow, taken in _counted(run_told))


def measured_seconds(run_told: dict[str, Any]) -> float:
    """Of a run: the median of the rounds that count."""
    return statistics.median(counted_rounds(run_told))
