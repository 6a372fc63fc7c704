"""Throughput against the number of devices: equal nanos at 100 Mbit/s (Asteroid, Figure 18).

    python -m bench.scaling --folder DIR --model mobilenet_v2        what is missing is measured
    python -m bench.scaling --folder DIR --report [--write]          the table; into docs/benchmarks.md

    1 nano, 2, 4, 6, 8   -->   profile once   -->   plans   -->   [edgeswarm | data-parallel | pipeline] x repeats

A round has MICRO_BATCHES micro-batches, with each device more each of them has 32 samples more. One JSON file a model, written
after each run; what was broken off goes on where it was, on a machine with the same processor (bench/kept_document.py). Needs
root and nothing else at work on the machine.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cell import FIRST_ROUNDS, measured_seconds, paced_seconds, profile_in_turn, run, written_job
from bench.jobs.paper_models import PAPER_MODELS
from bench.kept_document import KeptDocument, in_file_names
from bench.measuring import Report, Spread, folder_arguments, processor, run_as_command, say
from bench.origin import origin, remark, remarks
from bench.pages import BENCHMARKS_PAGE, table_and_verdicts, write_into
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import EmulatedDevice, Environment
from bench.testbed.links import HUB_ADDRESS
from edgeswarm.errors import EdgeswarmError
from edgeswarm_coordinator.controller import TrainOptions
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.profile_cache import FILE_NAME

FORMAT = "edgeswarm-scaling/1"
COUNTS = (1, 2, 4, 6, 8)
CORES, MEMORY_BYTES, MBPS = 0.12, 1024 * 2**20, 100.0
SAMPLES_PER_DEVICE, MICRO_BATCHES = 32, 8
PLANNERS = ("edgeswarm", "data-parallel", "pipeline")
ROUNDS, REPEATS = 4, 3


def nanos(count: int) -> Environment:
    devices = (EmulatedDevice(f"nano-{number}", CORES, MEMORY_BYTES, MBPS) for number in range(1, count + 1))
    return Environment(f"{count}-nanos", tuple(devices))


def measure(model: str, folder: Path, *, repeats: int) -> None:
    """Fills the model's file; needs a testbed only where a run is missing."""
    kept = KeptDocument(
        folder / f"{model}.json",
        new={"format": FORMAT, "model": model, "runs": []},
        is_complete=lambda document: not any(missing(document, count, repeats=repeats) for count in COUNTS),
    )
    for count in COUNTS:
        wanted = missing(kept.content, count, repeats=repeats)
        if wanted:
            _measure_count(kept, count, wanted)


def missing(document: Mapping[str, Any], count: int, *, repeats: int) -> list[tuple[int, str]]:
    """(repeat, planner) still to run on so many devices; on one device all plans are the same."""
    done = {(told["repeat"], told["planner"]) for told in document["runs"] if told["devices"] == count}
    planners = PLANNERS if count > 1 else PLANNERS[:1]
    return [(repeat, name) for repeat in range(repeats) for name in planners if (repeat, name) not in done]


def _measure_count(kept: KeptDocument, count: int, wanted: Sequence[tuple[int, str]]) -> None:
    document = kept.content
    model = document["model"]
    folder = kept.path.with_suffix(f".{count}.work")
    shutil.rmtree(folder, ignore_errors=True)
    known = kept.path.with_suffix(f".{in_file_names(processor())}.profiles.json")
    with EmulatedLan(nanos(count)) as bed, BedCluster(bed, folder=folder) as cluster:
        batch_size = count * SAMPLES_PER_DEVICE * MICRO_BATCHES
        job = written_job(folder / f"job-{count}", model, rounds=FIRST_ROUNDS + ROUNDS, batch_size=batch_size)
        options = TrainOptions(job_path=job, discovery=cluster.discovery(), listen_address=HUB_ADDRESS)
        say(f"{model}, {count} devices: profiles")
        cache = cluster.folders.cache_dir / FILE_NAME
        if known.exists():  # of one nano as of eight
            cache.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(known, cache)
        instance = profile_in_turn(cluster, options).instance
        shutil.copy(cache, known)
        for repeat, planner in wanted:
            say(f"{model}, {count} devices: {planner}, {repeat + 1}")
            told: dict[str, Any]
            try:
                plan = make_plan(instance, planner, micro_batch=count * SAMPLES_PER_DEVICE)
                number = len(document["runs"])
                told = run(cluster, options, plan, folder / f"run-{number}-{os.getpid()}")
            except EdgeswarmError as error:
                told = {"error": f"{error.code.value}: {error.message}"}
            document["runs"].append({
                "devices": count, "planner": planner, "repeat": repeat, "samples": batch_size, **origin(), **told
            })  # fmt: skip
            kept.keep()


