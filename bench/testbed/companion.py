"""What runs on the other devices of a testbed while one is being profiled: a training of the same model, by itself.

The devices of a testbed share the machine's processors, their caches and its memory's bandwidth. One that computes alone is
faster than beside others, as it is in every training, and by how much depends on what those do: beside a block of MobileNetV2
that fits the caches a device was no slower than alone, and a sixth slower in the training. Real devices know nothing of each
other's caches.

    python companion.py STAGE SECONDS      until it is killed; says `ready` when it trains

STAGE: a file with the whole model as one stage. SECONDS: of the processor for a step, which has as many samples as that needs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

READY = "ready\n"


def main(stage_path: Path, step_seconds: float) -> None:
    import torch  # not above: whoever starts it needs the file's name alone

    from edgeswarm.model.probe import random_inputs_for, random_tensors
    from edgeswarm.model.stage import StageModule
    from edgeswarm.model.stage_graph import StageGraph
    from edgeswarm_agent.worker.backward import run_backward

    torch.set_num_threads(1)
    graph = StageGraph.from_json(json.loads(stage_path.read_text()))
    module = StageModule(graph, random_tensors(graph, seed=0), fast_layout=True)

    def step(samples: int) -> float:
        begin = time.process_time()
        inputs = random_inputs_for(module, samples, seed=0)
        outputs = module.forward(samples, inputs, draw=None)
        module.take_batch_statistics()
        run_backward(outputs, [torch.ones_like(output) for output in outputs])
        return time.process_time() - begin

    samples = 2
    step(samples)
    while step(samples) < step_seconds:
        samples *= 2
    print(READY, end="", flush=True)
    # Its quota is its limit, as it is where a good plan leaves a device little to wait for.
    while True:
        step(samples)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
