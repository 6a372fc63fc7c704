"""One agent with one stage against a plain PyTorch loop: same model, same samples, same core.

    python -m bench.one_agent                  all cases
    python -m bench.one_agent --case digits --repeats 7

The agent (its daemon and its worker) and the plain loop are kept on one core and run by turns;
the coordinator and the data service are kept on the others. A throughput is samples over seconds between the end of the
first epoch (in which samples are fetched and memory is taken) and the end of the last round. Each pair gives a ratio.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from bench.measuring import Report, Spread, arguments, one_thread, pin, ratios, run_as_command, say, two_cores
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT
from edgeswarm_coordinator.controller import make_plan_for_job, train
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.events import Event, RoundDone
from edgeswarm_coordinator.options import TrainOptions
from tests.e2e.small_job import ADAMW, SGD, SmallJob

DEVICE = "one"
LEAST_RATIO = 0.95

# A worker sets glibc's allocator so that big tensors keep their pages, and lets images lie channels last; with that the plain
# loop is quicker, too.
PLAIN = "plain loop"
PLAIN_LOOPS: dict[str, tuple[Mapping[str, str], tuple[str, ...]]] = {
    PLAIN: ({}, ()),
    "plain loop with what a worker does": (ALLOCATOR_ENVIRONMENT, ("--channels-last",)),
}


@dataclass(frozen=True)
class Case:
    """A model and how it is trained. micro_batches: of each mini-batch, on both sides."""

    job: SmallJob
    micro_batches: int = 1


def _job(model: str, shape: str, *, batch: int, optimizer: str = SGD, data: str = "served") -> SmallJob:
    inputs = f"torch.randn({{samples}}, {shape}, generator=generator).to(DTYPE)"
    more = f"data={data!r},"
    return SmallJob(model=model, inputs=inputs, optimizer=optimizer, samples=8 * batch, batch_size=batch, more=more)


_digits = partial(_job, "small_models.DigitsCNN(channels=32, size=28)", "1, 28, 28", batch=64)
_mobile = partial(_job, "small_models.MobileNetV2()", "3, 32, 32", batch=32)
_transformer = partial(
    _job, "small_models.SmallTransformer(features=16, width=128, blocks=4)", "32, 16", batch=32, optimizer=ADAMW
)

CASES = {
    "digits": Case(_digits()),
    "digits-local": Case(_digits(data="local")),
    "digits-micro": Case(_digits(), micro_batches=2),
    "mobilenet": Case(_mobile()),
    "mobilenet-local": Case(_mobile(data="local")),
    "transformer": Case(_transformer()),
}


@dataclass(frozen=True)
class Speed:
    """samples_per_second: over all steady rounds. cpu_seconds: of the middle round, by the process that trains.

    quick_seconds: of a round that nine of ten are slower than; whatever else the machine does only adds time.
    """

    samples_per_second: float
    quick_seconds: float
    cpu_seconds: float
    parts: dict[str, float]

    @classmethod
    def of(
        cls,
        ends: list[float],
        samples: list[int],
        cpu: list[float],
        *,
        skip: int,
        parts: dict[str, float],
        spans: list[float] | None = None,
    ) -> Speed:
        """ends: when each round ended. skip: rounds left out at the beginning. spans: of each round, where its end is told later,
        together with others.
        """
        seconds = ends[-1] - ends[skip - 1]
        steady = spans[skip:] if spans else [after - before for before, after in pairwise(ends[skip - 1 :])]
        return cls(sum(samples[skip:]) / seconds, quantiles(steady, n=10)[0], median(cpu[skip:]), parts)


def agent_speed(cluster: ThrowawayCluster, job_path: Path, plan_path: Path, output: Path, *, skip: int) -> Speed:
    """One training over the cluster's only agent, on a plan that is there already."""
    rounds: list[RoundDone] = []
    ends: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone):
            ends.append(perf_counter())
            rounds.append(event)

    train(_options(cluster, job_path, output=output, plan_path=plan_path), folders=cluster.folders, listener=listen)
    done = [next(iter(each.parts.values())) for each in rounds]
    parts = {
        "round": median(each.seconds for each in done[skip:]),
        "forward": median(each.forward for each in done[skip:]),
        "backward": median(each.backward for each in done[skip:]),
        "waiting": median(sum(each.waiting.values()) for each in done[skip:]),
        "all_reduce": median(each.all_reduce for each in done[skip:]),
        "step": median(each.step for each in done[skip:]),
        "other": median(each.other for each in done[skip:]),
    }
    return Speed.of(
        ends,
        [each.samples for each in rounds],
        [each.cpu_seconds for each in done],
        skip=skip,
        parts=parts,
        spans=[each.seconds for each in done],
    )


