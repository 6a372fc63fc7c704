"""What a cell of the matrix does on emulated devices while they exist: profile, train a plan, tune and run peers.

Names of devices are short in all that is told (nano-1), since the agents of a new bed have other ids.
"""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from bench.cell import (
    NEVER,
    Cell,
    profile_anew,
    profile_missing,
    train_from_full_speed,
    whole_stage,
    with_names,
    written_job,
)
from bench.energy import Counter, joules_between, read_counters
from bench.interrupts import ends_all
from bench.measuring import say
from bench.peers.alone import Alone
from bench.peers.launch import PeerRun, run_peer
from bench.peers.rounds import LEAST_ROUNDS, WARM_UP_ROUNDS, WARM_UP_SECONDS, warm_up_rounds
from bench.peers.settings import PeerSettings, PeerTuner, Trials, slowness_of_rounds
from bench.testbed import links
from bench.testbed.bed import SPEED_LOGS, EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.links import HUB, HUB_ADDRESS
from bench.testbed.speed import slowness, told_too_low
from edgeswarm.errors import EdgeswarmError
from edgeswarm.feed_ahead import FEED_AHEAD
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.command import Command
from edgeswarm_coordinator.controller import TrainOptions, make_plan_for_job
from edgeswarm_coordinator.events import (
    Event,
    RoundDone,
    SharesMoved,
)
from edgeswarm_coordinator.metrics import move_to_json, round_to_json
from edgeswarm_coordinator.plan_by_hand import with_node_ids
from edgeswarm_coordinator.segments import Segments

# Of an epoch that is served: behind the first rounds and those whose samples were there before it began, and before the last
# ones, whose samples came ahead of them.
SERVED_ROUNDS = 6
# After which of its first rounds a training looks at its devices' speeds. What counts begins behind the second look, or the first
# one where rounds are long, or before either where that takes too long; and no look comes between what counts.
_LONG = Segments(rounds=10**6, rounds_per_epoch=10**6, looks_from=0)
LOOKS = tuple(number for number in range(1, 100) if _LONG.looks_at(number))
SETTLING_LOOKS = LOOKS[:2]
# Of a training that is long enough for other shares to pay.
LONG_EPOCHS = 50
PLANNERS = ("edgeswarm", "asteroid", "pipedream", "dapple", "gpipe", "data-parallel")
_LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Effort:
    """repeats: of each method. rounds, seconds: of a run behind its first rounds, whichever is less. warm_up_seconds: of these,
    at least. settling_seconds: what the looks of the first rounds may take. alone_seconds: of a device by itself with each of its
    settings. mini_batch: in place of the model's of MINI_BATCH. trials: what peers' settings are the best of. planners: whose
    plans are trained. in_full: each class of device is timed by itself, with the others at work beside it, for its profile and
    for what it does alone, too; and there is a first epoch that is served.
    """

    repeats: int = 3
    rounds: int = 10
    seconds: float = 90.0
    warm_up_seconds: float = WARM_UP_SECONDS
    settling_seconds: float = 200.0
    alone_seconds: float = 8.0
    mini_batch: int | None = None
    trials: Trials = field(default_factory=Trials)
    planners: tuple[str, ...] = PLANNERS
    in_full: bool = True


# Of each device, as the mean of a round.
PER_ROUND = ("cpu_seconds", "model_cpu_seconds", "sent_bytes", "left_out_bytes", "received_bytes")


def counted_rounds(warm_up: int, rounds: int, *, settled: int) -> tuple[int, int]:
    """(the first round that counts, how many do): behind the warm-up, and behind the look that settles shares and the rounds in
    which moved ones warm up; up to the next look, or behind that one where fewer than LEAST_ROUNDS would be left.

    warm_up, rounds: as wanted. settled: the look after so many rounds; 0 where none is waited for, and what counts is all before
    the first one, as far as it goes.
    """
    if not settled:
        return warm_up, rounds
    first = max(warm_up, settled + WARM_UP_ROUNDS)
    look = next((look for look in LOOKS if first < look < first + rounds), None)
    if look is None:
        return first, rounds
    return (first, look - first) if look - first >= LEAST_ROUNDS else (look + WARM_UP_ROUNDS, rounds)


