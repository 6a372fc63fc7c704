"""What layers hold in a worker's memory: what they save, with the gaps between, and what they take while they compute. Pure.

    growth of stages with micro-batches in flight, by what they save  -->  the heap's slack of their layers
    peaks of each layer alone, of all kinds of hardware  -->  fixed + per_sample x samples, of which it saves a part
    peaks of parts of the model in one go, beyond those  -->  per_sample of their layers: the gaps between blocks; and what their
                                                              layers take together whatever the batch, beyond the largest

A kind with little memory may have tried small batches alone, which say little: those that went further are asked.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from edgeswarm.model.layer_graph import Layer, LayerGraph
from edgeswarm.model.operators import packet_of, words
from edgeswarm.profile import TrainingSettings

from .device_fit import trained_sizes
from .planner.passing_memory import WORKING_GROWTH
from .profile_cache import Curve
from .stage_checks import CheckedStage

# Blocks of many sizes come and go in a heap: saved activations take more than their bytes.
MOST_HEAP_SLACK = 2.0
# They are where something was let go, and some are among what is saved: this part as many by its bytes. Set from the peaks of
# plans over six emulated devices (bench.predictions).
GAPS_OF_SAVED = 0.2
# They never take less: a stage that seems to hold less than this part of them had memory lying around, such as that of the
# gradient of a large table, and says nothing.
_LEAST_HEAP_SLACK = 0.9
# oneDNN makes code for each convolution and each product of matrices, forward and backward, and keeps it for every batch size
# that it meets: 24 MB for one size of MobileNetV2, 40 to 50 of EfficientNet-B1, 25 of ResNet-50, 5 to 8 of BERT-small, seen
# after steps in a process whose free memory was given back.
KERNEL_BYTES = 450_000
_COMPILED = words("conv1d conv2d conv3d convolution linear addmm")
# By which what is saved of the micro-batch at hand grows in a training, where no stage in one go showed the gaps between blocks.
# As seen of MobileNetV2.
USUAL_GROWTH = 1.23
# A stage says it by the samples of a batch that is as large as this.
_LEAST_TOLD_BATCH = 16
# And not by a batch smaller than this which took more than a larger one.
_LEAST_TOLD_SIZE = 4


# Of the largest batch that any kind of hardware tried: kinds that came so far are asked.
_LARGE_PART = 4


@dataclass(frozen=True)
class SeenMemory:
    """What one kind of hardware measured: curves of the layers in their order, and of what was run in one go."""

    curves: Sequence[Curve]
    stages: Mapping[CheckedStage, Curve]


@dataclass(frozen=True)
class WorkingMemory:
    """By layer, what LayerCosts has under these names."""

    transient_bytes: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    joint_workspace_bytes: tuple[int, ...]


def kernel_bytes(layer_graph: LayerGraph) -> tuple[int, ...]:
    """By layer, of the kernels that are made for one batch size."""
    counts = Counter(node.layer for node in layer_graph.nodes if packet_of(node.op) in _COMPILED)
    return tuple(KERNEL_BYTES * counts[layer.index] for layer in layer_graph.layers)


def heap_slack(layer_graph: LayerGraph, kinds: Sequence[SeenMemory]) -> tuple[float, ...]:
    """By layer, what its saved activations take by their bytes: of the smallest stage with it that says something.

    A stage's gaps are mostly where its layers made something that they let go, below what they saved after it.

        BERT's attention    | q | k | made | v | made |   made   | saved |      7 MiB of gaps beside 30 saved
        and what follows    |        saved        |        saved       |        less than 1 beside 41

    Layers alike leave the same gaps, and memory that was lying around makes a stage seem to hold less, never more: of such layers
    the one with the largest is heard.
    """
    saved = [layer.saved_bytes for layer in layer_graph.layers]
    seen: dict[tuple[int, int], list[float]] = {}
    for kind in kinds:
        for stage, curve in kind.stages.items():
            held_input = layer_graph.layers[stage.first_layer].held_input_bytes
            of_stage = sum(saved[stage.first_layer : stage.end_layer]) + held_input
            if curve.held_sample_bytes > _LEAST_HEAP_SLACK * of_stage > 0:
                seen.setdefault((stage.first_layer, stage.end_layer), []).append(curve.held_sample_bytes - of_stage)
    slack = [1.0] * len(saved)
    # The smaller ones later: they say it of their own layers.
    for (first, end), gaps in sorted(seen.items(), key=lambda each: each[0][0] - each[0][1]):
        slack[first:end] = _slack_of(layer_graph.layers[first:end], gaps=max(0.0, statistics.median(gaps)))
    of_alike: dict[str, float] = {}
    for layer in layer_graph.layers:
        of_alike[layer.signature] = max(slack[layer.index], of_alike.get(layer.signature, 1.0))
    return tuple(of_alike[layer.signature] for layer in layer_graph.layers)


def _slack_of(layers: Sequence[Layer], *, gaps: float) -> list[float]:
    """Of each layer of a stage that leaves so many bytes of gaps for a sample."""
    weights = [layer.let_go_bytes + GAPS_OF_SAVED * layer.saved_bytes if layer.saved_bytes else 0.0 for layer in layers]
    gaps_by_weight = gaps / max(1.0, sum(weights))
    return [
        min(MOST_HEAP_SLACK, 1 + gaps_by_weight * weight / layer.saved_bytes) if weight else 1.0
        for layer, weight in zip(layers, weights, strict=True)
    ]


def saved_growth(layer_graph: LayerGraph, kinds: Sequence[SeenMemory]) -> float:
    """By which saved activations of the micro-batch at hand grow for the gaps between blocks, beside what was seen."""
    return 1.0 if _parts_in_one_go(layer_graph, kinds) else USUAL_GROWTH


def working_memory(
    layer_graph: LayerGraph, kinds: Sequence[SeenMemory], *, slack: Sequence[float], tables: Collection[str] = ()
) -> WorkingMemory:
    """What layers take beyond what they save.

    What a part takes whatever the batch, beyond the largest of its layers, is divided among them by what each takes alone, so
    that a stage of few of them has little of it:

        layers alone     | 9 | 28 | 9 | 28 | 7 | 29 | 6 | 7 | 29 | 6 |      ResNet-50's last ones, in MiB
        all in one go    46, of which 29 are one of these
        the last four    29 + a quarter of the other 17

    Inputs that it keeps for its backward are among what a stage saves. slack: of `heap_slack`, without which what a layer saves
    is no part of what it takes. Gaps over many rounds are reckoned in.
    tables: parameters of whose gradient only the rows that were met are ever there (edgeswarm/model/embedding_rows.py).
    """
    transient, workspace = [], []
    joint = [0.0] * len(layer_graph.layers)
    compiled = kernel_bytes(layer_graph)
    for layer, factor in zip(layer_graph.layers, slack, strict=True):
        # A gradient is there beside the sum that it is added to.
        least = float(max(trained_sizes(layer_graph, layer, but=tables), default=0))
        fixed, per_sample = _line([kind.curves[layer.index] for kind in kinds], least=least)
        held = factor * layer.saved_bytes + layer.held_input_bytes
        transient.append(WORKING_GROWTH * max(0.0, per_sample - held))
        # Its kernels were made with the first step of each size, and are counted by themselves.
        workspace.append(round(WORKING_GROWTH * max(least, fixed - compiled[layer.index])))
    saved = [factor * layer.saved_bytes for layer, factor in zip(layer_graph.layers, slack, strict=True)]
    for stage, (fixed, per_sample) in _parts_in_one_go(layer_graph, kinds).items():
        part = slice(stage.first_layer, stage.end_layer)
        held_input = layer_graph.layers[stage.first_layer].held_input_bytes
        missing = per_sample - held_input - _at_worst(saved[part], transient[part])
        transient[part] = [taken + max(0.0, missing) for taken in transient[part]]
        # The layers' own steps have made their kernels by then.
        together = max(0.0, WORKING_GROWTH * fixed - max(workspace[part])) / max(1, sum(workspace[part]))
        joint[part] = [together * taken for taken in workspace[part]]
    return WorkingMemory(tuple(map(round, transient)), tuple(workspace), tuple(map(round, joint)))


def on_top(
    layer_graph: LayerGraph, kinds: Sequence[SeenMemory], *, slack: Sequence[float], transient: Sequence[float]
) -> float:
    """The part of a layer's transient bytes that comes on top of all that is saved: what the whole model in one go says."""
    # By the largest batch alone: a line through small ones, for which there was memory lying around, would say less.
    whole = [
        curve.peak_bytes[-1] / curve.batch_sizes[-1]
        for kind in kinds
        for stage, curve in kind.stages.items()
        if _is_whole(layer_graph, stage) and _is_large(curve)
    ]
    most = max(transient, default=0.0)
    if not whole or not most > 0:
        return TrainingSettings.on_top
    saved = sum(factor * layer.saved_bytes for layer, factor in zip(layer_graph.layers, slack, strict=True))
    beyond = statistics.median(whole) - layer_graph.layers[0].held_input_bytes - saved
    return min(TrainingSettings.on_top, max(0.0, beyond / most))


