"""Throughput against the number of devices: equal nanos at 100 Mbit/s (Asteroid, Figure 18).

    python -m bench.scaling --folder DIR --model mobilenet_v2        what is missing is measured
    python -m bench.scaling --folder DIR --report [--write]          the table; it and its picture into docs/

    1 nano, 2, 4, 6, 8   -->   profile once   -->   plans   -->   [edgeswarm | data-parallel | pipeline] x repeats

A round has MICRO_BATCHES micro-batches, with each device more each of them has 32 samples more. One JSON file a model, written
after each run; what was broken off goes on where it was, on a machine with the same processor (bench/kept_document.py). Needs
root and nothing else at work on the machine.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cell import FIRST_ROUNDS, measured_seconds, paced_seconds, profile_in_turn, run, written_job
from bench.estimate import OURS, Estimate
from bench.jobs.paper_models import PAPER_MODELS
from bench.kept_document import KeptDocument, in_file_names
from bench.measuring import Report, Spread, folder_arguments, processor, run_as_command, say
from bench.origin import origin, remark, remarks
from bench.pages import BENCHMARKS_PAGE, SCALING_PICTURE, table_and_verdicts, write_into
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import EmulatedDevice, Environment
from bench.testbed.links import HUB_ADDRESS
from bench.testbed.speed import at_one_best
from edgeswarm.errors import EdgeswarmError
from edgeswarm_coordinator.controller import TrainOptions
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.profile_cache import FILE_NAME

FORMAT = "edgeswarm-scaling/1"
COUNTS = (1, 2, 4, 6, 8)
CORES, MEMORY_BYTES, MBPS = 0.12, 1024 * 2**20, 100.0
SAMPLES_PER_DEVICE, MICRO_BATCHES = 32, 8
PLANNERS = (OURS, "data-parallel", "pipeline")
ROUNDS, REPEATS = 4, 3
_WIDTH_INCHES, _HEIGHT_INCHES = 4.5, 3.5  # of a model's picture


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
    unfinished = {(count, repeat) for count in COUNTS for repeat, _ in missing(kept.content, count, repeats=repeats)}
    kept.forget_repeats(unfinished, repeat_of=lambda told: (told["devices"], told["repeat"]))
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
                told = {"error": f"{error.code.word}: {error.message}"}
            document["runs"].append({
                "devices": count, "planner": planner, "repeat": repeat, "samples": batch_size, **origin(), **told
            })  # fmt: skip
            kept.keep()


@dataclass(frozen=True)
class CountResult:
    """What so many devices did. paced: had the machine been at its best pace; measured: as they were. failed: by planner, why."""

    paced: Estimate
    measured: Estimate
    failed: Mapping[str, str]

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]], at_one: Sequence[Mapping[str, Any]]) -> CountResult:
        """at_one: the same, their slowness by one best."""

        def estimate(runs: Sequence[Mapping[str, Any]], seconds: Callable[[dict[str, Any]], float]) -> Estimate:
            done = [told for told in runs if "error" not in told]
            return Estimate.against_the_next(done, lambda told: told["samples"] / seconds(told), method="planner")

        return cls(
            estimate(at_one, paced_seconds),
            estimate(runs, measured_seconds),
            {told["planner"]: told["error"].split(":")[0] for told in runs if "error" in told},
        )

    def shown(self, planner: str, estimate: Estimate, alone: Spread | None) -> str:
        """`97.7 (93.1 to 102.4), x 3.82` by the rate of one device; why there is none; nothing where it didn't run."""
        rate = _rate(estimate, planner)
        if rate is None:
            return self.failed.get(planner, "")
        return rate.shown(1) if alone is None else f"{rate.shown(1)}, x {rate.median / alone.median:.2f}"


def _rate(estimate: Estimate, planner: str) -> Spread | None:
    """Samples per second over the repeats; None where there is no run."""
    found = estimate.rates.get(planner, {})
    return Spread.of(list(found.values())) if found else None