@dataclass(frozen=True)
class Counters:
    """At one moment. joules: what `read_counters` has. sent_bytes: by device, what has left its card, headers and all."""

    joules: Mapping[str, Counter]
    sent_bytes: Mapping[str, int]

    @classmethod
    def now(cls) -> Counters:
        return cls(read_counters(), links.sent_bytes())


class OnBed:
    """The devices of one bed, for one cell."""

    def __init__(self, cell: Cell, bed: EmulatedLan, cluster: BedCluster, *, effort: Effort, mini_batch: int) -> None:
        self._cell = cell
        self._effort = effort
        self._mini_batch = mini_batch
        self._bed = bed
        self._cluster = cluster
        self._runs = 0
        self._node_ids = {name: cluster.node_id(name) for name in cluster.names}
        self._cores = {device.name: device.cores for device in bed.environment.devices}

    def profile(self, known: dict[str, Any] | None = None) -> tuple[PlanningInstance, dict[str, Any]]:
        """The instance, and what it was made of; both with short names. known: what was told when layers were timed before."""
        options = self._options(rounds=self._effort.rounds)
        if known is not None:
            return profile_missing(self._cluster, options, known)
        return profile_anew(self._cluster, options, in_turn=self._effort.in_full)

    def train(self, plan: Plan) -> dict[str, Any]:
        """One training on edgeswarm's runtime; each device has its samples."""
        assert plan.predicted is not None
        effort = self._effort
        rounds = max(LEAST_ROUNDS, min(effort.rounds, math.ceil(effort.seconds / plan.predicted.round_seconds)))
        folder = self._run_folder()
        folder.mkdir()
        path = folder / "plan.json"
        path.write_text(json.dumps(with_node_ids(plan, self._node_ids).to_json()))
        first = self._warm_up_rounds(plan.predicted.round_seconds)
        last = first + rounds
        options = replace(self._options(rounds=last), plan_path=path, checkpoint_every=NEVER)
        return self._trained(options, folder, first=first, last=last)

    def train_long(self, plan: Plan, instance: PlanningInstance) -> dict[str, Any]:
        """As a user has it: the beginning of a long training, whose shares may follow the devices' speed. What comes behind
        the looks of the first rounds counts; where these would take longer than `settling_seconds`, what comes before them. No
        look comes between rounds that count.

        plan, instance: what the planner found, and was told; a profile of this moment might give another plan.
        """
        assert plan.predicted is not None
        effort = self._effort
        rounds = max(LEAST_ROUNDS, min(effort.rounds, math.ceil(effort.seconds / plan.predicted.round_seconds)))
        short_enough = [
            look for look in SETTLING_LOOKS if look * plan.predicted.round_seconds <= effort.settling_seconds
        ]
        warm_up = self._warm_up_rounds(plan.predicted.round_seconds)
        first, rounds = counted_rounds(warm_up, rounds, settled=max(short_enough, default=0))
        done: list[RoundDone] = []
        ends: list[float] = []
        moves: list[SharesMoved] = []
        counters = ended = Counters.now()
        enough = threading.Event()

        def listen(event: Event) -> None:
            nonlocal counters, ended
            if isinstance(event, SharesMoved):
                moves.append(event)
            if isinstance(event, RoundDone) and not enough.is_set():
                done.append(event)
                ends.append(time.monotonic())
                if len(done) == first:
                    counters = Counters.now()
                if len(done) == first + rounds:
                    ended = Counters.now()
                    enough.set()

        planned = (with_node_ids(plan, self._node_ids), with_names(instance, self._node_ids))
        folder = self._run_folder()
        options = replace(
            self._options(rounds=first + rounds), output=folder / "result", epochs=LONG_EPOCHS, checkpoint_every=NEVER
        )
        try:
            with mock.patch.object(Command, "plan", return_value=planned):
                train_from_full_speed(self._cluster, options, listen, cancel=enough)
        except EdgeswarmError as error:
            if not enough.is_set():
                return {"problem": f"{error.code.word}: {error.message}"}
        finally:
            # Nobody goes on with it.
            shutil.rmtree(options.unfinished_folder, ignore_errors=True)
        names = {node_id: name for name, node_id in self._node_ids.items()}
        told = self._told([round_to_json(each) for each in done], ends, first=first, counters=(counters, ended))
        moved = [move_to_json(move) for move in moves]
        return {
            **told,
            "share_moves": [
                {**move, "shares": {names[device]: share for device, share in move["shares"].items()}} for move in moved
            ],
        }

    def train_served(self) -> dict[str, Any]:
        """A first epoch as a user has it: planned for it, every sample fetched from a hub that is no faster than the devices."""
        folder = self._run_folder()
        links.limit(HUB, self._cell.mbps)
        try:
            options = self._options(rounds=SERVED_ROUNDS, data="served")
            try:
                # Not by the training, which begins at full speed, by which all devices are of one class.
                with ends_all():
                    planned = make_plan_for_job(options, folders=self._cluster.folders)
            except EdgeswarmError as error:
                return {"problem": f"{error.code.word}: {error.message}"}
            ahead = math.ceil(FEED_AHEAD / planned[0].micro_batches)
            first = WARM_UP_ROUNDS + ahead
            last = first + SERVED_ROUNDS
            with mock.patch.object(Command, "plan", return_value=planned):
                return self._trained(self._options(rounds=last + ahead, data="served"), folder, first=first, last=last)
        finally:
            links.limit(HUB, None)

    def _trained(self, options: TrainOptions, folder: Path, *, first: int, last: int) -> dict[str, Any]:
        """first: the rounds before it don't count; nor do that of `last` and those behind it."""
        counters = ended = Counters.now()
        ends: list[float] = []

        def listen(event: Event) -> None:
            nonlocal counters, ended
            if isinstance(event, RoundDone):
                ends.append(time.monotonic())
                if event.round == first - 1:
                    counters = Counters.now()
                if event.round == last - 1:
                    ended = Counters.now()

        try:
            result = train_from_full_speed(self._cluster, replace(options, output=folder / "result"), listen)
        except EdgeswarmError as error:
            return {"problem": f"{error.code.word}: {error.message}"}
        return self._told(result.metrics["rounds"][:last], ends[:last], first=first, counters=(counters, ended))

    def _told(
        self,
        rounds: Sequence[Mapping[str, Any]],
        ends: Sequence[float],
        *,
        first: int,
        counters: tuple[Counters, Counters],
    ) -> dict[str, Any]:
        """What the document has of a training. rounds: as metrics.json has them; those from `first` on count. ends: theirs.
        counters: before the rounds that count and behind them.
        """
        before, after = counters
        done = rounds[first:]
        names = {node_id: name for name, node_id in self._node_ids.items()}
        return {
            "round_seconds": [each["seconds"] for each in done],
            "round_ends": list(ends[first:]),
            "slowness": [
                slowness(SPEED_LOGS, end - each["seconds"], end) for each, end in zip(done, ends[first:], strict=True)
            ],
            "joules": joules_between(before.joules, after.joules),
            "devices": {
                names[device]: {
                    "peak_bytes": max(each["parts"][device]["peak_memory_bytes"] for each in rounds),
                    "card_sent_bytes": (after.sent_bytes[names[device]] - before.sent_bytes[names[device]]) / len(done),
                    **{what: sum(each["parts"][device][what] for each in done) / len(done) for what in PER_ROUND},
                }
                for device in done[-1]["parts"]
            },
        }

    def alone(self) -> dict[str, dict[str, Any]]:
        """By class of device (its cores): what it does by itself at its best, and beside_others: samples per second likewise
        while the others compute too; None where its memory isn't enough for that, or nobody asks.
        """
        found: dict[str, dict[str, Any]] = {}
        for name, cores in sorted(self._cores.items(), key=lambda each: -each[1]):
            kind, folder = f"{cores:g}", self._run_folder()
            if kind in found:
                continue
            fastest = next(iter(found.values()), None)
            device = Alone(
                self._bed,
                name,
                self._cell.model,
                self._mini_batch,
                self._effort.alone_seconds,
                self._effort.trials,
            )
            with self._cluster.paused():
                told = device.best(folder, like=fastest)
                beside = self._beside_others(device, told, folder) if self._effort.in_full else None
            found[kind] = {**told, "beside_others": None if beside is None else beside["samples_per_second"]}
            say(f"{name} alone: {found[kind]}")
        return found

    def _beside_others(self, device: Alone, alone: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
        """Its rate once more while the machine's other devices compute too: less, as real devices would not have it."""
        others = [name for name in self._cores if name != device.device]
        with self._cluster.accompanied(others, whole_stage(self._cluster, self._cell.job)):
            return device.largest_rate(
                int(alone["micro_batch"]),
                folder / "beside-others",
                channels_last=bool(alone["channels_last"]),
                expected=alone["samples_per_second"],
                tries=1,  # the others keep the machine busy
            )

    def tuned_peers(self, speeds: dict[str, dict[str, Any]]) -> dict[str, PeerSettings]:
        by_device = {name: speeds[f"{cores:g}"] for name, cores in self._cores.items()}
        # One pace for all: a device that was measured in a slow moment would get too small a part.
        factors = dict(zip(speeds, told_too_low([*speeds.values()]), strict=True))
        rates = {
            name: factors[f"{cores:g}"] * speed.get("at_best_pace", speed["samples_per_second"])
            for (name, cores), speed in zip(self._cores.items(), by_device.values(), strict=True)
        }
        best = max(rates, key=lambda name: rates[name])
        tuner = PeerTuner(
            self._bed,
            self._cell.model,
            mini_batch=self._mini_batch,
            rates=rates,
            cores=self._cores,
            channels_last=bool(by_device[best]["channels_last"]),
            trials=self._effort.trials,
            folder=self._run_folder(),
        )
        with self._cluster.paused():
            return {
                "single device": PeerSettings(
                    "single_device",
                    [best],
                    int(by_device[best]["micro_batch"]),
                    channels_last=bool(by_device[best]["channels_last"]),
                ),
                **tuner.data_parallel({name: int(speed["micro_batch"]) for name, speed in by_device.items()}),
                "1F1B": tuner.pipeline(bytes_per_second=self._cell.mbps * 1e6 / 8),
            }

    def run_peer(self, settings: PeerSettings) -> dict[str, Any]:
        with self._cluster.paused():
            done: PeerRun = run_peer(
                self._bed,
                settings.script,
                settings.devices,
                *settings.words(
                    self._cell.model,
                    self._mini_batch,
                    rounds=self._effort.rounds,
                    seconds=self._effort.seconds,
                    warm_up_seconds=self._effort.warm_up_seconds,
                ),
                folder=self._run_folder(),
                limit_seconds=_LIMIT_SECONDS,
            )
        if done.problem:
            return {"problem": done.problem}
        rounds = len(done.round_seconds)
        return {
            "round_seconds": list(done.round_seconds),
            "round_ends": list(done.round_ends),
            "slowness": slowness_of_rounds(done),
            "joules": done.joules,
            "devices": {
                name: {"own_peak_bytes": peak, "cpu_seconds": cpu / rounds, "sent_bytes": sent / rounds}
                for name, peak, cpu, sent in zip(
                    settings.devices, done.peak_bytes, done.cpu_seconds, done.sent_bytes, strict=True
                )
            },
        }

    def _warm_up_rounds(self, round_seconds: float) -> int:
        return warm_up_rounds(round_seconds, warm_up_seconds=self._effort.warm_up_seconds)

    def _options(self, *, rounds: int, data: str = "local") -> TrainOptions:
        """Of a job of so many rounds, which is written for it."""
        folder = self._cluster.folder / f"job-{data}-{rounds}"
        job = written_job(folder, self._cell.model, rounds=rounds, batch_size=self._mini_batch, data=data)
        return TrainOptions(job_path=job, discovery=self._cluster.discovery(), listen_address=HUB_ADDRESS)

    def _run_folder(self) -> Path:
        self._runs += 1
        return self._cluster.folder / f"run-{self._runs}"
