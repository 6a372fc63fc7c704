"""What layers hold in a worker's memory: what they save, with the gaps between, and what they take while they compute. Pure.

    growth of stages with micro-batches in flight, by what they save  -->  the heap's slack of their layers

    peaks of a part of the model in one go, at two batch sizes  -->  fixed + per_sample x samples  -->  of the part
    peaks of each of its layers alone, at its largest batch     -->  how that is spread over them

A layer alone says little of what it holds fixed, since its peaks scatter by more than that; parts in one go scatter little, and
kinds of hardware agree on them. A kind with little memory may have tried small batches only: those that went further are asked.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeswarm.model.layer_graph import LayerGraph

from .device_fit import trained_sizes
from .profile_cache import Curve
from .stage_checks import CheckedStage

# What is seen of a whole part and what is seen of its layers explain each other within this factor.
MOST_MEMORY_FACTOR = 3.0
# Blocks of many sizes come and go in a heap: saved activations take more than their bytes. The least is set from the same few
# runs as PEER_BYTES in instance.py; what is seen of a few samples says more only where it is more.
LEAST_HEAP_SLACK, MOST_HEAP_SLACK = 1.05, 2.0
# Over many rounds the gaps grow; a worker gives back what is beyond its plan (agent/worker/held_memory.py), a little later.
GROWTH_OVER_ROUNDS = 1.03
# Of the largest batch that any kind of hardware tried: kinds that came so far are asked.
_LARGE_PART = 4


@dataclass(frozen=True)
class SeenMemory:
    """What one kind of hardware measured: curves of the layers in their order, and of what was run in one go."""

    curves: Sequence[Curve]
    stages: Mapping[CheckedStage, Curve]


@dataclass(frozen=True)
class _Line:
    """fixed + per_sample x samples, in bytes."""

    fixed: float
    per_sample: float


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
    return tuple(GROWTH_OVER_ROUNDS * factor for factor in slack)


def working_memory(
    layer_graph: LayerGraph, kinds: Sequence[SeenMemory], *, slack: Sequence[float]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By layer: bytes for each sample beyond what it saves, and bytes whatever the batch.

    slack: of `heap_slack`, without which what a layer saves is no part of what it takes.
    """
    layers = layer_graph.layers
    saved = [factor * layer.saved_bytes for factor, layer in zip(slack, layers, strict=True)]
    largest = [float(max(trained_sizes(layer_graph, layer), default=0)) for layer in layers]
    alone = [
        _alone([kind.curves[layer.index] for kind in kinds], saved=saved[layer.index], largest=largest[layer.index])
        for layer in layers
    ]
    transient, workspace = list(alone), list(largest)
    for part, line in _parts(kinds).items():
        of_part = slice(part.first_layer, part.end_layer)
        beyond = line.per_sample - sum(saved[of_part])
        transient[of_part] = _scaled(alone[of_part], beyond, least=0.0)
        # A gradient is there beside the sum that it is added to, and some layers hold as much again.
        workspace[of_part] = _scaled(largest[of_part], line.fixed, least=1.0)
    return tuple(round(GROWTH_OVER_ROUNDS * each) for each in transient), tuple(map(round, workspace))


def _alone(curves: Sequence[Curve], *, saved: float, largest: float) -> float:
    """A layer's bytes for each sample beyond those that it saves: at the largest batch, where noise is least."""
    seen = [curve for curve in curves if curve.peak_bytes]
    far = max((curve.batch_sizes[-1] for curve in seen), default=0)
    found = [
        max(0.0, (curve.peak_bytes[-1] - largest) / curve.batch_sizes[-1] - saved)
        for curve in seen
        if _LARGE_PART * curve.batch_sizes[-1] >= far
    ]
    return statistics.median(found) if found else 0.0


def _parts(kinds: Sequence[SeenMemory]) -> dict[CheckedStage, _Line]:
    """Of what was run in one go at two batch sizes or more: the medians of the kinds. What holds others comes first."""
    seen: dict[CheckedStage, list[_Line]] = {}
    for kind in kinds:
        for stage, curve in kind.stages.items():
            if len(curve.peak_bytes) > 1:
                grown = curve.peak_bytes[-1] - curve.peak_bytes[0]
                per_sample = grown / (curve.batch_sizes[-1] - curve.batch_sizes[0])
                fixed = curve.peak_bytes[0] - per_sample * curve.batch_sizes[0]
                seen.setdefault(stage, []).append(_Line(fixed, per_sample))
    ordered = sorted(seen.items(), key=lambda each: each[0].first_layer - each[0].end_layer)
    return {
        stage: _Line(
            statistics.median(line.fixed for line in lines), statistics.median(line.per_sample for line in lines)
        )
        for stage, lines in ordered
    }


def _scaled(values: Sequence[float], most: float, *, least: float) -> list[float]:
    """The same in proportion, the largest one `most`; by a factor from `least` to MOST_MEMORY_FACTOR."""
    largest = max(values)
    factor = max(least, min(MOST_MEMORY_FACTOR, most / largest)) if largest > 0 else 1.0
    return [factor * value for value in values]
