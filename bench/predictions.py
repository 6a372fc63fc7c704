"""Predicted against measured: seconds of a round and peak memory, over real runs on the testbed.

    python -m bench.predictions --folder DIR --cell C:100:mobilenet_v2
    python -m bench.predictions --folder DIR --all          the cells of CELLS, those that aren't there yet
    python -m bench.predictions --folder DIR --report       the table of what is there, as it is fitted and simulated now

    profile --> plans --> [plan 1, plan 2, ... trained once each] x repeats, plan 1 again --> profile, with --profile-again

A cell is an environment, a rate of its links and a model. A few plans, good ones and bad ones, are trained in turns, since the
machine's speed drifts from minute to minute. What a class of devices takes for a model's layers is measured in the first cell of
an environment; one with other links takes it over and measures those, as a second job on the same devices would. (Another
environment doesn't: the fewer devices compute, the more of the machine's caches each of them has.) Of rounds those count in which
the machine was not slow with something else. Peak memory: of each worker, anonymous and tmpfs, the largest seen. One JSON file a
cell, written after each run; a cell that was broken off counts as far as it came, and is begun anew. Cells of the matrix and of
the measured ablations in the same folder count, too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.bad_plan import BAD_PLAN, even_cuts
from bench.cell import Cell, profile_anew, profile_missing, rounds_of_a_run, run, written_job
from bench.measuring import keep, run_as_command, say
from bench.origin import boot_id, origin
from bench.pages import BENCHMARKS_PAGE, table_and_verdicts, write_into
from bench.predictions_report import report
from bench.same_plan import first_alike
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.links import HUB_ADDRESS
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.controller import TrainOptions
from edgeswarm_coordinator.planner.planners import make_plan

# Those of one environment and model share what their devices' layers take.
CELLS = (
    "C:1000:mobilenet_v2",
    "A:100:mobilenet_v2",
    "B:100:mobilenet_v2",
    "C:100:efficientnet_b1",
    "D:100:resnet_50",
    "C:1000:bert_small",
    "C:100:bert_small",
)
# In place of the jobs' own: rounds of a second and more, of which what begins and ends a round is a small part.
MINI_BATCH = {"mobilenet_v2": 2048, "efficientnet_b1": 1024, "bert_small": 128, "resnet_50": 128}
# Of the planners; plans that are alike count once.
PLANS = ("edgeswarm", "asteroid", "pipeline")
REPEATS = 1
FORMAT = "edgeswarm-predictions/4"


def plans_of(instance: PlanningInstance) -> dict[str, Plan]:
    """The planners' plans and a bad one; those alike but for their planner's name once."""
    found: dict[str, Plan] = {}
    for name in PLANS:
        try:
            found[name] = make_plan(instance, name)
        except EdgeswarmError as error:
            say(f"{name}: {error.message}")
    bad = even_cuts(instance)
    if bad is not None:
        found[BAD_PLAN] = bad
    return {name: found[name] for name, first in first_alike(found).items() if first == name}


def measure(cell: Cell, folder: Path, *, repeats: int = REPEATS, profile_again: bool = False) -> None:
    """Profiles, plans, trains the plans in turns; writes the cell's file after each run. The first plan runs once more in the
    end, for the noise. profile_again: then, too, and what counts is the median.
    """
    environment = load_environment(cell.environment, mbps=cell.mbps)
    shutil.rmtree(cell.work(folder), ignore_errors=True)  # of a run that was broken off
    with EmulatedLan(environment) as bed, BedCluster(bed, folder=cell.work(folder)) as cluster:
        job = partial(written_job, model=cell.model, batch_size=MINI_BATCH.get(cell.model))
        options = TrainOptions(
            job_path=job(cluster.folder / "job"), discovery=cluster.discovery(), listen_address=HUB_ADDRESS
        )
        say(f"{cell.name}: profiles")
        known = profiled_before(cell, folder)
        instance, profiling = (
            profile_anew(cluster, options) if known is None else profile_missing(cluster, options, known)
        )
        plans = plans_of(instance)
        document: dict[str, Any] = {
            "format": FORMAT,
            "cell": cell.name,
            "boot": boot_id(),
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
            "profilings": [profiling],
            "plans": {name: plan.to_json() for name, plan in plans.items()},
            "runs": [],
            "complete": False,
        }
        keep(cell.file(folder), document)
        turns = [(repeat, name) for repeat in range(repeats) for name in plans]
        for repeat, name in [*turns, (repeats, next(iter(plans)))]:
            say(f"{cell.name}: {name}")
            plan = plans[name]
            assert plan.predicted is not None
            rounds = rounds_of_a_run(plan.predicted.round_seconds)
            some = replace(options, job_path=job(cluster.folder / f"job-{rounds}", rounds=rounds))
            told = run(cluster, some, plan, cluster.folder / f"run-{len(document['runs'])}")
            document["runs"].append({"plan": name, "repeat": repeat, **origin(), **told})
            keep(cell.file(folder), document)
        if profile_again:
            say(f"{cell.name}: profiles")
            document["profilings"].append(profile_anew(cluster, options)[1])
        document["complete"] = True
        keep(cell.file(folder), document)


def profiled_before(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """What the newest cell of the same environment and model measured since the machine was started."""
    found = []
    for document in (json.loads(path.read_text()) for path in folder.glob("*.json")):
        other = Cell.named(document["cell"])
        is_alike = (other.environment, other.model) == (cell.environment, cell.model)
        if is_alike and document.get("boot") == boot_id() and document.get("profilings"):
            found.append((str(document.get("when", "")), dict(document["profilings"][0])))
    return max(found, key=lambda each: each[0], default=("", None))[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the cells' files are")
    parser.add_argument(
        "--cell", action="append", type=Cell.given, default=[], help="ENVIRONMENT:MBPS:MODEL; may be repeated"
    )
    parser.add_argument("--all", action="store_true", help="all cells that are not there yet")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"of each plan  [default: {REPEATS}]")
    parser.add_argument("--profile-again", action="store_true", help="behind the runs of each cell, too")
    parser.add_argument("--report", action="store_true", help="only the table")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        for cell in [*given.cell, *(map(Cell.parse, CELLS) if given.all else ())]:
            if not cell.is_complete(given.folder):
                measure(cell, given.folder, repeats=given.repeats, profile_again=given.profile_again)
    table = report(given.folder)
    if given.write:
        write_into(BENCHMARKS_PAGE, "predictions", table_and_verdicts(table))
    return table.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