def results(document: Mapping[str, Any]) -> dict[int, CountResult]:
    """By the number of devices, the least first. On one device all plans are the same, and one of them was run."""
    runs = document["runs"]
    at_one = at_one_best(runs)  # each number of devices is a testbed of its own

    def of(count: int, told: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [each for each in told if each["devices"] == count]

    return {
        count: CountResult.of(of(count, runs), of(count, at_one))
        for count in sorted({told["devices"] for told in runs})
    }


def report(documents: Sequence[Mapping[str, Any]]) -> Report:
    others = PLANNERS[1:]
    table = Report(
        title="Throughput against the number of devices",
        how=(
            f"Nanos of {CORES} core at {MBPS:.0f} Mbit/s; samples per second, medians over repeats (least to most), had the "
            "machine been at its best pace in all rounds, and by those of one device; edgeswarm's by each other plan's, of "
            "edgeswarm's run and that of the next repeat, between which the others ran; noise: the one by the other, in the "
            "worst repeat; `equal` as in the matrix, by both estimates; behind them the rates as they were measured. "
            f"A round has {MICRO_BATCHES} micro-batches of {SAMPLES_PER_DEVICE} samples for each device."
        ),
        columns=(
            *("model", "devices", *PLANNERS, "noise", *(f"edgeswarm by {planner}" for planner in others)),
            *(f"{planner}, as measured" for planner in PLANNERS),
        ),
    )
    for document in documents:
        model, found = document["model"], results(document)
        alone = found.get(1)
        paced_alone = None if alone is None else _rate(alone.paced, OURS)
        measured_alone = None if alone is None else _rate(alone.measured, OURS)
        known: list[str] = []
        slower: list[str] = []
        data = table.data[model] = {}
        for count, result in found.items():
            planners = PLANNERS if count > 1 else (OURS,) * len(PLANNERS)
            ratios = {planner: result.paced.speed_up(planner) for planner in others}
            table.rows.append((
                *(model, str(count), *(result.shown(planner, result.paced, paced_alone) for planner in planners)),
                result.paced.shown_noise,
                *(result.paced.shown(ratio, result.measured.speed_up(planner)) for planner, ratio in ratios.items()),
                *(result.shown(planner, result.measured, measured_alone) for planner in planners),
            ))  # fmt: skip
            for planner, ratio in ratios.items():
                if ratio is not None and result.paced.noise is not None:
                    known.append(planner)
                    if ratio.median < 1 and not result.paced.is_equal(ratio, result.measured.speed_up(planner)):
                        slower.append(f"{planner}'s on {count}")
            if OURS in result.failed:
                table.expect(f"{model}: edgeswarm runs on {count} ({result.failed[OURS]})", False)
            table.remarks += [
                f"{model}: {planner} failed on {count} in some run ({why})"
                for planner, why in result.failed.items()
                if planner != OURS and planner in result.paced.rates
            ]
            data[str(count)] = {
                "noise": result.paced.noise,
                "failed": dict(result.failed),
                "edgeswarm_by": {planner: ratio.to_json() for planner, ratio in ratios.items() if ratio is not None},
                **{
                    name: {planner: rate.to_json() for planner in PLANNERS if (rate := _rate(estimate, planner))}
                    for name, estimate in (("at one pace", result.paced), ("as measured", result.measured))
                },
            }
        if known:
            told = f" (than {', '.join(slower)})" if slower else ""
            table.expect(f"{model}: edgeswarm's plan is never slower than another one{told}", not slower)
    table.remarks += remarks({document["model"]: remark(document["runs"]) for document in documents})
    return table


def plot(documents: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Samples per second against the number of devices, at one pace: a picture for each model, a line for each planner, and one
    for as many times one device. The same figures give the same file. Raises ImportError where matplotlib is missing.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (_WIDTH_INCHES * len(documents), _HEIGHT_INCHES)
    with matplotlib.rc_context({"svg.hashsalt": "edgeswarm"}):
        figure, places = pyplot.subplots(ncols=len(documents), figsize=size, layout="constrained", squeeze=False)
        for axes, document in zip(places[0], documents, strict=True):
            found = results(document)
            for planner in PLANNERS:
                rates = {count: _rate(result.paced, planner if count > 1 else OURS) for count, result in found.items()}
                known = {count: rate for count, rate in rates.items() if rate is not None}
                below = [rate.median - rate.least for rate in known.values()]
                above = [rate.most - rate.median for rate in known.values()]
                medians = [rate.median for rate in known.values()]
                axes.errorbar(
                    list(known), medians, yerr=(below, above), marker="o", markersize=4, capsize=2, label=planner
                )
            if 1 in found and (alone := _rate(found[1].paced, OURS)) is not None:
                most = max(found)
                axes.plot((1, most), (alone.median, most * alone.median), color="black", linewidth=0.8, linestyle=":")
            axes.set_title(document["model"])
            axes.set_xlabel("devices")
            axes.set_xticks(list(found))
            axes.set_ylim(bottom=0)
        places[0][0].set_ylabel("samples per second")
        places[0][0].legend(frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def main() -> int:
    parser = folder_arguments(__doc__, repeats=REPEATS)
    parser.add_argument("--write", action="store_true", help="put the table and its picture into docs/")
    parser.add_argument("--model", action="append", default=[], choices=sorted(PAPER_MODELS))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        for model in given.model:
            measure(model, given.folder, repeats=given.repeats)
    paths = [given.folder / f"{model}.json" for model in sorted(PAPER_MODELS)]
    documents = [json.loads(path.read_text()) for path in paths if path.exists()]
    table = report(documents)
    if given.write and documents:
        plot(documents, SCALING_PICTURE)
        write_into(BENCHMARKS_PAGE, "scaling", table_and_verdicts(table))
    return table.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
