"""Predicted against measured: seconds of a round and peak memory, over the emulated testbed.

    python -m bench.predictions --out FOLDER                          MobileNetV2, environment c, 100 Mbps
    python -m bench.predictions --out FOLDER --environment a --megabits 1000 --repeats 2

Curves and links are measured at the start, rounds right after. One JSON file in FOLDER for each cell (environment, rate,
model, plan, repeat); a cell that is there isn't run again, so that a run that was stopped goes on. Equal cells repeated say how
much of a difference is noise. Needs root and cgroup v1 (see bench/testbed.py).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.measuring import Report, arguments, one_thread, say
from bench.testbed import ENVIRONMENTS, HUB_ADDRESS, Testbed
from edgeswarm.config import Folders
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_to_json
from edgeswarm.security.authority import create_cluster
from edgeswarm.security.join import JoinServer
from edgeswarm.security.token import TokenStore
from edgeswarm_coordinator.controller import make_plan_for_job, train
from edgeswarm_coordinator.events import Event, PlanMade, RoundDone, StepDone
from edgeswarm_coordinator.options import DiscoveryOptions, TrainOptions
from edgeswarm_coordinator.planner.cost_model import evaluate
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.profile_cache import FILE_NAME
from edgeswarm_coordinator.simulator.simulate import simulate

EXAMPLES = Path(__file__).parents[1] / "examples"
MODELS = {"mobilenet_v2": "mobilenet_v2", "efficientnet_b1": "efficientnet_b1", "bert_small": "bert_small"}
BATCH, ROUNDS, SKIPPED_ROUNDS = 256, 10, 2
#: planner and micro-batch of the plans that are run; the last two on purpose not good.
PLANS = (("asteroid", 32), ("pipeline", 64), ("data-parallel", 64), ("single", 32))
AGENT = ("-m", "edgeswarm_agent.cli")
PORT = 7600
_START_SECONDS = 120.0
JOB = """
import dataclasses
import {model}

class Few({model}.Digits):
    def __len__(self):
        return {samples}

    def __getitem__(self, index):
        return super().__getitem__(index % 1400)

job = dataclasses.replace(
    {model}.job, dataset=Few, evaluation_dataset=None, metrics={{}}, best_metric=None, epochs={epochs}, batch_size={batch}
)
"""


class Cluster:
    """Agents that have joined and run on a testbed's devices. `folder` keeps all their homes and logs."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed = bed
        self.folder = folder
        self.folders = Folders.within(folder / "operator")
        self.discovery = DiscoveryOptions(
            peers=tuple(f"{address}:{PORT}" for address in bed.addresses.values()), mdns=False
        )

    def start(self) -> None:
        authority, _ = create_cluster(
            authority_folder=self.folders.authority_dir, operator_folder=self.folders.operator_dir
        )
        tokens = TokenStore(self.folders.authority_dir)
        token = tokens.create(authority.fingerprint, uses=len(self.bed.addresses), lifetime_seconds=600)
        with JoinServer(authority, self.folders.authority_dir, host=HUB_ADDRESS, port=0) as server:
            for name in self.bed.addresses:
                join = (sys.executable, *AGENT, "join", f"{HUB_ADDRESS}:{server.port}", str(token), "--name", name)
                subprocess.run(self.bed.command(name, *join), env=self._environment(name), check=True)
        for name in self.bed.addresses:
            run = (sys.executable, *AGENT, "run", "--no-mdns", "--port", str(PORT), "--threads", "1")
            self.bed.start(name, *run, environment=self._environment(name), log=self.log(name))
        deadline = time.monotonic() + _START_SECONDS
        for name in self.bed.addresses:
            while "listens on" not in self.log(name).read_text():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the agent {name} doesn't start:\n{self.log(name).read_text()}")
                time.sleep(0.1)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _environment(self, name: str) -> dict[str, str]:
        plain = {key: value for key, value in os.environ.items() if not key.startswith("EDGESWARM_")}
        return one_thread({**plain, "EDGESWARM_HOME": str(self.folder / name), "PYTHONUNBUFFERED": "1"})


@contextmanager
def cluster_on(environment: str, *, megabits_per_second: float) -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="edgeswarm-bench-") as folder,
        Testbed(environment, megabits_per_second=megabits_per_second) as bed,
    ):
        cluster = Cluster(bed, Path(folder))
        try:
            cluster.start()
            yield cluster
        except Exception:
            for name in bed.addresses:
                say(f"{name}: {cluster.log(name).read_text()[-2000:] if cluster.log(name).exists() else 'no log'}")
            raise


def write_job(folder: Path, model: str) -> Path:
    """The example over so many samples that an epoch is five rounds: samples are fetched in the first alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{model}.py").write_text((EXAMPLES / f"{model}.py").read_text())
    path = folder / "job.py"
    epoch = ROUNDS // 2
    path.write_text(JOB.format(model=model, samples=BATCH * epoch, epochs=2, batch=BATCH))
    return path


def measure_instance(cluster: Cluster, job: Path) -> tuple[PlanningInstance, dict[str, float]]:
    """The planner's input, measured now, and the seconds of each step of it."""
    seconds: dict[str, float] = {}

    def listen(event: Event) -> None:
        if isinstance(event, StepDone):
            seconds[event.step] = event.seconds

    options = TrainOptions(
        job_path=job, listen_address=HUB_ADDRESS, discovery=cluster.discovery, micro_batch=16, fresh_profiles=True
    )
    _, instance = make_plan_for_job(options, folders=cluster.folders, listener=listen)
    return instance, seconds


