"""What workers do for a training step on a processor: on x86 images that lie in memory pixel by pixel (channels last),
convolutions of small images computed otherwise than PyTorch does, and products of matrices by oneDNN where MKL is slow; dropout
with fewer random numbers, and nothing that nobody reads, on all.

    python -m bench.memory_layout [--model resnet_50] [--repeats 7] [--write]

The whole model as one stage, forward and backward by turns in all three ways, in one process with a worker's allocator: CPU
seconds of one thread.
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
from torch.nn import functional

from bench.jobs.paper_models import PAPER_MODELS
from bench.measuring import Report, Spread, arguments, one_thread, ratios, say
from bench.pages import BENCHMARKS_PAGE, markdown_table, write_into
from bench.refit import prepared_job
from edgeswarm.model import export, memory_layout, small_images
from edgeswarm.model import stage as stage_module
from edgeswarm.model.matrix_products import own_products
from edgeswarm.model.probe import random_inputs_for, random_tensors
from edgeswarm.model.stage import StageModule
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT
from edgeswarm_agent.worker.backward import run_backward

JOBS = Path(__file__).parent / "jobs"
SAMPLES = {"mobilenet_v2": 64, "efficientnet_b1": 32, "resnet_50": 8, "bert_small": 8}
DROPPING = ("dropout", "scaled_dot_product_attention")
WARM_UP = 2
PLAIN, CHANNELS_LAST, WORKER = WAYS = ("as PyTorch has it", "channels last", "as a worker has it")
_MEASURE = "--measure-here"


def measure_here(model: str, *, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each step, by way."""
    torch.set_num_threads(1)
    with mock.patch.object(export, "compute_needed_parts"):
        as_written = prepared_job(JOBS / f"{model}.py").layer_graph
    as_computed = prepared_job(JOBS / f"{model}.py").layer_graph
    modules = {}
    for name in WAYS:
        convolve = small_images.convolve if name == WORKER else functional.conv2d
        memory_layout.resolve_for_any_layout.cache_clear()
        dropping = {} if name == WORKER else {op: getattr(torch.ops.aten, op) for op in DROPPING}
        with (
            mock.patch.object(memory_layout, "convolve_small", convolve),
            mock.patch.dict(stage_module._OWN, dropping),
            mock.patch.object(stage_module, "own_products", own_products if name == WORKER else lambda _: {}),
        ):
            graph = as_computed if name == WORKER else as_written
            stage = graph.stage(0, len(graph.layers))
            modules[name] = StageModule(stage, random_tensors(stage, seed=0), fast_layout=name != PLAIN)
    memory_layout.resolve_for_any_layout.cache_clear()
    inputs = {name: random_inputs_for(module, SAMPLES[model], seed=0) for name, module in modules.items()}
    taken: dict[str, list[float]] = {name: [] for name in modules}
    for _ in range(WARM_UP + repeats):
        for name, module in modules.items():
            begin = time.process_time()
            outputs = module.forward(SAMPLES[model], inputs[name], draw=None)
            module.take_batch_statistics()
            run_backward(outputs, [torch.ones_like(output) for output in outputs])
            taken[name].append(time.process_time() - begin)
    return {name: seconds[WARM_UP:] for name, seconds in taken.items()}


def measure(model: str, *, repeats: int) -> dict[str, list[float]]:
    """In a process that is started as a worker is."""
    command = [sys.executable, "-m", "bench.memory_layout", _MEASURE, "--model", model, "--repeats", str(repeats)]
    environment = one_thread({**os.environ, **ALLOCATOR_ENVIRONMENT})
    found: dict[str, list[float]] = json.loads(
        subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    )
    return found


def main() -> int:
    parser = arguments(__doc__, repeats=7)
    parser.add_argument("--model", action="append", default=[], choices=sorted(PAPER_MODELS))
    parser.add_argument(_MEASURE, action="store_true", help="only the seconds, of one model, in this process")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    if given.measure_here:
        print(json.dumps(measure_here(given.model[0], repeats=given.repeats)))
        return 0
    report = Report(
        title="How a training step is computed",
        how="CPU seconds of a forward and a backward, medians of steps by turns (least to most), one thread.",
        columns=("model", "samples", *WAYS, "times as fast as PyTorch", "as channels last alone"),
    )
    for model in given.model or SAMPLES:
        found = measure(model, repeats=given.repeats)
        say(f"{model}: {found}")
        faster = {way: Spread.of(ratios(found[way], found[WORKER])) for way in (PLAIN, CHANNELS_LAST)}
        medians = [f"{statistics.median(found[way]):.3f}" for way in WAYS]
        report.rows.append((model, str(SAMPLES[model]), *medians, *(spread.shown() for spread in faster.values())))
        report.data[model] = {way: spread.to_json() for way, spread in faster.items()}
        for way, spread in faster.items():
            report.expect(f"{model}: no slower than {way}, {spread.median:.2f} times as fast", spread.median >= 0.97)
    if given.write:
        write_into(BENCHMARKS_PAGE, "memory layout", markdown_table(report.columns, report.rows))
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
