"""What it costs to have gradients of weights apart from the rest of a backward (the schedule `zero-bubble`): seconds and memory.

    python -m bench.weights_apart [--model resnet_50] [--repeats 7] [--write]

The first half of a model's layers as one stage, as the first one of a pipeline has it, in a process with a worker's allocator:

    seconds     backwards in one go and apart by turns, of a micro-batch; CPU seconds of one thread
    memory      at the peak, beyond what was held before: three forwards, their backwards, and what those left. In a process each:
                in one go; apart; and apart where waiting gradients lie anywhere, not over what nobody needs any more
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import torch

from bench.jobs.paper_models import PAPER_MODELS
from bench.measuring import Report, Spread, arguments, one_thread, ratios, say
from bench.pages import BENCHMARKS_PAGE, markdown_table, write_into
from bench.refit import prepared_job
from edgeswarm.model import later_weights
from edgeswarm.model.later_weights import LaterWeights
from edgeswarm.model.probe import random_inputs_for, random_like, random_tensors
from edgeswarm.model.stage import StageModule
from edgeswarm.process_memory import anonymous_bytes, peak_anonymous_bytes, reset_peak
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT
from edgeswarm_agent.worker.backward import edges_of, run_backward, run_later

JOBS = Path(__file__).parent / "jobs"
SAMPLES = {"mobilenet_v2": 128, "efficientnet_b1": 64, "resnet_50": 32, "bert_small": 8}
WARM_UP = 2
IN_FLIGHT = 3
AT_ONCE, APART, ELSEWHERE = WAYS = ("in one go", "apart", "apart, anywhere")


def first_half(model: str) -> StageModule:
    torch.set_num_threads(1)
    graph = prepared_job(JOBS / f"{model}.py").layer_graph
    stage = graph.stage(0, len(graph.layers) // 2)
    module = StageModule(stage, random_tensors(stage, seed=0), fast_layout=True)
    for parameter in module.parameters.values():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    return module


def seconds_here(model: str, *, repeats: int) -> dict[str, list[float]]:
    """Of backwards in one go, of all of them apart, and of their weights alone."""
    module = first_half(model)
    inputs = random_inputs_for(module, SAMPLES[model], seed=0)
    taken: dict[str, list[float]] = {AT_ONCE: [], APART: [], "weights": []}
    for _ in range(WARM_UP + repeats):
        for later in (None, LaterWeights()):
            outputs = module.forward(SAMPLES[model], inputs, draw=None, later=later)
            module.take_batch_statistics()
            needing = [output for output in outputs if output.requires_grad]
            gradients = [random_like(output) for output in needing]
            begin = time.process_time()
            run_backward(needing, gradients)
            between = time.process_time()
            if later is None:
                taken[AT_ONCE].append(between - begin)
                continue
            run_later(later, check_halt=lambda: None)
            end = time.process_time()
            taken[APART].append(end - begin)
            taken["weights"].append(end - between)
    return {name: seconds[WARM_UP:] for name, seconds in taken.items()}


def peak_here(model: str, way: str) -> dict[str, list[float]]:
    """MiB beyond what was held before, twice: the first time nothing lies free yet."""
    module = first_half(model)
    if way == ELSEWHERE:
        mock.patch.object(later_weights._Later, "laid_down", lambda _, gradient: gradient).start()  # for this process
    before = anonymous_bytes()
    reset_peak()
    for _ in range(2):
        left = [None if way == AT_ONCE else LaterWeights() for _ in range(IN_FLIGHT)]
        held = []
        for later in left:
            inputs = random_inputs_for(module, SAMPLES[model], seed=0)
            outputs = module.forward(SAMPLES[model], inputs, draw=None, later=later)
            module.take_batch_statistics()
            held.append(
                [(edge, torch.zeros_like(o)) for edge, o in zip(edges_of(outputs), outputs, strict=True) if edge]
            )
            del inputs, outputs
        while held:
            roots = held.pop(0)
            run_backward([edge for edge, _ in roots], [gradient for _, gradient in roots])
            del roots
        for later in left:
            if later is not None:
                run_later(later, check_halt=lambda: None)
    return {way: [(peak_anonymous_bytes() - before) / 2**20]}


def measure(model: str, *arguments_of_it: str) -> dict[str, list[float]]:
    """In a process that is started as a worker is."""
    command = [sys.executable, "-m", "bench.weights_apart", "--model", model, *arguments_of_it]
    environment = one_thread({**os.environ, **ALLOCATOR_ENVIRONMENT})
    found: dict[str, list[float]] = json.loads(
        subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    )
    return found


def main() -> int:
    parser = arguments(__doc__, repeats=7)
    parser.add_argument("--model", action="append", default=[], choices=sorted(PAPER_MODELS))
    parser.add_argument("--seconds-here", action="store_true", help="only the seconds, of one model, in this process")
    parser.add_argument("--peak-here", choices=WAYS, help="only the peak, of one model, in this process")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    if given.seconds_here or given.peak_here:
        model = given.model[0]
        found = peak_here(model, given.peak_here) if given.peak_here else seconds_here(model, repeats=given.repeats)
        print(json.dumps(found))
        return 0
    report = Report(
        title="Gradients of weights apart",
        how=f"CPU seconds of a backward, medians by turns (least to most); MiB of {IN_FLIGHT} micro-batches; one thread.",
        columns=(
            *("model", "samples", "seconds in one go", "times as long apart", "of it weights"),
            *("MiB in one go", "MiB apart", "MiB apart, anywhere"),
        ),
    )
    for model in given.model or SAMPLES:
        seconds = measure(model, "--seconds-here", "--repeats", str(given.repeats))
        peaks = {way: measure(model, "--peak-here", way)[way][0] for way in WAYS}
        say(f"{model}: {seconds} {peaks}")
        longer = Spread.of(ratios(seconds[APART], seconds[AT_ONCE]))
        part = statistics.median(seconds["weights"]) / statistics.median(seconds[APART])
        whole = f"{statistics.median(seconds[AT_ONCE]):.3f}"
        memory = [f"{peaks[way]:.0f}" for way in WAYS]
        report.rows.append((model, str(SAMPLES[model]), whole, longer.shown(), f"{part:.2f}", *memory))
        report.data[model] = {"apart": longer.to_json(), "weights": part, "mebibytes": peaks}
        more = peaks[APART] / peaks[AT_ONCE]
        report.expect(f"{model}: apart it takes {more:.2f} times the memory", more <= 1.1)
    if given.write:
        write_into(BENCHMARKS_PAGE, "weights apart", markdown_table(report.columns, report.rows))
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
