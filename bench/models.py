"""Export and split of the models that people bring, at full size, each in a fresh process on one core.

    python -m bench.models
    python -m bench.models --model efficientnet_b1 --repeats 3

Seconds are of the core (user and system), so that other work on the machine disturbs them little. Export: torch.export, lowering,
cutting and the costs of all layers. Split: four stages out of the graph, to JSON, read back as a device reads them (its checks
included), and built with made-up weights. Exact: loss, gradients and buffers of a batch of three in three stages
against the unsplit model, to the bit (running statistics to a unit in the last place).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.measuring import Report, Spread, arguments, cpu_seconds, say, two_cores

STAGES = 4
MOST_SECONDS = 20.0
#: The model that `edgeswarm plan` must have exported and split in well under MOST_SECONDS.
TIMED = "efficientnet_b1"


@dataclass(frozen=True)
class Measured:
    parameters: int
    nodes: int
    layers: int
    distinct: int
    graph_kib: float
    least_batch: int
    export_seconds: float
    split_seconds: float
    differing: list[str] | None


def measure(name: str, *, compare: bool) -> Measured:
    """One model in this process, which it keeps on one core."""
    os.sched_setaffinity(0, {two_cores()[0]})
    import torch

    from edgeswarm.model.export import export_model
    from edgeswarm.model.probe import random_tensors
    from edgeswarm.model.stage import StageModule
    from edgeswarm.model.stage_graph import StageGraph
    from tests.edgeswarm.model.exactness import differences
    from tests.edgeswarm.model.pipeline import bounds
    from tests.zoo import ZOO

    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = ZOO[name].full
    model = size.make().train()
    args, kwargs = size.batch(4)
    started = cpu_seconds()
    exported = export_model(model, args, kwargs)
    exported_at = cpu_seconds()
    graph = exported.layer_graph
    texts = [json.dumps(graph.stage(first, end).to_json()) for first, end in bounds(graph, STAGES)]
    split_seconds = cpu_seconds() - exported_at
    for text in texts:
        checking = cpu_seconds()
        stage = StageGraph.from_json(text)
        split_seconds += cpu_seconds() - checking
        tensors = random_tensors(stage, seed=0)
        building = cpu_seconds()
        StageModule(stage, tensors)
        split_seconds += cpu_seconds() - building
    return Measured(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        nodes=len(graph.nodes),
        layers=len(graph.layers),
        distinct=len({layer.signature for layer in graph.layers}),
        graph_kib=sum(len(text) for text in texts) / 1024,
        least_batch=graph.least_batch(0, len(graph.layers)),
        export_seconds=exported_at - started,
        split_seconds=split_seconds,
        differing=differences(model, exported, size, batch=3, stages=3) if compare else None,
    )


def _fresh(name: str, *, compare: bool) -> Measured:
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, name, compare=compare).result()


def main() -> int:
    from tests.zoo import ZOO

    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--model", action="append", choices=list(ZOO), help="this one only; may be given again")
    options = parser.parse_args()
    report = Report(
        title="Models at full size",
        how="CPU seconds on one core, one thread, a fresh process for each; imports and building the model are left out.",
        columns=(
            "model",
            "M parameters",
            "layers",
            "distinct",
            "nodes",
            "KiB",
            "least batch",
            "export",
            "split",
            "exact",
        ),
    )
    for name in options.model or ZOO:
        say(f"{name} ...")
        runs = [_fresh(name, compare=turn == 0) for turn in range(options.repeats)]
        _add(report, name, runs)
    return report.show(as_json=options.json)


def _add(report: Report, name: str, runs: list[Measured]) -> None:
    first = runs[0]
    export = Spread.of([run.export_seconds for run in runs])
    split = Spread.of([run.split_seconds for run in runs])
    differing = first.differing or []
    report.rows.append(
        (
            name,
            f"{first.parameters / 1e6:.1f}",
            str(first.layers),
            str(first.distinct),
            str(first.nodes),
            f"{first.graph_kib:.0f}",
            str(first.least_batch),
            export.shown(1),
            split.shown(2),
            "yes" if not differing else f"no: {len(differing)} differ",
        )
    )
    numbers: dict[str, Any] = {
        "parameters": first.parameters,
        "layers": first.layers,
        "distinct": first.distinct,
        "nodes": first.nodes,
        "graph_kib": first.graph_kib,
        "least_batch": first.least_batch,
        "export_cpu_seconds": export.to_json(),
        "split_cpu_seconds": split.to_json(),
        "differing": differing,
    }
    report.data[name] = numbers
    report.expect(f"{name} in three stages has the bits of the unsplit model", not differing)
    if name == TIMED:
        report.expect(
            f"{name} is exported and split in under {MOST_SECONDS:.0f} CPU seconds",
            export.median + split.median < MOST_SECONDS,
        )


if __name__ == "__main__":
    sys.exit(main())