def run_plan(cluster: Cluster, job: Path, plan: Plan, folder: Path) -> dict[str, Any]:
    """Trains with the plan. Seconds of the rounds after the first epoch, peaks and parts by device."""
    rounds: list[RoundDone] = []
    ends: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone):
            ends.append(time.perf_counter())
            rounds.append(event)
        elif isinstance(event, PlanMade):
            say(f"  {len(event.plan.stages)} stages")

    path = folder / "plan.json"
    path.write_text(json.dumps(plan.to_json()))
    options = TrainOptions(
        job_path=job,
        plan_path=path,
        output=folder / f"out-{time.time_ns()}",
        listen_address=HUB_ADDRESS,
        discovery=replace(cluster.discovery, devices=()),
        checkpoint_every=10 * ROUNDS,
    )
    train(options, folders=cluster.folders, listener=listen)
    skipped = ROUNDS // 2 + 1
    spans = [after - before for before, after in zip(ends[skipped - 1 :], ends[skipped:], strict=False)]
    return {
        "seconds": spans,
        "peak_bytes": {
            device: max(done.parts[device].peak_memory_bytes for done in rounds) for device in rounds[-1].parts
        },
        "parts": {device: parts.to_json() for device, parts in rounds[-1].parts.items()},
    }


def predict(instance: PlanningInstance, plan: Plan) -> dict[str, Any]:
    """By the formulas, and by the simulator."""
    formulas, simulated = evaluate(instance, plan), simulate(instance, plan)
    return {
        "formulas_seconds": formulas.round_seconds,
        "simulator_seconds": simulated.round_seconds,
        "memory_bytes": dict(formulas.memory_bytes),
    }


def main() -> int:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the cells' files are kept")
    parser.add_argument("--environment", choices=ENVIRONMENTS, default="c")
    parser.add_argument("--megabits", type=float, default=100.0, metavar="N", help="rate of every card  [default: 100]")
    parser.add_argument("--model", choices=MODELS, default="mobilenet_v2")
    parser.add_argument("--profile-only", action="store_true", help="measure curves and links, run nothing")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    stem = f"{given.environment}-{given.megabits:g}-{given.model}"
    cells = [
        (planner, size, repeat, given.out / f"{stem}-{planner}-{size}-{repeat}.json")
        for repeat in range(given.repeats)
        for planner, size in PLANS
    ]
    if given.profile_only or not all(path.exists() for *_, path in cells):
        with cluster_on(given.environment, megabits_per_second=given.megabits) as cluster:
            job = write_job(cluster.folder / "job", given.model)
            instance, seconds = measure_instance(cluster, job)
            say(", ".join(f"{step} {taken:.1f} s" for step, taken in seconds.items()))
            (given.out / f"{stem}-instance.json").write_text(json.dumps(instance_to_json(instance)))
            (given.out / f"{stem}-profiles.json").write_text((cluster.folders.cache_dir / FILE_NAME).read_text())
            (given.out / f"{stem}-profiling.json").write_text(json.dumps(seconds))
            for planner, size, repeat, path in [] if given.profile_only else cells:
                if path.exists():
                    continue
                say(f"{planner}, micro-batch {size}, run {repeat}")
                plan = make_plan(instance, planner=planner, micro_batch=size)
                cell = {"plan": plan.to_json(), "predicted": predict(instance, plan)}
                cell["measured"] = run_plan(cluster, job, plan, cluster.folder)
                path.write_text(json.dumps(cell))
    return 0 if given.profile_only else report(cells).show(as_json=given.json)


def report(cells: list[tuple[str, int, int, Path]]) -> Report:
    """The table over the cells' files."""
    table = Report(
        title="Predicted against measured",
        how="Seconds of a round: median after the first epoch. Memory: the worst device, predicted over measured.",
        columns=("plan", "run", "measured", "formulas", "off", "simulator", "off", "memory, least", "memory, most"),
    )
    for planner, size, repeat, path in cells:
        cell = json.loads(path.read_text())
        measured = statistics.median(cell["measured"]["seconds"])
        predicted = cell["predicted"]
        ratios = [
            predicted["memory_bytes"][device] / peak for device, peak in cell["measured"]["peak_bytes"].items() if peak
        ]
        offs = {kind: predicted[f"{kind}_seconds"] / measured - 1 for kind in ("formulas", "simulator")}
        table.rows.append(
            (
                f"{planner} {size}",
                str(repeat),
                f"{measured:.3f}",
                f"{predicted['formulas_seconds']:.3f}",
                f"{offs['formulas']:+.1%}",
                f"{predicted['simulator_seconds']:.3f}",
                f"{offs['simulator']:+.1%}",
                f"{min(ratios):.2f}",
                f"{max(ratios):.2f}",
            )
        )
        table.data[path.stem] = {"measured_seconds": measured, **predicted, "off": offs, "memory_ratios": ratios}
    return table


if __name__ == "__main__":
    sys.exit(main())
