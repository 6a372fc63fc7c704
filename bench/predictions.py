"""Predicted against measured: seconds of a round and peak memory, over real runs on the testbed.

    python -m bench.predictions --folder DIR --cell C:100:mobilenet_v2
    python -m bench.predictions --folder DIR --all          the cells of CELLS, those that aren't there yet
    python -m bench.predictions --folder DIR --report       the table of what is there
    python -m bench.predictions --folder DIR --report --predict-again   what was measured then, fitted and simulated as now

A cell is an environment, a rate of its links and a model. Its devices are profiled anew, and in the same hour a few plans are
trained, good ones and bad ones: each once, and the first one again at the end, which shows the noise of equal settings.
Seconds: median of the rounds but the first two. Peak memory: of each worker, anonymous and tmpfs, the largest seen.
One JSON file a cell, written after each plan; a cell that was broken off counts as far as it came, and is begun anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import Report, say
from bench.pages import BENCHMARKS_PAGE, markdown_table, write_into
from bench.refit import instance_again, prepared_job
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.links import HUB_ADDRESS
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_from_json, instance_to_json
from edgeswarm_coordinator.controller import TrainOptions, make_plan_for_job, train
from edgeswarm_coordinator.events import PROFILE_LAYERS, Event, StepDone
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan
from edgeswarm_coordinator.planner.prediction import with_prediction
from edgeswarm_coordinator.profile_cache import FILE_NAME, Profiles

JOBS = Path(__file__).parent / "jobs"
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
# Of those that are there; the first one is run a second time.
PLANS = ("edgeswarm", "asteroid", "data-parallel", "pipeline")
FEWER_PLANS = ("edgeswarm", "data-parallel")
AGAIN = "again"
FIRST_ROUNDS = 2  # which begin with cold memory and unfilled buffers
MOST_ERROR_MEDIAN, MOST_ERROR_95, LEAST_RANK_CORRELATION = 0.08, 0.15, 0.95
MOST_PROFILE_SECONDS = {"nx": 60.0, "nano": 180.0, AGAIN: 0.0}
MOST_MEMORY_UNDER, MOST_MEMORY_OVER = 0.03, 0.10


@dataclass(frozen=True)
class Cell:
    """environment: A to D. mbps: of every link. model: a job in bench/jobs."""

    environment: str
    mbps: float
    model: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Raises ValueError for what is none."""
        environment, mbps, model = text.split(":")
        if not (JOBS / f"{model}.py").is_file():
            raise ValueError(f"no such model: {model}")
        return cls(environment, float(mbps), model)

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
        return path.exists() and bool(json.loads(path.read_text())["complete"])


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
        found["even cuts, slowest first"] = bad
    distinct: dict[str, Plan] = {}
    for name, plan in found.items():
        if not any(
            plan.stages == other.stages and plan.micro_batch == other.micro_batch for other in distinct.values()
        ):
            distinct[name] = plan
    return distinct


