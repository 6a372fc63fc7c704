"""From what a kind of hardware measured to what the planner takes: its layers' times, overheads, and working memory. Pure.

curves of layers --> fitted, on common batch sizes --+--> x factor --> DeviceProfile
curves of whole stages --> compared with the sums ---+
costs of the process, of its links -------------------------> actions, frames, bytes, optimizer steps
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.model.layer_graph import Layer, LayerGraph
from edgeswarm.profile import DeviceProfile, Overheads

from .curve_fit import FittedCurve, fit_curve
from .process_costs import ProcessCosts
from .profile_cache import Curve
from .stage_checks import CheckedStage, Comparison, Correction, learn_correction

# What the largest layer holds while it computes, times this at most, explains what a whole stage was seen to hold.
MOST_MEMORY_FACTOR = 3.0


@dataclass(frozen=True)
class DeviceFit:
    """One kind of hardware. profile: what the planner takes. forward, backward: what was learned from whole stages.

    transient_bytes, workspace_bytes: by layer, what it holds while it computes; for each sample, and whatever the batch.
    """

    profile: DeviceProfile
    forward: Correction
    backward: Correction
    transient_bytes: tuple[int, ...]
    workspace_bytes: tuple[int, ...]


def fit_device(
    layer_graph: LayerGraph,
    *,
    curves: Sequence[Curve],
    stages: Mapping[CheckedStage, Curve],
    costs: ProcessCosts,
    optimizer_state_factor: float,
    byte_cpu_seconds: float = 0.0,
) -> DeviceFit:
    """curves: of the layers in their order, each with a point at least. stages: what was timed in one go.

    byte_cpu_seconds: what a byte on its links was seen to take; the process's own figure, over loopback, is less than that
    wherever a link has small packets.
    """
    sums = summed_profile(curves)
    forward = learn_correction(_comparisons(sums, stages, backward=False))
    backward = learn_correction(_comparisons(sums, stages, backward=True))
    profile = DeviceProfile(
        batch_sizes=sums.batch_sizes,
        forward_seconds=_corrected(forward, sums.batch_sizes, sums.forward_seconds),
        backward_seconds=_corrected(backward, sums.batch_sizes, sums.backward_seconds),
        update_seconds=tuple(
            costs.update_seconds(
                tensors=len(trained := _trained(layer_graph, layer)),
                trained_bytes=sum(trained),
                optimizer_state_factor=optimizer_state_factor,
            )
            for layer in layer_graph.layers
        ),
        overheads=Overheads(
            # To choose an action, find its inputs and route its outputs was seen to take about what a frame's handling takes.
            action_seconds=costs.frame_seconds,
            frame_seconds=costs.frame_seconds,
            byte_seconds=max(costs.byte_seconds, byte_cpu_seconds * costs.stretch),
            burst_seconds=costs.burst_seconds,
        ),
        layer_errors=tuple(curve_error(curve) for curve in curves),
        sums_error=_sums_error(sums, forward, backward),
        largest_measured=tuple(curve.batch_sizes[-1] for curve in curves),
    )
    lines = [_memory_line(curve) for curve in curves]
    return DeviceFit(
        profile,
        forward,
        backward,
        transient_bytes=_transient_bytes(layer_graph.layers, [per_sample for _, per_sample in lines], stages),
        workspace_bytes=tuple(round(fixed) for fixed, _ in lines),
    )


def curve_error(curve: Curve) -> float:
    """By which part a layer's seconds may be off: what its repeats scattered by, or what the fit moved, the larger one.

    Both look at the same noise, within a batch size and between them; root mean squares over the batch sizes.
    """
    forward, backward = sum(curve.forward_seconds), sum(curve.backward_seconds)
    if not forward + backward > 0:
        return 0.0
    moved = (
        _fitted(curve, backward=False).relative_error * forward
        + _fitted(curve, backward=True).relative_error * backward
    ) / (forward + backward)
    errors = curve.relative_errors
    repeats = (sum(error**2 for error in errors) / len(errors)) ** 0.5 if errors else 0.0
    return max(moved, repeats)


def summed_profile(curves: Sequence[Curve]) -> DeviceProfile:
    """The layers' fitted curves, one each, on common batch sizes. Where a curve ended early its line goes on."""
    sizes = sorted({size for curve in curves for size in curve.batch_sizes})
    single = [
        DeviceProfile(
            batch_sizes=curve.batch_sizes,
            forward_seconds=tuple((value,) for value in _fitted(curve, backward=False).seconds),
            backward_seconds=tuple((value,) for value in _fitted(curve, backward=True).seconds),
        )
        for curve in curves
    ]
    return DeviceProfile(
        batch_sizes=tuple(sizes),
        forward_seconds=tuple(tuple(layer.forward(size, 0, 1) for layer in single) for size in sizes),
        backward_seconds=tuple(tuple(layer.backward(size, 0, 1) for layer in single) for size in sizes),
    )