def plain_speed(*words: str, core: int, skip: int, environment: Mapping[str, str]) -> Speed:
    """The plain loop with this command line, as a process of its own on this core. environment: besides this process's own."""
    done = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-m", "bench.plain_loop", *words],
        env=one_thread({**os.environ, **environment}),
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout)
    return Speed.of(found["ends"], found["samples"], found["cpu_seconds"], skip=skip, parts={})


def _options(cluster: ThrowawayCluster, job_path: Path, **more: Any) -> TrainOptions:
    return TrainOptions(job_path=job_path, listen_address="127.0.0.1", discovery=cluster.discovery(), **more)


def measure(
    name: str, case: Case, cluster: ThrowawayCluster, folder: Path, *, core: int, repeats: int, report: Report
) -> None:
    """All pairs of one case."""
    job_path = case.job.write(folder / name)
    skip = case.job.samples // case.job.batch_size
    micro_batch = case.job.batch_size // case.micro_batches
    plan, _ = make_plan_for_job(
        _options(cluster, job_path, planner="single", micro_batch=micro_batch), folders=cluster.folders
    )
    plan_path = folder / name / "plan.json"
    plan_path.write_text(json.dumps(plan.to_json()))
    agent: list[Speed] = []
    plain: dict[str, list[Speed]] = {name: [] for name in PLAIN_LOOPS}
    for repeat in range(repeats):
        agent.append(agent_speed(cluster, job_path, plan_path, folder / name / f"out-{repeat}", skip=skip))
        for loop, (environment, words) in PLAIN_LOOPS.items():
            command = (str(job_path), *words, "--micro-batches", str(case.micro_batches))
            plain[loop].append(plain_speed(*command, core=core, skip=skip, environment=environment))
        loops = ", ".join(f"{loop} {speeds[-1].samples_per_second:.1f}" for loop, speeds in plain.items())
        say(f"{name}: agent {agent[-1].samples_per_second:.1f}, {loops} samples/s")
    samples = Spread.of([s.samples_per_second for s in agent])
    cells = [name, f"{case.job.batch_size} = {case.micro_batches} x {micro_batch}", samples.shown(0)]
    report.data[name] = {
        "batch_size": case.job.batch_size,
        "micro_batches": case.micro_batches,
        "agent_samples_per_second": samples.to_json(),
        "agent_parts_seconds": {key: median(s.parts[key] for s in agent) for key in agent[0].parts},
    }
    for loop, speeds in plain.items():
        found = {
            "samples_per_second": Spread.of([s.samples_per_second for s in speeds]),
            "ratio": Spread.of(ratios([s.samples_per_second for s in agent], [s.samples_per_second for s in speeds])),
            "ratio_of_quick_rounds": Spread.of(
                ratios([s.quick_seconds for s in speeds], [s.quick_seconds for s in agent])
            ),
            "ratio_of_cpu_seconds": Spread.of(ratios([s.cpu_seconds for s in speeds], [s.cpu_seconds for s in agent])),
        }
        report.data[name][loop] = {key: spread.to_json() for key, spread in found.items()}
        cells += [f"{found['samples_per_second'].median:.0f}", found["ratio"].shown()]
        cells += [f"{found['ratio_of_quick_rounds'].median:.2f}", f"{found['ratio_of_cpu_seconds'].median:.2f}"]
        if loop == PLAIN:
            holds = found["ratio"].median >= LEAST_RATIO
            report.expect(
                f"{name}: at least {LEAST_RATIO} of a plain loop's samples/s ({found['ratio'].shown()})", holds
            )
    report.rows.append(cells)


def main() -> int:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; may be repeated")
    parser.add_argument("--epochs", type=int, default=6, metavar="N", help="of 8 rounds each  [default: 6]")
    given = parser.parse_args()
    core, others = two_cores()
    os.sched_setaffinity(0, others)
    report = Report(
        title="One agent and one stage against a plain PyTorch loop on the same core",
        how=(
            "Samples per second after the first epoch; the agent's daemon and worker on one core, the plain loop "
            f"(DataLoader, num_workers=0) on the same core, by turns, {given.repeats} times; medians (least to most) of the "
            "ratios of runs beside each other. Quick: ratio of the tenth percentiles of the rounds' seconds, which a busy "
            "machine disturbs less. CPU: ratio of the CPU seconds of the median round. The second four columns are "
            "against the plain loop with a worker's allocator settings and images channels last."
        ),
        columns=("case", "batch", "agent/s", *("plain/s", "ratio", "quick", "CPU") * 2),
    )
    with (
        tempfile.TemporaryDirectory(prefix="edgeswarm-bench-") as folder,
        ThrowawayCluster([DEVICE], mdns=False) as cluster,
    ):
        pin(cluster.pid(DEVICE), {core})
        for name in given.case or CASES:
            case = CASES[name]
            case = replace(case, job=replace(case.job, epochs=given.epochs))
            measure(name, case, cluster, Path(folder), core=core, repeats=given.repeats, report=report)
    return report.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
