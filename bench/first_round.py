"""From `edgeswarm train` to the end of the first round, split into its parts, without and with cached profiles.

    python -m bench.first_round

Each repeat makes a new throw-away cluster of the demo's three agents (found by mDNS on loopback and by address) and runs
the real command on the demo's digits job twice: the first time everything is measured, the second time profiles, job
files and addresses are remembered. All of it shares this machine's cores: four processes import torch at the same time.

    |- start -|- load job -|-------- export model --------|- profile, links -|- plan -|- prepare -|- round 0 -|
              |- find devices -|- reserve (workers start) -|   beside it: data service, job files
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, Any

from bench.measuring import Report, Spread, arguments, run_as_command, say
from edgeswarm_coordinator.demo.cluster import LOOPBACK, ThrowawayCluster
from edgeswarm_coordinator.demo.demo import AGENTS, JOB_FILE
from edgeswarm_coordinator.events import LOAD_JOB

MOST_SECONDS = 15.0
START = "start of the command"
FIRST_ROUND = "first round"
TOTAL = "until the first round's end"


@dataclass(frozen=True)
class Span:
    """A part: when it began, counted from the start of the process, and how long it took."""

    start_seconds: float
    seconds: float


def train_once(cluster: ThrowawayCluster, output: Path) -> tuple[dict[str, Span], dict[str, Any]]:
    """One `edgeswarm train` as a process: its parts in the order of their beginning, and the workers' own times."""
    command = [str(Path(sys.executable).with_name("edgeswarm")), "train", str(JOB_FILE), "--json"]
    command += ["--output", str(output), "--epochs", "1", "--interface", LOOPBACK]
    for address in cluster.addresses:
        command += ["--peer", address]
    started = time.monotonic()
    process = subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[tuple[float, str]] = []
    reader = Thread(target=_stamp, args=(process.stderr, lines, started))
    reader.start()
    answer = process.stdout.read()
    reader.join()
    if process.wait() != 0:
        raise RuntimeError("edgeswarm train failed:\n" + "".join(line for _, line in lines))
    set_up = json.loads(answer)["metrics"]["set_up"]
    return parts(set_up, lines), set_up["workers"]


def _stamp(stream: IO[str], lines: list[tuple[float, str]], started: float) -> None:
    lines.extend((time.monotonic() - started, line) for line in stream)


def parts(set_up: dict[str, Any], lines: list[tuple[float, str]]) -> dict[str, Span]:
    """From metrics.json's steps, which count from the command's own beginning, to spans from the process's start.

    lines: what the command said, with when; the line that a step is done ties the two clocks together.
    """
    steps: dict[str, Span] = {}
    for step in sorted(set_up["steps"], key=lambda step: float(step["from_seconds"])):
        name, begin, seconds = step["step"], step["from_seconds"], step["seconds"]
        before = steps.get(name)  # one for each device: from the first beginning to the last end
        end = max(begin + seconds, before.start_seconds + before.seconds if before else 0.0)
        first = before.start_seconds if before else begin
        steps[name] = Span(first, end - first)
    said = next(when for when, line in lines if line.split()[:2] == LOAD_JOB.split())
    start_up = said - (steps[LOAD_JOB].start_seconds + steps[LOAD_JOB].seconds)
    total = set_up["until_first_round_seconds"]
    train = steps["train"].start_seconds
    shifted = {
        name: Span(start_up + span.start_seconds, span.seconds)
        for name, span in steps.items()
        if span.start_seconds < train
    }
    return {
        START: Span(0.0, start_up),
        **shifted,
        FIRST_ROUND: Span(start_up + train, total - train),
        TOTAL: Span(0.0, start_up + total),
    }


def main() -> int:
    given = arguments(__doc__, repeats=3).parse_args()
    found: dict[str, list[dict[str, Span]]] = {"cold": [], "cached": []}
    workers: dict[str, dict[str, list[float]]] = {"cold": {}, "cached": {}}
    for repeat in range(given.repeats):
        with ThrowawayCluster(AGENTS) as cluster:
            for kind, runs in found.items():
                spans, said = train_once(cluster, cluster.folder / f"result-{kind}")
                runs.append(spans)
                for part in {name for worker in said.values() for name in worker["seconds"]}:
                    slowest = max(worker["seconds"].get(part, 0.0) for worker in said.values())
                    workers[kind].setdefault(part, []).append(slowest)
                say(f"{repeat + 1}/{given.repeats} {kind}: {spans[TOTAL].seconds:.1f} s")
    return _report(found, workers, repeats=given.repeats).show(as_json=given.json)


def _report(
    found: dict[str, list[dict[str, Span]]], workers: dict[str, dict[str, list[float]]], *, repeats: int
) -> Report:
    report = Report(
        title="From `edgeswarm train` to the end of the first round: the digits job on three agents of this machine",
        how=(
            f"Medians of {repeats} runs in seconds (least to most), each cold run on a new cluster, the cached one right "
            "after it. Steps overlap, hence when each begins; those of the workers are the slowest worker's, within "
            "`prepare workers`."
        ),
        columns=("part", "cold from", "cold seconds", "cached from", "cached seconds"),
    )
    for name in found["cold"][0]:
        cells = [name]
        for kind, runs in found.items():
            spans = [run[name] for run in runs if name in run]
            if not spans:
                cells += ["", ""]
                continue
            begin, seconds = Spread.of([s.start_seconds for s in spans]), Spread.of([s.seconds for s in spans])
            cells += [f"{begin.median:.1f}", seconds.shown()]
            report.data.setdefault(kind, {})[name] = {
                "start_seconds": begin.to_json(),
                "seconds": seconds.to_json(),
            }
        report.rows.append(cells)
    for part in workers["cold"]:
        cold, cached = (Spread.of(workers[kind].get(part, [0.0])) for kind in ("cold", "cached"))
        report.rows.append((f"  worker: {part}", "", cold.shown(), "", cached.shown()))
    for kind, measured in workers.items():
        report.data[kind]["workers"] = {part: Spread.of(values).to_json() for part, values in measured.items()}
    total = Spread.of([run[TOTAL].seconds for run in found["cached"]])
    report.expect(f"with cached profiles under {MOST_SECONDS:g} s ({total.shown(1)})", total.median < MOST_SECONDS)
    return report


if __name__ == "__main__":
    run_as_command(main)
