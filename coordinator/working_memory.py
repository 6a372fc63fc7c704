"""What layers hold in a worker's memory: what they save, with the gaps between, and what they take while they compute. Pure.

    growth of stages with micro-batches in flight, by what they save  -->  the heap's slack of their layers

    peaks of a layer at some batch sizes, of each kind of hardware  -->  a line  --+-->  the median of the kinds
    peaks of whole stages  ----------------------------------------->  x factor  --+

A kind with little memory may have measured one or two sizes, which make no line: it is asked only where no other kind knows.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.model.layer_graph import Layer, LayerGraph

from .device_fit import trained_sizes
from .profile_cache import Curve
from .stage_checks import CheckedStage

# What the largest layer holds while it computes, times this at most, explains what a whole stage was seen to hold.
MOST_MEMORY_FACTOR = 3.0
# Blocks of many sizes come and go in a heap: saved activations take more than their bytes. The least is set from the same few
# runs as PEER_BYTES in instance.py; what is seen of a few samples says more only where it is more.
LEAST_HEAP_SLACK, MOST_HEAP_SLACK = 1.05, 2.0


@dataclass(frozen=True)
class SeenMemory:
    """What one kind of hardware measured: curves of the layers in their order, and of what was run in one go."""

    curves: Sequence[Curve]
    stages: Mapping[CheckedStage, Curve]


@dataclass(frozen=True)
class _Line:
    """fixed + per_sample x samples, in bytes. known: from several sizes, not a guess from one."""

    fixed: float
    per_sample: float
    known: bool


def heap_slack(layer_graph: LayerGraph, kinds: Sequence[SeenMemory]) -> tuple[float, ...]:
    """By layer, what its saved activations take by their bytes: of the smallest stage with it that was looked at."""
    saved = [layer.saved_bytes for layer in layer_graph.layers]
    seen: dict[tuple[int, int], list[float]] = {}
    for kind in kinds:
        for stage, curve in kind.stages.items():
            of_stage = sum(saved[stage.first_layer : stage.end_layer])
            if curve.held_sample_bytes > 0 and of_stage > 0:
                seen.setdefault((stage.first_layer, stage.end_layer), []).append(curve.held_sample_bytes / of_stage)
    slack = [LEAST_HEAP_SLACK] * len(saved)
    # The smaller ones later: they say it of their own layers.
    for (first, end), factors in sorted(seen.items(), key=lambda each: each[0][0] - each[0][1]):
        factor = min(MOST_HEAP_SLACK, max(LEAST_HEAP_SLACK, statistics.median(factors)))
        slack[first:end] = [factor] * (end - first)
    return tuple(slack)


def working_memory(layer_graph: LayerGraph, kinds: Sequence[SeenMemory]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By layer: bytes for each sample beyond what it saves, and bytes whatever the batch."""
    lines = []
    for kind in kinds:
        alone = [_line(curve, layer_graph, layer) for curve, layer in zip(kind.curves, layer_graph.layers, strict=True)]
        lines.append(_beyond_what_is_saved(layer_graph.layers, alone, kind.stages))
    transient, workspace = [], []
    for of_layer in zip(*lines, strict=True):
        asked = [line for line in of_layer if line.known] or of_layer
        transient.append(round(statistics.median(line.per_sample for line in asked)))
        workspace.append(round(statistics.median(line.fixed for line in asked)))
    return tuple(transient), tuple(workspace)


def _line(curve: Curve, layer_graph: LayerGraph, layer: Layer) -> _Line:
    """What a layer was seen to hold, saved activations included: a convolution's weights are held anew in other orders.

    The smallest batch is left out where there are others: it may be served from what the allocator has lying around, and it
    is the first one, in which the gradients come to be. Where sizes make no line, what is there whatever the batch is taken to be
    the gradients, which are there twice until they are added up.
    """
    if not curve.peak_bytes:
        return _Line(0.0, 0.0, known=False)
    sizes, peaks = np.array(curve.batch_sizes[1:], dtype=float), np.array(curve.peak_bytes[1:], dtype=float)
    if len(sizes) >= 2:
        per_sample, fixed = np.polyfit(sizes, peaks, 1, w=1.0 / np.maximum(peaks, 1.0))
        if fixed > 0 and per_sample > 0:
            return _Line(float(fixed), float(per_sample), known=True)
    gradients = min(2.0 * sum(trained_sizes(layer_graph, layer)), float(curve.peak_bytes[-1]))
    return _Line(gradients, (curve.peak_bytes[-1] - gradients) / curve.batch_sizes[-1], known=len(sizes) >= 2)


def _beyond_what_is_saved(
    layers: Sequence[Layer], lines: Sequence[_Line], stages: Mapping[CheckedStage, Curve]
) -> list[_Line]:
    """The lines without what layers save, so much higher that no large stage was seen to hold more.

    Small stages say little of it: what the allocator has lying around is much of what they hold.
    """
    all_saved = sum(layer.saved_bytes for layer in layers)
    alone = [max(0.0, line.per_sample - layer.saved_bytes) for layer, line in zip(layers, lines, strict=True)]
    factor = 1.0
    for stage, curve in stages.items():
        most = max(alone[stage.first_layer : stage.end_layer])
        saved = sum(layer.saved_bytes for layer in layers[stage.first_layer : stage.end_layer])
        if most > 0 and len(curve.peak_bytes) > 1 and 2 * saved >= all_saved:
            # The slope, since a stage takes something beside it, whatever the batch.
            more = (curve.peak_bytes[-1] - curve.peak_bytes[0]) / (curve.batch_sizes[-1] - curve.batch_sizes[0])
            factor = max(factor, (more - saved) / most)
    factor = min(factor, MOST_MEMORY_FACTOR)
    return [_Line(line.fixed, factor * per_sample, line.known) for line, per_sample in zip(lines, alone, strict=True)]