def _parts_in_one_go(layer_graph: LayerGraph, kinds: Sequence[SeenMemory]) -> dict[CheckedStage, tuple[float, float]]:
    """Parts of the model, and what they take at their peak whatever the batch, and for each sample: medians of the kinds that
    say it.
    """
    seen: dict[CheckedStage, list[tuple[float, float]]] = {}
    for kind in kinds:
        for stage, curve in kind.stages.items():
            if not _is_whole(layer_graph, stage) and _is_large(curve):
                seen.setdefault(stage, []).append(_line_above(_points_of_part(curve)))
    return {
        stage: (statistics.median(fixed for fixed, _ in lines), statistics.median(slope for _, slope in lines))
        for stage, lines in seen.items()
    }


def _points_of_part(curve: Curve) -> list[tuple[float, float]]:
    """Samples and bytes, without one, two or three samples that took more than more of them did, where enough others were tried.

    Kernels for so few are others, and some take much: EfficientNet-B1's layers 28 to 37 took 48 MiB with 2 samples, 24 with 4 and
    42 with 32.
    """
    points = [(float(size), float(peak)) for size, peak in zip(curve.batch_sizes, curve.peak_bytes, strict=True)]
    told = [
        (size, peak)
        for place, (size, peak) in enumerate(points)
        if size >= _LEAST_TOLD_SIZE or all(peak <= later for _, later in points[place + 1 :])
    ]
    return told if len(told) > 1 else points


