"""What images that lie in memory pixel by pixel (channels last) do for a training step, as workers have them on x86 processors.

    python -m bench.memory_layout [--model resnet_50] [--repeats 7] [--write]

The whole model as one stage, forward and backward by turns in both layouts, in one process with a worker's allocator: CPU
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

import torch

from bench.jobs.paper_models import PAPER_MODELS
from bench.measuring import Report, Spread, arguments, one_thread, ratios, say
from bench.pages import BENCHMARKS_PAGE, markdown_table, write_into
from bench.refit import prepared_job
from edgeswarm.model.probe import random_inputs_for, random_tensors
from edgeswarm.model.stage import StageModule
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT
from edgeswarm_agent.worker.backward import run_backward

JOBS = Path(__file__).parent / "jobs"
SAMPLES = {"mobilenet_v2": 64, "efficientnet_b1": 32, "resnet_50": 8, "bert_small": 8}
WARM_UP = 2
_MEASURE = "--measure-here"


def measure_here(model: str, *, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each step, by layout."""
    torch.set_num_threads(1)
    graph = prepared_job(JOBS / f"{model}.py").layer_graph
    stage = graph.stage(0, len(graph.layers))
    tensors = random_tensors(stage, seed=0)
    modules = {
        name: StageModule(stage, {key: tensor.clone() for key, tensor in tensors.items()}, fast_layout=fast)
        for name, fast in (("plain", False), ("worker", True))
    }
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
        title="How images lie in memory",
        how="CPU seconds of a forward and a backward, medians of steps by turns (least to most), one thread.",
        columns=("model", "samples", "as PyTorch has it", "as a worker has it", "times as fast"),
    )
    for model in given.model or SAMPLES:
        found = measure(model, repeats=given.repeats)
        say(f"{model}: {found}")
        faster = Spread.of(ratios(found["plain"], found["worker"]))
        plain, worker = (statistics.median(found[name]) for name in ("plain", "worker"))
        report.rows.append((model, str(SAMPLES[model]), f"{plain:.3f}", f"{worker:.3f}", faster.shown()))
        report.data[model] = faster.to_json()
        report.expect(f"{model}: no slower, {faster.median:.2f} times as fast", faster.median >= 0.97)
    if given.write:
        write_into(BENCHMARKS_PAGE, "memory layout", markdown_table(report.columns, report.rows))
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