def _fitted(curve: Curve, *, backward: bool) -> FittedCurve:
    return fit_curve(
        curve.batch_sizes, curve.backward_seconds if backward else curve.forward_seconds, curve.relative_errors
    )


def _comparisons(sums: DeviceProfile, stages: Mapping[CheckedStage, Curve], *, backward: bool) -> list[Comparison]:
    found = []
    for stage, curve in stages.items():
        for size, whole in zip(
            curve.batch_sizes, curve.backward_seconds if backward else curve.forward_seconds, strict=True
        ):
            before = sums.seconds_before(size)[1 if backward else 0]
            layers = np.diff(before[stage.first_layer : stage.end_layer + 1])
            found.append(Comparison(stage.first_layer, size, tuple(layers.tolist()), whole))
    return found


def _corrected(
    correction: Correction, sizes: Sequence[int], rows: Sequence[Sequence[float]]
) -> tuple[tuple[float, ...], ...]:
    plain = np.array(rows)
    corrected = np.array([correction.of_layers(size, plain.shape[1]) for size in sizes]) * plain
    for place in range(1, len(sizes)):
        # A factor that falls with the batch must not make more samples cost less, where they don't by themselves.
        rises = plain[place] >= plain[place - 1]
        corrected[place] = np.where(rises, np.maximum(corrected[place], corrected[place - 1]), corrected[place])
    return tuple(map(tuple, corrected.tolist()))


def _sums_error(sums: DeviceProfile, forward: Correction, backward: Correction) -> float:
    """What forward and backward are still off from whole stages, by their seconds."""
    of_forward, of_backward = sum(sums.forward_seconds[-1]), sum(sums.backward_seconds[-1])
    if not of_forward + of_backward > 0:
        return 0.0
    missed = forward.relative_error * of_forward + backward.relative_error * of_backward
    return missed / (of_forward + of_backward)


def _trained(layer_graph: LayerGraph, layer: Layer) -> list[int]:
    """Bytes of each tensor that the optimizer steps on."""
    specs = (layer_graph.tensors[name] for name in layer.parameters)
    return [spec.bytes for spec in specs if spec.trainable]


def _memory_line(curve: Curve) -> tuple[float, float]:
    """(fixed, per sample) bytes that a layer was seen to hold: a convolution's weights are held anew in other orders.

    The smallest batch is left out where there are others: it may be served from what the allocator has lying around, and it
    is the first one, in which the gradients come to be.
    """
    if not curve.peak_bytes:
        return 0.0, 0.0
    sizes, peaks = np.array(curve.batch_sizes[1:], dtype=float), np.array(curve.peak_bytes[1:], dtype=float)
    in_proportion = 0.0, float(curve.peak_bytes[-1] / curve.batch_sizes[-1])
    if len(sizes) < 2:
        return in_proportion
    per_sample, fixed = np.polyfit(sizes, peaks, 1, w=1.0 / np.maximum(peaks, 1.0))
    return (float(fixed), float(per_sample)) if fixed > 0 and per_sample > 0 else in_proportion


def _transient_bytes(
    layers: Sequence[Layer], per_sample: Sequence[float], stages: Mapping[CheckedStage, Curve]
) -> tuple[int, ...]:
    """Per sample, what each layer was seen to hold beyond what it saves, so that no large stage was seen to hold more.

    Small stages say little of it: what the allocator has lying around is much of what they hold.
    """
    all_saved = sum(layer.saved_bytes for layer in layers)
    alone = [max(0.0, peak - layer.saved_bytes) for layer, peak in zip(layers, per_sample, strict=True)]
    factor = 1.0
    for stage, curve in stages.items():
        most = max(alone[stage.first_layer : stage.end_layer])
        saved = sum(layer.saved_bytes for layer in layers[stage.first_layer : stage.end_layer])
        if most > 0 and len(curve.peak_bytes) > 1 and 2 * saved >= all_saved:
            # The slope, since a stage takes something beside it, whatever the batch.
            more = (curve.peak_bytes[-1] - curve.peak_bytes[0]) / (curve.batch_sizes[-1] - curve.batch_sizes[0])
            factor = max(factor, (more - saved) / most)
    factor = min(factor, MOST_MEMORY_FACTOR)
    return tuple(round(factor * transient) for transient in alone)
