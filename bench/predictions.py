"""Predicted against measured: seconds of a round and peak memory, over real runs on the testbed.

    python -m bench.predictions --folder DIR --cell C:100:mobilenet_v2
    python -m bench.predictions --folder DIR --all          the cells of CELLS, those that aren't there yet
    python -m bench.predictions --folder DIR --report       the table of what is there, as it is fitted and simulated now

    profile --> plans --> [plan 1, plan 2, ... trained once each --> profile] x repeats

A cell is an environment, a rate of its links and a model. A few plans, good ones and bad ones, are trained in turns, since the
machine's speed drifts from minute to minute; the devices are profiled anew after each turn, and what counts of a curve is the
median over the profilings. Of rounds those count in which the machine was not slow with something else. Peak memory: of each
worker, anonymous and tmpfs, the largest seen. One JSON file a cell, written after each run; a cell that was broken off counts
as far as it came, and is begun anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.bad_plan import BAD_PLAN, even_cuts
from bench.cell import Cell, profile_in_turn, run
from bench.measuring import say
from bench.pages import BENCHMARKS_PAGE, markdown_table, write_into
from bench.predictions_report import report
from bench.testbed.bed import SPEED_LOGS, EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.links import HUB_ADDRESS
from bench.testbed.speed import slowness
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_to_json
from edgeswarm_coordinator.controller import TrainOptions
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan
from edgeswarm_coordinator.profile_cache import FILE_NAME

CELLS = (
    "C:100:mobilenet_v2",
    "C:1000:mobilenet_v2",
    "A:100:mobilenet_v2",
    "B:100:efficientnet_b1",
    "C:100:efficientnet_b1",
    "C:1000:bert_small",
    "D:100:bert_small",
    "D:1000:resnet_50",
)
# Of those that are there.
PLANS = ("edgeswarm", "asteroid", "data-parallel", "pipeline")
FEWER_PLANS = ("edgeswarm", "data-parallel")
REPEATS = 2


def plans_of(instance: PlanningInstance, planners: Sequence[str] = PLANS) -> dict[str, Plan]:
    """The planners' plans and a bad one; those alike but for their planner's name once."""
    found: dict[str, Plan] = {}
    for name in planners:
        if name in PLANNERS:
            try:
                found[name] = make_plan(instance, name)
            except EdgeswarmError as error:
                say(f"{name}: {error.message}")
    bad = even_cuts(instance)
    if bad is not None:
        found[BAD_PLAN] = bad
    distinct: dict[str, Plan] = {}
    for name, plan in found.items():
        if not any(
            plan.stages == other.stages and plan.micro_batch == other.micro_batch for other in distinct.values()
        ):
            distinct[name] = plan
    return distinct


def measure(cell: Cell, folder: Path, *, planners: Sequence[str] = PLANS, repeats: int = REPEATS) -> None:
    """Profiles, plans, trains the plans in turns, profiles again after each turn; writes the cell's file after each run."""
    environment = load_environment(cell.environment, mbps=cell.mbps)
    shutil.rmtree(cell.work(folder), ignore_errors=True)  # of a run that was broken off
    with EmulatedLan(environment) as bed, BedCluster(bed, folder=cell.work(folder)) as cluster:
        options = TrainOptions(job_path=cell.job, discovery=cluster.discovery(), listen_address=HUB_ADDRESS)
        document: dict[str, Any] = {
            "format": "edgeswarm-predictions/3",
            "cell": cell.name,
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
            "profilings": [],
            "plans": {},
            "runs": [],
            "complete": False,
        }

        def profile() -> PlanningInstance:
            say(f"{cell.name}: profiles")
            shutil.rmtree(cluster.folders.cache_dir, ignore_errors=True)
            begin = time.monotonic()
            profiling = profile_in_turn(cluster, options)
            instance = profiling.instance
            slow = slowness(SPEED_LOGS, begin, time.monotonic())
            profiles = json.loads((cluster.folders.cache_dir / FILE_NAME).read_text())
            told = {
                "seconds": profiling.seconds,
                "slowness": slow,
                "instance": instance_to_json(instance),
                "profiles": profiles,
            }
            document["profilings"].append(told)
            return instance

        plans = plans_of(profile(), planners)
        document["plans"] = {name: plan.to_json() for name, plan in plans.items()}
        for repeat in range(repeats):
            for name, plan in plans.items():
                say(f"{cell.name}: {name}")
                number = len(document["runs"])
                told = run(cluster, options, plan, cluster.folder / f"run-{number}")
                document["runs"].append({"plan": name, "repeat": repeat, **told})
                cell.file(folder).write_text(json.dumps(document))
            profile()
        document["complete"] = True
        cell.file(folder).write_text(json.dumps(document))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the cells' files are")
    parser.add_argument("--cell", action="append", default=[], help="ENVIRONMENT:MBPS:MODEL; may be repeated")
    parser.add_argument("--all", action="store_true", help="all cells that are not there yet")
    parser.add_argument("--fewer", action="store_true", help="three plans a cell, for the models that take long")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"of each plan  [default: {REPEATS}]")
    parser.add_argument("--report", action="store_true", help="only the table")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        for text in [*given.cell, *(CELLS if given.all else ())]:
            cell = Cell.parse(text)
            if not cell.is_complete(given.folder):
                planners = FEWER_PLANS if given.fewer else PLANS
                measure(cell, given.folder, planners=planners, repeats=given.repeats)
    table = report(given.folder)
    if given.write:
        write_into(BENCHMARKS_PAGE, "predictions", markdown_table(table.columns, table.rows))
    return table.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