def _is_whole(layer_graph: LayerGraph, stage: CheckedStage) -> bool:
    return stage.end_layer - stage.first_layer == len(layer_graph.layers)


def _is_large(curve: Curve) -> bool:
    """Whether a stage was run with enough samples to say what one takes."""
    sizes = curve.batch_sizes
    return bool(curve.peak_bytes) and len(sizes) > 1 and sizes[-1] >= _LEAST_TOLD_BATCH


def _at_worst(saved: Sequence[float], transient: Sequence[float]) -> float:
    """Of a sample, while one of these layers computes behind the others."""
    return max(before + taken for before, taken in zip(itertools.accumulate(saved), transient, strict=True))


def _line(curves: Sequence[Curve], *, least: float) -> tuple[float, float]:
    """A layer's bytes whatever the batch, `least` or more, and for each sample with what it saves: of the kinds that went far, by
    medians.

    bytes |        o----------o     the line that no point is above, and that is nearest to all of them: a layer may take the
          |       o                 most of it with two samples already; and a point lies low where the allocator happened to
          | o                       have lying around what was asked for
          +------------------- samples
    """
    seen = [curve for curve in curves if curve.peak_bytes]
    if not seen:
        return least, 0.0
    far = max(curve.batch_sizes[-1] for curve in seen)
    peaks: dict[int, list[int]] = {}
    for curve in (curve for curve in seen if _LARGE_PART * curve.batch_sizes[-1] >= far):
        for batch_size, peak_bytes in zip(curve.batch_sizes, curve.peak_bytes, strict=True):
            peaks.setdefault(batch_size, []).append(peak_bytes)
    points = [(float(size), statistics.median(of_size)) for size, of_size in sorted(peaks.items())]
    if len(points) == 1:
        points.insert(0, (0.0, least))
    fixed, per_sample = _line_above(points)
    return max(least, fixed), per_sample


def _line_above(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of at least two, from left to right: the line that none is above, and that is nearest to all of them."""
    lines = []
    for (size, peak), (later_size, later_peak) in itertools.pairwise(_upper_hull(points)):
        per_sample = max(0.0, (later_peak - peak) / (later_size - size))
        lines.append((max(0.0, *(above - per_sample * at for at, above in points)), per_sample))
    return min(lines, key=lambda line: sum(line[0] + line[1] * size for size, _ in points))


def _upper_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of points from left to right, at least two, those of the lines above all of them."""
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) > 1 and _is_below(hull[-1], hull[-2], point):
            hull.pop()
        hull.append(point)
    return hull


def _is_below(point: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> bool:
    """The line between the two others, or on it."""
    return (point[1] - left[1]) * (right[0] - left[0]) <= (right[1] - left[1]) * (point[0] - left[0])
