"""How far a layer's time scatters from one moment to the next, by itself and beside the reference work.

    python -m bench.reference_work [--model mobilenet_v2] [--samples 64] [--repeats 20] [--write]

Layers of the model by turns, each timed as a profile times it, with and without a reference, in one process with a worker's
allocator and one thread. Scatter: of the logarithm, one standard deviation, over the repeats.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from bench.jobs.paper_models import PAPER_MODELS
from bench.measuring import Report, arguments, one_thread
from bench.pages import BENCHMARKS_PAGE, markdown_table, write_into
from bench.refit import prepared_job
from edgeswarm_agent.profiler.layer_timing import time_layer
from edgeswarm_agent.profiler.reference_work import Paces, ReferenceWork, steady
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT

JOBS = Path(__file__).parent / "jobs"
LAYERS = 6
_MEASURE = "--measure-here"
ALONE, BESIDE = "alone", "beside"


def measure_here(model: str, *, samples: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each repeat, by layer and way."""
    torch.set_num_threads(1)
    graph = prepared_job(JOBS / f"{model}.py").layer_graph
    chosen = [place * len(graph.layers) // LAYERS for place in range(LAYERS)]
    # One of each for all repeats: a base of its own would be noise of the base.
    paces = {ALONE: Paces(steady), BESIDE: Paces(ReferenceWork().look)}
    taken: dict[str, dict[str, list[float]]] = {
        graph.layers[layer].name: {way: [] for way in paces} for layer in chosen
    }
    for _ in range(repeats):
        for layer in chosen:
            for way, pace in paces.items():
                (timing,) = time_layer(
                    graph.stage(layer, layer + 1),
                    [samples],
                    longest_seconds=0.0,
                    memory_budget=1 << 40,
                    slow_down=1.0,
                    check_halt=lambda: None,
                    paces=pace,
                )
                taken[graph.layers[layer].name][way].append(timing.seconds)
    return taken


def measure(model: str, *, samples: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """In a process that is started as a worker is."""
    words = [_MEASURE, "--model", model, "--samples", str(samples), "--repeats", str(repeats)]
    environment = one_thread({**os.environ, **ALLOCATOR_ENVIRONMENT})
    command = [sys.executable, "-m", "bench.reference_work", *words]
    found: dict[str, dict[str, list[float]]] = json.loads(
        subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    )
    return found


def scatter(seconds: list[float]) -> float:
    """One standard deviation of the logarithm."""
    return statistics.stdev(math.log(each) for each in seconds)


def main() -> int:
    parser = arguments(__doc__, repeats=20)
    parser.add_argument("--model", default="mobilenet_v2", choices=sorted(PAPER_MODELS))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument(_MEASURE, action="store_true", help="only the seconds, in this process")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    if given.measure_here:
        print(json.dumps(measure_here(given.model, samples=given.samples, repeats=given.repeats)))
        return 0
    report = Report(
        title="Layers beside the reference work",
        how="Scatter of a layer's seconds over repeats by turns: one standard deviation of the logarithm.",
        columns=("layer", "alone", "beside the reference work"),
    )
    found = measure(given.model, samples=given.samples, repeats=given.repeats)
    for name, ways in found.items():
        report.rows.append((name, *(f"{scatter(ways[way]):.1%}" for way in (ALONE, BESIDE))))
        report.data[name] = {way: scatter(seconds) for way, seconds in ways.items()}
    middle = {way: statistics.median(scatter(ways[way]) for ways in found.values()) for way in (ALONE, BESIDE)}
    report.expect(
        f"less scatter beside the reference work: {middle[BESIDE]:.1%} instead of {middle[ALONE]:.1%}, medians of the layers",
        middle[BESIDE] <= middle[ALONE],
    )
    if given.write:
        write_into(BENCHMARKS_PAGE, "reference work", markdown_table(report.columns, report.rows))
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
