"""One cell of the matrix: edgeswarm and everything that it is compared with, on the same devices, in turns.

    bed up --> profiles, plans --> each class of device alone --> peers' best settings --+
                                                                                         v
              for each repeat:  edgeswarm | comparison planners' plans | DDP | 1F1B | single device
                                edgeswarm, all samples new and from a hub whose link is as slow as the others

One JSON file a cell, written after each step and each run: what was broken off goes on where it was, with the same profiles,
plans and settings, on a new bed. Devices have their short names in it.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.cell import RUN_AGAIN, Cell, profile_in_turn, written_job
from bench.energy import joules_between, read_counters
from bench.matrix_report import OURS, SERVED
from bench.measured_ablations import with_names
from bench.measuring import keep, say
from bench.peers.launch import PeerRun, run_peer
from bench.peers.settings import PeerSettings, PeerTuner, alone, rate_alone
from bench.testbed import links
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.links import HUB, HUB_ADDRESS
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm.profile_json import instance_to_json
from edgeswarm_coordinator.controller import TrainOptions, train
from edgeswarm_coordinator.events import Event, RoundDone
from edgeswarm_coordinator.plan_by_hand import with_node_ids
from edgeswarm_coordinator.planner.planners import make_plan

FORMAT = "edgeswarm-matrix/1"
MINI_BATCH = {"mobilenet_v2": 2048, "efficientnet_b1": 2048, "resnet_50": 256, "bert_small": 256}
PLANNERS = ("edgeswarm", "asteroid", "pipedream", "dapple", "gpipe", "data-parallel")
WARM_UP_ROUNDS, LEAST_ROUNDS, SERVED_ROUNDS = 2, 3, 4
_LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Effort:
    """repeats: of each method. rounds, seconds: of a run behind its first rounds, whichever is less. alone_seconds: of a device
    by itself with each of its settings. mini_batch: in place of the model's of MINI_BATCH.
    """

    repeats: int = 3
    rounds: int = 10
    seconds: float = 90.0
    alone_seconds: float = 8.0
    mini_batch: int | None = None


SMALL = Effort(repeats=1, rounds=5, seconds=20.0, alone_seconds=3.0, mini_batch=256)


class CellMeasurement:
    """Fills a cell's document, step by step; `run` returns when nothing is missing."""

    def __init__(self, cell: Cell, folder: Path, *, effort: Effort) -> None:
        self.cell = cell
        self.path = folder / f"{cell.name}.json"
        self._effort = effort
        self._environment = load_environment(cell.environment, mbps=cell.mbps)
        self.document: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.document.setdefault("format", FORMAT)
        self.document.setdefault("cell", cell.name)
        self.document.setdefault("mini_batch", effort.mini_batch or MINI_BATCH[cell.model])
        self.document.setdefault("device_classes", [f"{device.cores:g}" for device in self._environment.devices])
        self.document.setdefault("runs", [])

    def missing(self) -> list[tuple[int, str]]:
        """(repeat, method) still to run, in their order."""
        done = {(run["repeat"], run["method"]) for run in self.document["runs"]}
        methods = [*self.document["plans"], *self.document["peers"]]
        # The same setting once more in each repeat: its distance from the first is the noise.
        turns = [*methods, OURS + RUN_AGAIN, SERVED]
        return [
            (repeat, name) for repeat in range(self._effort.repeats) for name in turns if (repeat, name) not in done
        ]

    def run(self) -> None:
        if "peers" in self.document and not self.missing():
            return
        work = self.path.with_suffix(".work")
        shutil.rmtree(work, ignore_errors=True)
        with EmulatedLan(self._environment) as bed, BedCluster(bed, folder=work) as cluster:
            on_bed = _OnBed(self.cell, bed, cluster, effort=self._effort, mini_batch=self.document["mini_batch"])
            if "instance" not in self.document:
                say(f"{self.cell.name}: profiles")
                self._keep(**on_bed.profile_and_plan(), when=time.strftime("%Y-%m-%d %H:%M:%S"))
            if "peers" not in self.document:
                say(f"{self.cell.name}: what the devices do alone")
                speeds = self.document.get("alone") or on_bed.alone()
                self._keep(alone=speeds)
                say(f"{self.cell.name}: the peers' best settings")
                self._keep(peers={name: asdict(peer) for name, peer in on_bed.tuned_peers(speeds).items()})
            for repeat, name in self.missing():
                say(f"{self.cell.name}: {name}, repeat {repeat + 1} of {self._effort.repeats}")
                method = name.removesuffix(RUN_AGAIN)
                if name == SERVED:
                    told = on_bed.train_served()
                elif method in self.document["plans"]:
                    told = on_bed.train(Plan.from_json(self.document["plans"][method]))
                else:
                    told = on_bed.run_peer(PeerSettings(**self.document["peers"][method]))
                self.document["runs"].append({"method": name, "repeat": repeat, **told})
                self._keep()

    def _keep(self, **more: Any) -> None:
        """Writes the document with what is new, whole or not at all."""
        self.document.update(more)
        keep(self.path, self.document)


