"""One cell of the matrix: edgeswarm and everything that it is compared with, on the same devices, in turns.

    bed up --> each class of device alone --> peers' best settings --> profiles, plans --+
                                                                                         v
              for each repeat:  edgeswarm | single device | DDP | 1F1B | comparison planners' plans | edgeswarm again
                                edgeswarm, all samples new and from a hub whose link is as slow as the others

One JSON file a cell, written after each step and each run: what was broken off goes on at the repeat that was broken off, with
the same profiles, plans and settings, on a new bed; but profiles from which nothing has been trained within the hour are measured
anew, since a shared machine is another one by then, and so would the plans be; trainings begin as soon as they are there. Ratios
are taken within a repeat, and a bed's devices and what its machine's pace is told by are its own. On a machine with another
processor it begins anew (bench/kept_document.py). Devices have their short names in it.

It also holds what predictions are judged by (bench/predictions_report.py).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.cell import Cell
from bench.estimate import OURS, RUN_AGAIN
from bench.kept_document import KeptDocument
from bench.matrix_on_bed import PLANNERS, Effort, OnBed
from bench.matrix_report import FORMAT, SERVED
from bench.measuring import say
from bench.origin import boot_id, origin
from bench.peers.settings import PeerSettings, Trials
from bench.same_plan import first_alike
from bench.testbed.bed import SPEED_LOGS, EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.speed import best_pace
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.planner.planners import make_plan

MINI_BATCH = {"mobilenet_v2": 2048, "efficientnet_b1": 2048, "resnet_50": 256, "bert_small": 256}
WHEN = "%Y-%m-%d %H:%M:%S"
OLD_SECONDS = 3600.0

SMALL = Effort(
    repeats=1,
    rounds=20,
    seconds=10.0,
    warm_up_seconds=4.0,
    settling_seconds=20.0,
    alone_seconds=3.0,
    mini_batch=256,
    trials=Trials(at_once=(64, 256), buckets_mib=(25,), micro_batches=(4, 8), further=False),
    planners=(OURS, "asteroid"),
    in_full=False,
)


class CellMeasurement:
    """Fills a cell's document, step by step; `run` returns when nothing is missing."""

    def __init__(self, cell: Cell, folder: Path, *, effort: Effort) -> None:
        self.cell = cell
        self.path = folder / f"{cell.name}.json"
        self._effort = effort
        self._environment = load_environment(cell.environment, mbps=cell.mbps)
        # As JSON has it; documents of before 2026-11-29 say nothing of it, and were measured in full.
        asked = {name: value for name, value in asdict(effort).items() if name != "repeats"}
        self._effort_told = json.loads(json.dumps(asked))
        new = {
            "format": FORMAT,
            "boot": boot_id(),
            "cell": cell.name,
            "effort": self._effort_told,
            "mini_batch": effort.mini_batch or MINI_BATCH[cell.model],
            "device_classes": [f"{device.cores:g}" for device in self._environment.devices],
            "profilings": [],
            "runs": [],
        }
        self._kept = KeptDocument(self.path, new=new, is_complete=self._is_complete)
        self.document = self._kept.content
        if {"plans", "peers"} <= set(self.document):
            self._kept.forget_repeats({repeat for repeat, _ in self.missing()})

    def _forget_old_plans(self) -> None:
        when = self.document.get("when")
        if when is None or self.document["runs"]:
            return
        if time.time() - time.mktime(time.strptime(when, WHEN)) > OLD_SECONDS:
            say(f"{self.cell.name}: profiles of {when} are too old to begin with")
            for name in ("plans", "same_plan_as", "when"):
                self.document.pop(name, None)
            self._kept.keep(profilings=[])

    def missing(self) -> list[tuple[int, str]]:
        """(repeat, method) still to run, in their order."""
        return self._missing_of(self.document)

    def _missing_of(self, document: Mapping[str, Any]) -> list[tuple[int, str]]:
        done = {(run["repeat"], run["method"]) for run in document["runs"]}
        plans = [name for name in document["plans"] if name != OURS]
        # The same setting once more in each repeat: its distance from the first is the noise. All others run between the two,
        # for a machine's pace changes by the minute, and the noise is to be that of what is compared.
        turns = [OURS, *document["peers"], *plans, OURS + RUN_AGAIN, *([SERVED] if self._effort.in_full else [])]
        return [
            (repeat, name) for repeat in range(self._effort.repeats) for name in turns if (repeat, name) not in done
        ]

    def run(self) -> None:
        if self._is_complete(self.document):
            if self.document["format"] != FORMAT:
                say(
                    f"{self.path} was measured by other rules ({self.document['format']}): move it away to measure it anew."
                )
            return
        if self.document["format"] != FORMAT:
            raise SystemExit(f"{self.path} was begun in another way ({self.document['format']}): move it away.")
        if self.document.get("effort", self._effort_told) != self._effort_told:
            raise SystemExit(f"{self.path} was begun with other settings (--small, or in full): move it away.")
        self._forget_old_plans()
        work = self.path.with_suffix(".work")
        shutil.rmtree(work, ignore_errors=True)
        with EmulatedLan(self._environment) as bed, BedCluster(bed, folder=work) as cluster:
            on_bed = OnBed(self.cell, bed, cluster, effort=self._effort, mini_batch=self.document["mini_batch"])
            if "peers" not in self.document:
                say(f"{self.cell.name}: what the devices do alone")
                speeds = self.document.get("alone") or self.alone_of_another_rate() or on_bed.alone()
                self._kept.keep(alone=speeds)
                say(f"{self.cell.name}: the peers' best settings")
                peers = on_bed.tuned_peers(speeds)
                self._kept.keep(peers={peer: asdict(settings) for peer, settings in peers.items()})
            instance = self._profile(on_bed)
            if "plans" not in self.document:
                found = plans_of(instance, self._effort.planners)
                if OURS not in found["plans"]:
                    raise RuntimeError("no plan of ours fits these devices")
                self._kept.keep(**found)
            for repeat, name in self.missing():
                say(f"{self.cell.name}: {name}, repeat {repeat + 1} of {self._effort.repeats}")
                method = name.removesuffix(RUN_AGAIN)
                if name == SERVED:
                    told = on_bed.train_served()
                elif method == OURS:
                    told = on_bed.train_long(Plan.from_json(self.document["plans"][method]), self._planned_for())
                elif method in self.document["plans"]:
                    told = on_bed.train(Plan.from_json(self.document["plans"][method]))
                else:
                    told = on_bed.run_peer(PeerSettings(**self.document["peers"][method]))
                made = {**origin(), "best_pace": best_pace(SPEED_LOGS)}
                self.document["runs"].append({"method": name, "repeat": repeat, **made, **told})
                self._kept.keep()

    def _planned_for(self) -> PlanningInstance:
        """What the plans were made of."""
        return instance_from_json(self.document["profilings"][0]["instance"])

    def _is_complete(self, document: Mapping[str, Any]) -> bool:
        return {"plans", "peers"} <= set(document) and not self._missing_of(document)

    def alone_of_another_rate(self) -> dict[str, Any] | None:
        """What the same devices did alone with the same model, where links were of another rate: they don't matter there."""
        for path in self.path.parent.glob(f"{self.cell.environment}-*-{self.cell.model}.json"):
            other = json.loads(path.read_text())
            same = all(other.get(what) == self.document[what] for what in ("boot", "device_classes"))
            if same and "alone" in other and other.get("effort") == self._effort_told:
                return dict(other["alone"])
        return None

    def _profile(self, on_bed: OnBed) -> PlanningInstance:
        """Where the cell goes on, links alone: layers take on these devices what they took."""
        say(f"{self.cell.name}: profiles")
        if known := self.document["profilings"]:
            return on_bed.profile(known[0])[0]
        instance, told = on_bed.profile()
        self._kept.keep(profilings=[told], when=time.strftime(WHEN))
        return instance


def plans_of(instance: PlanningInstance, planners: Sequence[str] = PLANNERS) -> dict[str, Any]:
    """By planner the plans that differ, as the document has them."""
    plans: dict[str, Plan] = {}
    for planner in planners:
        try:
            plans[planner] = make_plan(instance, planner)
        except EdgeswarmError as error:
            say(f"{planner}: {error.message}")
    first = first_alike(plans)
    return {
        "plans": {name: plan.to_json() for name, plan in plans.items() if first[name] == name},
        "same_plan_as": {name: other for name, other in first.items() if other != name},
    }