@dataclass(frozen=True)
class Rate:
    """Samples per second over the repeats. paced: had the machine been at its best pace; measured: as they were."""

    paced: Spread
    measured: Spread

    def beside(self, alone: Rate | None) -> tuple[str, str]:
        """`97.7 (93.1 to 102.4), x 3.82`, at one pace and as measured: each with how many times that of one device it is."""
        if alone is None:
            return self.paced.shown(1), self.measured.shown(1)
        both = (self.paced, alone.paced), (self.measured, alone.measured)
        paced, measured = (f"{mine.shown(1)}, x {mine.median / its.median:.2f}" for mine, its in both)
        return paced, measured

    def to_json(self) -> dict[str, Any]:
        return {"at one pace": self.paced.to_json(), "as measured": self.measured.to_json()}


def rates(document: Mapping[str, Any]) -> dict[tuple[int, str], Rate | str]:
    """By count and planner: samples per second of the median rounds, one value a repeat; or why there is none."""
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    failed: dict[tuple[int, str], str] = {}
    for told in document["runs"]:
        key = told["devices"], told["planner"]
        if "error" in told:
            failed[key] = told["error"].split(":")[0]
        else:
            both = told["samples"] / paced_seconds(told), told["samples"] / measured_seconds(told)
            found.setdefault(key, []).append(both)
    spreads = {key: Rate(*(Spread.of(values) for values in zip(*both, strict=True))) for key, both in found.items()}
    return {**failed, **spreads}


def report(documents: Sequence[Mapping[str, Any]]) -> Report:
    table = Report(
        title="Throughput against the number of devices",
        how=(
            f"Nanos of {CORES} core at {MBPS:.0f} Mbit/s; samples per second, medians over repeats (least to most), had the "
            "machine been at its best pace in all rounds, and by those of one device; behind them both as they were measured. "
            f"A round has {MICRO_BATCHES} micro-batches of {SAMPLES_PER_DEVICE} samples for each device."
        ),
        columns=("model", "devices", *PLANNERS, *(f"{planner}, as measured" for planner in PLANNERS)),
    )
    for document in documents:
        found = rates(document)
        alone = found.get((1, PLANNERS[0]))
        one_device = alone if isinstance(alone, Rate) else None
        for count in sorted({count for count, _ in found}):
            # On one device all plans are the same.
            row = [found.get((count, planner if count > 1 else PLANNERS[0]), "") for planner in PLANNERS]
            shown = [rate.beside(one_device) if isinstance(rate, Rate) else (rate, rate) for rate in row]
            at_one_pace, measured = zip(*shown, strict=True)
            table.rows.append((document["model"], str(count), *at_one_pace, *measured))
        table.data[document["model"]] = {
            f"{count} {planner}": rate.to_json() if isinstance(rate, Rate) else rate
            for (count, planner), rate in found.items()
        }
    table.remarks += remarks({document["model"]: remark(document["runs"]) for document in documents})
    return table


def main() -> int:
    parser = folder_arguments(__doc__, repeats=REPEATS)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--model", action="append", default=[], choices=sorted(PAPER_MODELS))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        for model in given.model:
            measure(model, given.folder, repeats=given.repeats)
    paths = [given.folder / f"{model}.json" for model in sorted(PAPER_MODELS)]
    documents = [json.loads(path.read_text()) for path in paths if path.exists()]
    table = report(documents)
    if given.write:
        write_into(BENCHMARKS_PAGE, "scaling", table_and_verdicts(table))
    return table.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
