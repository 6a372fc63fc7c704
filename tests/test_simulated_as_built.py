"""What the simulator takes for granted of a worker. The two packages don't import each other; here both are seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgeswarm.gradient_pieces import bucket_bytes
from edgeswarm_agent.worker import gradients
from edgeswarm_agent.worker.gradients import GradientBuckets
from edgeswarm_coordinator.simulator import all_reduce
from edgeswarm_coordinator.simulator.stage_work import replica_works

from .coordinator.simulator.plans import make_instance, make_plan


def test_gradients_are_reduced_as_the_worker_does_it() -> None:
    assert all_reduce.REDUCED_AT_ONCE == gradients.REDUCED_AT_ONCE


@pytest.mark.parametrize("travelling", [1.0, 0.5, 0.01], ids=["as it is", "narrow", "of a table few rows"])
@pytest.mark.parametrize("replicas", [2, 4])
def test_gradients_are_cut_as_the_worker_does_it(replicas: int, travelling: float) -> None:
    """Whatever is sent of them: by what they take in memory."""
    kibibytes = [8000, 3, 300, 900, 2500, 40, 40, 1100, 20000, 12, 4, 4]
    parameters = [(f"p{place}", torch.nn.Parameter(torch.zeros(size * 256))) for place, size in enumerate(kibibytes)]
    buckets = GradientBuckets(parameters, bucket_bytes=bucket_bytes(replicas))
    plain = make_instance([(1.0, 2.0)] * len(kibibytes), devices=replicas, mini_batch=replicas)
    layers = tuple(
        replace(layer, param_bytes=size << 10, gradient_bytes=round(travelling * (size << 10)))
        for layer, size in zip(plain.model.layers, kibibytes, strict=True)
    )
    instance = replace(plain, model=replace(plain.model, layers=layers))
    shares = dict.fromkeys(instance.device_names, 1)
    work = replica_works(instance, make_plan((len(layers), shares, 1), micro_batches=1))[0]
    assert sum(bucket.count for bucket in work.buckets) == sum(map(len, buckets.pieces))
    assert sum(bucket.held_bytes for bucket in work.buckets) == sum(kibibytes) << 10
    assert sum(bucket.gradient_bytes for bucket in work.buckets) == sum(layer.gradient_bytes or 0 for layer in layers)