def even_cuts(instance: PlanningInstance) -> Plan | None:
    """As many layers on each device, whatever they cost, the slowest device first: nobody should want this plan."""
    mini_batch = instance.training.mini_batch
    layers = instance.model.layer_count
    order = sorted(instance.device_names, key=lambda name: -instance.profile_of(name).forward(mini_batch, 0, layers))[
        :layers
    ]
    cuts = [round(place * layers / len(order)) for place in range(len(order) + 1)]
    micro_batch = max(1, mini_batch // 8)
    stages = tuple(
        Stage(cuts[place], cuts[place + 1], {name: micro_batch}, 2 * (len(order) - place) - 1)
        for place, name in enumerate(order)
    )
    plan = Plan(planner="by hand", micro_batch=micro_batch, micro_batches=mini_batch // micro_batch, stages=stages)
    try:
        predicted = with_prediction(instance, plan)
    except EdgeswarmError:
        return None
    assert predicted.predicted is not None
    budgets = {device.name: device.memory_bytes for device in instance.devices}
    fits = all(budgets[name] >= need for name, need in predicted.predicted.memory_bytes.items())
    return replace(predicted, planner="even-cuts") if fits else None


def measure(cell: Cell, folder: Path, planners: Sequence[str] = PLANS) -> None:
    """Profiles, plans, and trains each plan once, the first one twice; writes the cell's file after each."""
    environment = load_environment(cell.environment, mbps=cell.mbps)
    shutil.rmtree(cell.work(folder), ignore_errors=True)  # of a run that was broken off
    with EmulatedLan(environment) as bed, BedCluster(bed, folder=cell.work(folder)) as cluster:
        options = TrainOptions(job_path=cell.job, discovery=cluster.discovery(), listen_address=HUB_ADDRESS)
        say(f"{cell.name}: profiles")
        instance, profile_seconds = profile_in_turn(cluster, options)
        plans = list(plans_of(instance, planners).items())
        document: dict[str, Any] = {
            "format": "edgeswarm-predictions/1",
            "cell": cell.name,
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
            "profile_seconds": profile_seconds,
            "instance": instance_to_json(instance),
            "profiles": json.loads((cluster.folders.cache_dir / FILE_NAME).read_text()),
            "runs": [],
            "complete": False,
        }
        for number, (name, plan) in enumerate([*plans, plans[0]]):
            say(f"{cell.name}: {name}")
            told = run(cluster, options, plan, cluster.folder / f"run-{number}")
            document["runs"].append({"plan": name, **told})
            document["complete"] = number == len(plans)
            cell.file(folder).write_text(json.dumps(document))


def profile_in_turn(cluster: BedCluster, options: TrainOptions) -> tuple[PlanningInstance, dict[str, float]]:
    """Profiles one class of devices after the other, each while the other devices compute as in a training.

    All at once they would spoil each other's caches more than a training does, and alone they would be faster than in one.
    Those with least memory come first, since what all are asked to time depends on them. Beside the instance: seconds in which
    layers were timed, by the device that stands for its class; AGAIN once more for all, by what is known then.
    """
    of_class: dict[float, str] = {}
    for device in sorted(cluster.bed.environment.devices, key=lambda device: (device.memory_bytes, -device.cores)):
        of_class.setdefault(device.cores, device.name)
    chosen = tuple(of_class.values())
    seconds: dict[str, float] = {}

    def measured(some: TrainOptions, name: str) -> PlanningInstance:
        seconds[name] = 0.0

        def listen(event: Event) -> None:
            if isinstance(event, StepDone) and event.step == PROFILE_LAYERS:
                seconds[name] += event.seconds

        return make_plan_for_job(some, folders=cluster.folders, listener=listen)[1]

    for count, name in enumerate(chosen, start=1):
        nodes = tuple(cluster.node_id(each) for each in chosen[:count])
        some = replace(options, discovery=replace(options.discovery, devices=nodes))
        # Those that were profiled already are at rest: their links to this one are measured in the same go.
        others = [each for each in cluster.names if each not in chosen[:count]]
        # Too few devices for a plan: what was measured is kept.
        with cluster.accompanied(others), contextlib.suppress(EdgeswarmError):
            measured(some, name)
    return measured(options, AGAIN), seconds


def run(cluster: BedCluster, options: TrainOptions, plan: Plan, folder: Path) -> dict[str, Any]:
    """One training of a plan; its prediction beside what came out, or the error that ended it."""
    assert plan.predicted is not None
    folder.mkdir()
    plan_path = folder / "plan.json"
    plan_path.write_text(json.dumps(plan.to_json()))
    told: dict[str, Any] = {"document": plan.to_json(), "predicted_seconds": plan.predicted.round_seconds}
    try:
        result = train(replace(options, plan_path=plan_path, output=folder / "result"), folders=cluster.folders)
    except EdgeswarmError as error:
        return {**told, "error": f"{error.code.value}: {error.message}"}
    rounds = result.metrics["rounds"]
    peaks = {name: max(done["parts"][name]["peak_memory_bytes"] for done in rounds) for name in plan.devices}
    return {
        **told,
        "round_seconds": [done["seconds"] for done in rounds],
        "parts": rounds[-1]["parts"],
        "peak_bytes": peaks,
        "predicted_bytes": dict(plan.predicted.memory_bytes),
    }


def measured_seconds(run_told: dict[str, Any]) -> float:
    return float(statistics.median(run_told["round_seconds"][FIRST_ROUNDS:]))


def pairs(documents: list[dict[str, Any]]) -> Iterator[tuple[str, str, float, float, float | None]]:
    """(cell, plan, predicted seconds, measured seconds, the second run's seconds where there is one)."""
    for document in documents:
        runs = [told for told in document["runs"] if "round_seconds" in told]
        first_seen: dict[str, dict[str, Any]] = {}
        for told in runs:
            first_seen.setdefault(told["plan"], told)
        for name, told in first_seen.items():
            again = [measured_seconds(other) for other in runs if other["plan"] == name and other is not told]
            seconds = measured_seconds(told)
            yield document["cell"], name, told["predicted_seconds"], seconds, again[0] if again else None


def predicted_again(document: dict[str, Any]) -> dict[str, Any]:
    """The cell with what is said of its plans now, out of what was measured then."""
    instance = instance_again(
        instance_from_json(document["instance"]),
        prepared_job(Cell.named(document["cell"]).job),
        profiles=Profiles.from_json(document["profiles"]),
    )
    runs = []
    for told in document["runs"]:
        plan = with_prediction(instance, Plan.from_json(told["document"]))
        assert plan.predicted is not None
        now = {"predicted_seconds": plan.predicted.round_seconds, "predicted_bytes": dict(plan.predicted.memory_bytes)}
        runs.append({**told, **now})
    return {**document, "runs": runs}


def report(folder: Path, *, predict_again: bool = False) -> Report:
    """The table over all cells that are there. predict_again: predicted by the present curves and simulator."""
    table = Report(
        title="Predicted and measured seconds of a round",
        how=(
            "Real agents on emulated devices. Profiles and rounds in the same hour. Measured: median of the rounds but the first "
            f"{FIRST_ROUNDS}. Again: the same plan once more, for the noise of equal settings."
        ),
        columns=("cell", "plan", "predicted", "measured", "error", "again", "noise", "memory, least to most"),
    )
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if predict_again:
        documents = [predicted_again(document) for document in documents]
    found = list(pairs(documents))
    memory = {
        (document["cell"], told["plan"]): memory_errors(told)
        for document in documents
        for told in document["runs"]
        if "round_seconds" in told
    }
    for cell, plan, predicted, seconds, again in found:
        noise = "" if again is None else f"{again / seconds - 1:+.1%}"
        table.rows.append((
            *(cell, plan, f"{predicted:.3f}", f"{seconds:.3f}", f"{predicted / seconds - 1:+.1%}"),
            *("" if again is None else f"{again:.3f}", noise),
            " to ".join(f"{error:+.0%}" for error in (min(memory[cell, plan]), max(memory[cell, plan]))),
        ))  # fmt: skip
    for document in documents:
        _expect_profiling(table, document)
    if found:
        errors = np.array([abs(predicted / seconds - 1) for _, _, predicted, seconds, _ in found])
        table.data = {"pairs": len(found), "median": float(np.median(errors)), "p95": float(np.quantile(errors, 0.95))}
        correlation = rank_correlation([pair[2] for pair in found], [pair[3] for pair in found])
        table.expect(f"median error {table.data['median']:.1%}, at most 8 %", table.data["median"] <= MOST_ERROR_MEDIAN)
        table.expect(f"95th percentile {table.data['p95']:.1%}, at most 15 %", table.data["p95"] <= MOST_ERROR_95)
        table.expect(f"rank correlation {correlation:.3f}, at least 0.95", correlation >= LEAST_RANK_CORRELATION)
        least, most = min(min(each) for each in memory.values()), max(max(each) for each in memory.values())
        table.expect(
            f"memory {least:+.1%} to {most:+.1%} of what was measured, -3 % to +10 %",
            least >= -MOST_MEMORY_UNDER and most <= MOST_MEMORY_OVER,
        )
    return table


def _expect_profiling(table: Report, document: dict[str, Any]) -> None:
    """What MobileNetV2's layers at batch sizes of 1 to 256 may take; and nothing, once they are known."""
    seconds = document["profile_seconds"]
    table.data.setdefault("profile_seconds", {})[document["cell"]] = seconds
    if Cell.named(document["cell"]).model != "mobilenet_v2":
        return
    for name, took in seconds.items():
        most = next((most for kind, most in MOST_PROFILE_SECONDS.items() if name.startswith(kind)), None)
        if most is not None:
            table.expect(f"{document['cell']}: {name} profiled in {took:.0f} s, at most {most:.0f}", took <= most)


def memory_errors(told: dict[str, Any]) -> list[float]:
    """Of each device's predicted peak against the measured one; below 0 where it was more than predicted."""
    return [told["predicted_bytes"][name] / measured - 1 for name, measured in told["peak_bytes"].items()]


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's, without ties."""
    if len(a) < 2:
        return 1.0
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the cells' files are")
    parser.add_argument("--cell", action="append", default=[], help="ENVIRONMENT:MBPS:MODEL; may be repeated")
    parser.add_argument("--all", action="store_true", help="all cells that are not there yet")
    parser.add_argument("--fewer", action="store_true", help="three plans a cell, for the models that take long")
    parser.add_argument("--report", action="store_true", help="only the table")
    parser.add_argument("--predict-again", action="store_true", help="what is said of them now")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        for text in [*given.cell, *(CELLS if given.all else ())]:
            cell = Cell.parse(text)
            if not cell.is_complete(given.folder):
                measure(cell, given.folder, FEWER_PLANS if given.fewer else PLANS)
    table = report(given.folder, predict_again=given.predict_again)
    if given.write:
        write_into(BENCHMARKS_PAGE, "predictions", markdown_table(table.columns, table.rows))
    return table.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