class _OnBed:
    """What is done on the devices while they exist."""

    def __init__(self, cell: Cell, bed: EmulatedLan, cluster: BedCluster, *, effort: Effort, mini_batch: int) -> None:
        self._cell = cell
        self._effort = effort
        self._mini_batch = mini_batch
        self._bed = bed
        self._cluster = cluster
        self._runs = 0
        self._node_ids = {name: cluster.node_id(name) for name in cluster.names}
        self._cores = {device.name: device.cores for device in bed.environment.devices}

    def profile_and_plan(self) -> dict[str, Any]:
        """The instance, and by planner the plans that differ."""
        found, _ = profile_in_turn(self._cluster, self._options(rounds=self._effort.rounds))
        names = {node_id: name for name, node_id in self._node_ids.items()}
        instance = with_names(found, names)
        plans: dict[str, Plan] = {}
        same: dict[str, str] = {}
        for planner in PLANNERS:
            try:
                plan = make_plan(instance, planner)
            except EdgeswarmError as error:
                say(f"{planner}: {error.message}")
                continue
            equal = (
                name for name, other in plans.items()
                if (other.stages, other.micro_batch) == (plan.stages, plan.micro_batch)
            )  # fmt: skip
            if (first := next(equal, None)) is not None:
                same[planner] = first
            else:
                plans[planner] = plan
        return {
            "instance": instance_to_json(instance),
            "plans": {name: plan.to_json() for name, plan in plans.items()},
            "same_plan_as": same,
        }

    def train(self, plan: Plan) -> dict[str, Any]:
        """One training on edgeswarm's runtime; each device has its samples."""
        assert plan.predicted is not None
        effort = self._effort
        rounds = max(LEAST_ROUNDS, min(effort.rounds, math.ceil(effort.seconds / plan.predicted.round_seconds)))
        folder = self._run_folder()
        folder.mkdir()
        path = folder / "plan.json"
        path.write_text(json.dumps(with_node_ids(plan, self._node_ids).to_json()))
        return self._trained(replace(self._options(rounds=WARM_UP_ROUNDS + rounds), plan_path=path), folder)

    def train_served(self) -> dict[str, Any]:
        """A first epoch as a user has it: planned for it, every sample fetched from a hub that is no faster than the devices."""
        folder = self._run_folder()
        links.limit(HUB, self._cell.mbps)
        try:
            return self._trained(self._options(rounds=WARM_UP_ROUNDS + SERVED_ROUNDS, data="served"), folder)
        finally:
            links.limit(HUB, None)

    def _trained(self, options: TrainOptions, folder: Path) -> dict[str, Any]:
        counters = read_counters()

        def listen(event: Event) -> None:
            nonlocal counters
            if isinstance(event, RoundDone) and event.round == WARM_UP_ROUNDS - 1:
                counters = read_counters()

        try:
            result = train(replace(options, output=folder / "result"), folders=self._cluster.folders, listener=listen)
        except EdgeswarmError as error:
            return {"problem": f"{error.code.value}: {error.message}"}
        done = result.metrics["rounds"][WARM_UP_ROUNDS:]
        names = {node_id: name for name, node_id in self._node_ids.items()}
        return {
            "round_seconds": [each["seconds"] for each in done],
            "joules": joules_between(counters, read_counters()),
            "devices": {
                names[device]: {
                    "peak_bytes": max(each["parts"][device]["peak_memory_bytes"] for each in done),
                    **{
                        what: sum(each["parts"][device][what] for each in done) / len(done)
                        for what in ("cpu_seconds", "model_cpu_seconds", "sent_bytes", "received_bytes")
                    },
                }
                for device in result.plan.devices
            },
        }

    def alone(self) -> dict[str, dict[str, float]]:
        """By class of device (its cores): samples per second by itself, at its best micro-batch."""
        found: dict[str, dict[str, float]] = {}
        for name, cores in self._cores.items():
            kind, folder = f"{cores:g}", self._run_folder()
            if kind in found:
                continue
            with self._cluster.paused():
                told = alone(self._bed, name, self._cell.model, folder=folder, seconds=self._effort.alone_seconds)
                others = [other for other in self._cores if other != name]
                # Once more while the machine's other devices compute too: less, as real devices would not have it.
                with self._cluster.accompanied(others):
                    beside = rate_alone(
                        *(self._bed, name, self._cell.model),
                        micro_batch=int(told["micro_batch"]),
                        folder=folder / "beside-others",
                        channels_last=bool(told["channels_last"]),
                        seconds=self._effort.alone_seconds,
                    )
            found[kind] = {**told, "beside_others": beside or 0.0}
            say(f"{name} alone: {found[kind]}")
        return found

    def tuned_peers(self, speeds: dict[str, dict[str, float]]) -> dict[str, PeerSettings]:
        by_device = {name: speeds[f"{cores:g}"] for name, cores in self._cores.items()}
        rates = {name: speed["samples_per_second"] for name, speed in by_device.items()}
        best = max(rates, key=lambda name: rates[name])
        slowest = min(rates, key=lambda name: rates[name])
        tuner = PeerTuner(
            self._bed,
            self._cell.model,
            mini_batch=self._mini_batch,
            rates=rates,
            channels_last=bool(by_device[best]["channels_last"]),
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
                **tuner.data_parallel(int(by_device[slowest]["micro_batch"])),
                "1F1B": tuner.pipeline(bytes_per_second=self._cell.mbps * 1e6 / 8),
            }

    def run_peer(self, settings: PeerSettings) -> dict[str, Any]:
        with self._cluster.paused():
            done: PeerRun = run_peer(
                self._bed,
                settings.script,
                settings.devices,
                *settings.words(
                    self._cell.model, self._mini_batch, rounds=self._effort.rounds, seconds=self._effort.seconds
                ),
                folder=self._run_folder(),
                limit_seconds=_LIMIT_SECONDS,
            )
        if done.problem:
            return {"problem": done.problem}
        rounds = len(done.round_seconds)
        return {
            "round_seconds": list(done.round_seconds),
            "joules": done.joules,
            "devices": {
                name: {"peak_bytes": peak, "cpu_seconds": cpu / rounds}
                for name, peak, cpu in zip(settings.devices, done.peak_bytes, done.cpu_seconds, strict=True)
            },
        }

    def _options(self, *, rounds: int, data: str = "local") -> TrainOptions:
        """Of a job of so many rounds, which is written for it."""
        folder = self._cluster.folder / f"job-{data}-{rounds}"
        job = written_job(folder, self._cell.model, rounds=rounds, batch_size=self._mini_batch, data=data)
        return TrainOptions(job_path=job, discovery=self._cluster.discovery(), listen_address=HUB_ADDRESS)

    def _run_folder(self) -> Path:
        self._runs += 1
        return self._cluster.folder / f"run-{self._runs}"
