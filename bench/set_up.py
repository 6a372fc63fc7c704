"""What getting ready costs: from a job file to a plan, and the deployment of a stage on a slow device.

    python -m bench.set_up
    python -m bench.set_up --repeats 1 --case plan

`plan`: the real `edgeswarm plan` on the EfficientNet-B1 example, kept on one core, when profiles and links are cached.
`deploy`: the same model as three stages over three agents with 0.12 of a core each, the share of a Jetson Nano beside a
desktop's core; what each worker says of its own getting ready. Needs root and cgroup v1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.measuring import Report, Spread, arguments, one_thread, run_as_command, say, two_cores
from bench.testbed.groups import remove_group
from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.controller import TrainOptions, make_plan_for_job, train
from edgeswarm_coordinator.demo.cluster import LOOPBACK, AgentSpec, ThrowawayCluster
from edgeswarm_coordinator.events import Event, PlanMade

JOB = Path(__file__).parents[1] / "examples" / "efficientnet_b1.py"
CGROUPS = Path("/sys/fs/cgroup/cpu")
NANO_CORES = 0.12
PERIOD_MICROSECONDS = 10_000
MICRO_BATCH = 16
MOST_PLAN_SECONDS, MOST_DEPLOY_SECONDS = 20.0, 10.0
# The example with so few samples that its training is one round.
SHORT_JOB = f"""
import dataclasses
import efficientnet_b1

class Few(efficientnet_b1.Digits):
    def __len__(self):
        return {4 * MICRO_BATCH}

