"""The ablated plans trained on the testbed: what each idea of Asteroid's planner brings on devices, not by the simulator.

One file a model, DIR/ablations-CELL.json, written after each run; a measurement that was broken off goes on with the plans that
it lacks, over the same profiles and on a new bed:

    profile --> plans --> [train a plan --> write the file] ...  the first plan once more at the end, for the noise

Devices have their short names in it (nano-1), since the agents of a new bed have other ids. Plans that are the same
but for their names are trained once; those that fit no memory by the model are not trained.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.ablated_plans import fits, variants
from bench.cell import (
    FIRST_ROUNDS,
    Cell,
    measured_seconds,
    paced_seconds,
    profile_anew,
    rounds_of_a_run,
    run,
    written_job,
)
from bench.estimate import RUN_AGAIN, apart
from bench.measuring import Report, keep, say
from bench.origin import boot_id, origin
from bench.same_plan import first_alike
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.links import HUB_ADDRESS
from bench.testbed.speed import at_one_best
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.controller import TrainOptions
from edgeswarm_coordinator.planner.prediction import with_prediction
from edgeswarm_coordinator.planner.units import readable_bytes

FORMAT = "edgeswarm-ablations/2"
MODELS = ("mobilenet_v2", "bert_small")
ENVIRONMENT, MBPS = "C", 100.0
COLUMNS = ("cell", "plan", "predicted", "measured", "speed beside asteroid", "as predicted", "largest peak")


def cell_of(model: str) -> Cell:
    """The paper's environment for its ablations."""
    return Cell(ENVIRONMENT, MBPS, model)


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """The cell's document with a run for every plan to train; needs a testbed only where one is missing."""
    path = folder / f"ablations-{cell.name}.json"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if document and not missing(document):
        return document
    if document and document["boot"] != boot_id():
        say(f"{cell.name}: broken off before this machine was started; begins anew")
        document = {}
    environment = load_environment(cell.environment, mbps=cell.mbps)
    with EmulatedLan(environment) as bed, BedCluster(bed, folder=_new_folder(path)) as cluster:
        options = TrainOptions(job_path=cell.job, discovery=cluster.discovery(), listen_address=HUB_ADDRESS)
        if not document:
            say(f"{cell.name}: profiles")
            document = new_document(cell, *profile_anew(cluster, options))
            keep(path, document)
        for name in missing(document):
            say(f"{cell.name}: {name}")
            plan = Plan.from_json(document["plans"][name.removesuffix(RUN_AGAIN)])
            assert plan.predicted is not None
            rounds = rounds_of_a_run(plan.predicted.round_seconds)
            job = written_job(cluster.folder / f"job-{rounds}", cell.model, rounds=rounds)
            some = replace(options, job_path=job)
            told = run(cluster, some, plan, cluster.folder / f"run-{len(document['runs'])}")
            document["runs"][name] = {**origin(), **told}
            keep(path, document)
    return document


def new_document(cell: Cell, instance: PlanningInstance, profiling: dict[str, Any]) -> dict[str, Any]:
    """Everything but the runs. plans: by name, None where there is none. profiling: what the instance was made of."""
    plans = {
        name: None if plan is None else with_prediction(instance, plan) for name, plan in variants(instance).items()
    }
    return {
        "format": FORMAT,
        "cell": cell.name,
        "boot": boot_id(),
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        "profilings": [profiling],
        "plans": {name: None if plan is None else plan.to_json() for name, plan in plans.items()},
        "runs": {},
    }


def missing(document: dict[str, Any]) -> list[str]:
    """The runs still to make, in order: each distinct plan that fits, then the first one again."""
    first = list(dict.fromkeys(name for name in trained_as(document).values() if name is not None))
    return [name for name in [*first, *(f"{name}{RUN_AGAIN}" for name in first[:1])] if name not in document["runs"]]


def trained_as(document: dict[str, Any]) -> dict[str, str | None]:
    """By plan, the name of the run that is its own: the first one that is the same; None for one that isn't trained."""
    instance = instance_from_json(document["profilings"][0]["instance"])
    plans = {name: Plan.from_json(written) for name, written in document["plans"].items() if written is not None}
    first = first_alike(
        {
            name: plan
            for name, plan in plans.items()
            if plan.predicted is not None and fits(instance, plan.predicted.memory_bytes)
        }
    )
    return {name: first.get(name) for name in document["plans"]}


def measured_report(folder: Path) -> Report:
    """The table over all files that are there, finished or not."""
    table = Report(
        title="What each idea brings, measured",
        how=(
            "Real agents on emulated devices. Seconds of a round; measured: the median of the rounds but the first "
            f"{FIRST_ROUNDS}. Speed beside Asteroid's plan: at the machine's best pace, beside the geometric mean of that plan's "
            "two runs, `equal` where it is no further from 1 than these are apart; and as predicted. The largest peak of a "
            "worker's memory, measured. A plan that equals one above has its run. Again: the first plan once more, for the noise."
        ),
        columns=COLUMNS,
    )
    for path in sorted(folder.glob("ablations-*.json")):
        _add_rows(table, json.loads(path.read_text()))
    return table


def _add_rows(table: Report, document: dict[str, Any]) -> None:
    cell = document["cell"]
    runs = dict(zip(document["runs"], at_one_best([*document["runs"].values()]), strict=True))
    of_plan = trained_as(document)
    rows = {**of_plan, **{name: name for name in runs if name.endswith(RUN_AGAIN)}}
    first = next((name for name in of_plan.values() if name is not None), None)
    twice = [runs[name] for name in (first, f"{first}{RUN_AGAIN}") if "round_seconds" in runs.get(name, {})]
    base = math.prod(map(paced_seconds, twice)) ** (1 / len(twice)) if twice else 0.0
    noise = apart(paced_seconds(twice[0]) / paced_seconds(twice[1])) if len(twice) == 2 else math.inf
    for name, trained in rows.items():
        written = document["plans"][name.removesuffix(RUN_AGAIN)]
        if trained is None:
            table.rows.append((cell, name, "", "no plan" if written is None else "fits no memory", "", "", ""))
            continue
        predicted = float(written["predicted"]["round_seconds"])
        told = runs.get(trained)
        if told is None or "error" in told:
            problem = "not yet" if told is None else f"failed ({told['error'].partition(':')[0]})"
            table.rows.append((cell, name, f"{predicted:.3f}", problem, "", "", ""))
            continue
        seconds, peak = measured_seconds(told), max(told["peak_bytes"].values())
        table.data.setdefault(cell, {})[name] = {"predicted": predicted, "measured": seconds, "largest_peak": peak}
        beside = ("", "")
        if twice:
            speed = base / paced_seconds(told)
            differs = told in twice or apart(speed) > noise
            shown = f"{speed:.2f}" if differs else f"equal ({speed:.2f})"
            beside = (shown, f"{twice[0]['predicted_seconds'] / predicted:.2f}")
        table.rows.append((cell, name, f"{predicted:.3f}", f"{seconds:.3f}", *beside, readable_bytes(peak)))


def _new_folder(path: Path) -> Path:
    """For the agents of one bed; what an earlier one left stays beside it."""
    number = 0
    while (folder := path.with_suffix(f".work-{number}")).exists():
        number += 1
    return folder
