"""What numbers cost that are too small for all of a float's digits (below 1e-38, denormal ones): workers take them for zeros.

    python -m bench.tiny_numbers [--model efficientnet_b1] [--repeats 5] [--write]

A whole model in PyTorch alone, its first steps on made-up samples, by turns with such numbers kept and taken for zeros; CPU
seconds of one thread. Where a deep network's first gradients die on their way to its first layers they are such numbers, and each
takes an Intel processor some hundred cycles.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time

import torch
from torch import nn

from bench.jobs.paper_models import PAPER_MODELS
from bench.measuring import Report, Spread, arguments, ratios
from bench.memory_layout import SAMPLES
from bench.pages import BENCHMARKS_PAGE, markdown_table, write_into
from bench.peers.blocks import optimizer, samples, whole_model
from bench.peers.own_process import in_own_process
from bench.peers.rounds import laid_out, memory_format

SMALLEST = torch.finfo(torch.float32).smallest_normal
WARM_UP = 1


def measure(model: str, repeats: int) -> tuple[dict[bool, list[float]], float]:
    """CPU seconds of each step by whether small numbers are taken for zeros; and the part of the gradients' values that are such
    where they are kept.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss()
    inputs, targets = samples(model, SAMPLES[model], memory_format=memory_format(True))
    kept = laid_out(whole_model(model), True)
    networks = {False: kept, True: copy.deepcopy(kept)}
    steps = {zeros: optimizer(network) for zeros, network in networks.items()}
    taken: dict[bool, list[float]] = {zeros: [] for zeros in networks}
    try:
        for _ in range(WARM_UP + repeats):
            for zeros, network in networks.items():
                torch.set_flush_denormal(zeros)
                begin = time.process_time()
                steps[zeros].zero_grad()
                loss(network(inputs), targets).backward()
                steps[zeros].step()
                taken[zeros].append(time.process_time() - begin)
    finally:
        torch.set_flush_denormal(False)
    small = count = 0
    for parameter in kept.parameters():
        if parameter.grad is not None:
            small += int(((parameter.grad != 0) & (parameter.grad.abs() < SMALLEST)).sum())
            count += parameter.numel()
    return {zeros: seconds[WARM_UP:] for zeros, seconds in taken.items()}, small / count


def main() -> int:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--model", action="append", default=[], choices=sorted(PAPER_MODELS))
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    report = Report(
        title="Numbers too small for all of a float's digits",
        how="CPU seconds of a step, medians of steps by turns in one process (least to most), one thread.",
        columns=("model", "samples", "of the gradients", "kept", "taken for zeros", "times as fast"),
    )
    for model in given.model or SAMPLES:
        taken, part = in_own_process(measure, model, given.repeats)
        faster = Spread.of(ratios(taken[False], taken[True]))
        medians = [f"{statistics.median(taken[zeros]):.3f}" for zeros in (False, True)]
        report.rows.append((model, str(SAMPLES[model]), f"{part:.1%}", *medians, faster.shown()))
        report.data[model] = {"part": part, "times": faster.to_json()}
        report.expect(f"{model}: no slower with zeros, {faster.median:.2f} times as fast", faster.median >= 0.95)
    if given.write:
        write_into(BENCHMARKS_PAGE, "tiny numbers", markdown_table(report.columns, report.rows))
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
