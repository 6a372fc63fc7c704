"""EDDL's plan (SEC 2021): balanced data parallelism. Every device holds the whole model, faster ones take more samples.

Where the memory holds fewer samples than the mini-batch, gradients add up over smaller micro-batches.
"""

from __future__ import annotations

from edgeswarm.profile import PlanningInstance

from ..asteroid import FoundPipeline, search


def data_parallel(instance: PlanningInstance, micro_batch: int, slowest_round: float) -> FoundPipeline | None:
    """One stage over all devices, the samples shared by speed under memory; one that cannot hold the model idles."""
    return search(instance, micro_batch=micro_batch, slowest_round=slowest_round, most_stages=1)
