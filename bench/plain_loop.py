"""The training loop that anyone would write, timed round by round: what one agent is compared with.

    python -m bench.plain_loop job.py --micro-batches 1        prints {"ends": [...], "samples": [...], "cpu_seconds": ...}

Samples come from the job's dataset through a DataLoader without workers; loss and optimizer are the job's. With more
than one micro-batch, gradients are accumulated.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from bench.measuring import cpu_seconds
from edgeswarm.job_file import load_job


def train(path: Path, *, micro_batches: int, channels_last: bool) -> dict[str, Any]:
    """Trains the whole job. channels_last: so do images and convolutions' weights lie in memory.

    ends: when each round ended, in seconds; samples, cpu_seconds: of each round.
    """
    job = load_job(path.parent, path.name)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as workers do
    torch.manual_seed(job.seed)
    model = job.model()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = job.optimizer(list(model.named_parameters()))
    # What indexes and has a length is a Dataset to a DataLoader, whatever its class.
    dataset = cast("Dataset[tuple[torch.Tensor, torch.Tensor]]", job.dataset())
    loader = DataLoader(dataset, batch_size=job.batch_size, shuffle=True, num_workers=0)
    ends, samples, cpu = [], [], []
    for _ in range(job.epochs):
        for inputs, targets in loader:
            before = cpu_seconds()
            optimizer.zero_grad()
            images = inputs.to(memory_format=torch.channels_last) if channels_last and inputs.dim() == 4 else inputs
            parts = zip(images.chunk(micro_batches), targets.chunk(micro_batches), strict=True)
            for some_inputs, some_targets in parts:
                loss = job.loss(model(some_inputs), some_targets)
                assert isinstance(loss, torch.Tensor), "the plain loop is for losses that are a mean"
                (loss if micro_batches == 1 else loss * (len(some_inputs) / len(inputs))).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            ends.append(time.perf_counter())
            samples.append(len(inputs))
            cpu.append(cpu_seconds() - before)
    return {"ends": ends, "samples": samples, "cpu_seconds": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true", help="images and convolutions' weights")
    given = parser.parse_args()
    print(json.dumps(train(given.job.resolve(), micro_batches=given.micro_batches, channels_last=given.channels_last)))


if __name__ == "__main__":
    main()