job = dataclasses.replace(
    efficientnet_b1.job, dataset=Few, evaluation_dataset=None, metrics={{}}, best_metric=None, epochs=1
)
"""
AGENTS = tuple(AgentSpec(name) for name in "abc")
TOTAL = "the whole command"
_STEP = re.compile(r"^  (?P<step>[a-z][a-z ]*?)  +(?P<amount>[\d.]+) (?P<unit>us|ms|s|min)\b")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def plan_once(cluster: ThrowawayCluster) -> dict[str, float]:
    """`edgeswarm plan` as a process on one core: seconds by step, of the whole command, and of CPU."""
    core, _ = two_cores()
    peers = [part for address in cluster.addresses for part in ("--peer", address)]
    command = [str(Path(sys.executable).with_name("edgeswarm")), "plan", str(JOB), "--no-mdns", "--json", *peers]
    before = os.times()
    started = time.monotonic()
    ended = subprocess.run(
        command,
        env=one_thread(cluster.environment),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    seconds = time.monotonic() - started
    if ended.returncode != 0:
        raise RuntimeError(f"edgeswarm plan failed:\n{ended.stderr}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    steps: dict[str, float] = {}
    for line in ended.stderr.splitlines():
        found = _STEP.match(line)
        if found:
            steps[found["step"]] = steps.get(found["step"], 0.0) + float(found["amount"]) * _SECONDS[found["unit"]]
    return {**steps, TOTAL: seconds, "its CPU seconds": cpu}


def measure_plan(report: Report, *, repeats: int) -> None:
    with ThrowawayCluster(AGENTS) as cluster:
        say(f"cold: {plan_once(cluster)[TOTAL]:.1f} s")  # profiles and links are measured once
        runs = []
        for repeat in range(repeats):
            runs.append(plan_once(cluster))
            say(f"plan {repeat + 1}/{repeats}: {runs[-1][TOTAL]:.1f} s")
    for step in runs[0]:
        spread = Spread.of([run.get(step, 0.0) for run in runs])
        report.rows.append((f"plan: {step}", spread.shown()))
        report.data.setdefault("plan", {})[step] = spread.to_json()
    total = Spread.of([run[TOTAL] for run in runs])
    report.expect(f"plan, cached, on one core: under {MOST_PLAN_SECONDS:g} s", total.median < MOST_PLAN_SECONDS)


@contextlib.contextmanager
def nanos(cluster: ThrowawayCluster) -> Iterator[None]:
    """Every agent of the cluster, with the processes that it starts from now on, on its share of a core."""
    made = []
    try:
        for name in cluster.names:
            port = int(cluster.address(name).rpartition(":")[2])
            agent = next(
                link.pid
                for link in psutil.net_connections("tcp")
                if link.status == psutil.CONN_LISTEN and link.laddr and link.laddr.port == port
            )
            group = CGROUPS / f"edgeswarm-bench-{os.getpid()}-{name}"
            group.mkdir()
            made.append(group)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(int(NANO_CORES * PERIOD_MICROSECONDS)))
            (group / "cgroup.procs").write_text(str(agent))
        yield
    finally:
        cluster.stop()  # a group goes when its processes have gone
        for group in made:
            remove_group(group)


def deploy_once() -> dict[str, dict[str, float]]:
    """By worker: seconds of each part of getting its stage ready."""
    layers = 0

    def listen(event: Event) -> None:
        nonlocal layers
        if isinstance(event, PlanMade):
            layers = len(event.layer_names)

    with ThrowawayCluster(AGENTS) as cluster:
        job = cluster.folder / "short_job.py"
        job.write_text(SHORT_JOB)
        shutil.copy(JOB, cluster.folder)
        options: dict[str, Any] = {
            "job_path": job,
            "listen_address": LOOPBACK,
            "discovery": cluster.discovery(),
        }
        make_plan_for_job(TrainOptions(**options), folders=cluster.folders, listener=listen)
        bounds = [layers * stage // 3 for stage in range(4)]
        plan = Plan(
            planner="hand",
            micro_batch=MICRO_BATCH,
            micro_batches=4,
            stages=tuple(
                Stage(bounds[stage], bounds[stage + 1], {cluster.node_id(name): MICRO_BATCH}, 2 * (3 - stage) - 1)
                for stage, name in enumerate(cluster.names)
            ),
        )
        path = cluster.folder / "plan.json"
        path.write_text(json.dumps(plan.to_json()))
        with nanos(cluster):
            result = train(
                TrainOptions(**options, plan_path=path, output=cluster.folder / "result"), folders=cluster.folders
            )
    return {device: worker["seconds"] for device, worker in result.metrics["set_up"]["workers"].items()}


def measure_deploy(report: Report, *, repeats: int) -> None:
    runs = []
    for repeat in range(repeats):
        runs.append(deploy_once())
        slowest = max(sum(parts.values()) for parts in runs[-1].values())
        say(f"deploy {repeat + 1}/{repeats}: {slowest:.1f} s")
    for part in next(iter(runs[0].values())):
        spread = Spread.of([max(parts[part] for parts in run.values()) for run in runs])
        report.rows.append((f"deploy, slowest of three: {part}", spread.shown()))
        report.data.setdefault("deploy", {})[part] = spread.to_json()
    total = Spread.of([max(sum(parts.values()) for parts in run.values()) for run in runs])
    report.rows.append(("deploy, slowest of three: all of it", total.shown()))
    report.data["deploy"]["total"] = total.to_json()
    report.expect(
        f"a stage's deployment on {NANO_CORES} of a core: under {MOST_DEPLOY_SECONDS:g} s",
        total.median < MOST_DEPLOY_SECONDS,
    )


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--case", choices=("plan", "deploy"), action="append", help="only this; may be repeated")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    cases = given.case or ["plan", "deploy"]
    report = Report(
        title="Getting ready: the EfficientNet-B1 example",
        how=(
            f"Medians of {given.repeats} runs in seconds (least to most). Steps of the command overlap. The deployment's "
            "parts are the workers' own figures, from the call to ready; the interpreter and torch are loaded before, "
            "while the model is exported."
        ),
        columns=("part", "seconds"),
    )
    if "plan" in cases:
        measure_plan(report, repeats=given.repeats)
    if "deploy" in cases and os.geteuid() == 0 and (CGROUPS / "cpu.cfs_quota_us").exists():
        measure_deploy(report, repeats=given.repeats)
    elif "deploy" in cases:
        say("deploy: left out; it needs root and cgroup v1")
    return report.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
