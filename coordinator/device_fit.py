"""From what a kind of hardware measured to what the planner takes: its layers' times and its overheads. Pure.

curves of layers --> fitted, on common batch sizes --+--> x factor --> DeviceProfile
curves of whole stages --> compared with the sums ---+
costs of the process, of its links -------------------------> actions, frames, bytes, optimizer steps
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.model.layer_graph import Layer, LayerGraph
from edgeswarm.profile import DeviceProfile, Overheads

from .curve_fit import FittedCurve, fit_curve
from .process_costs import ProcessCosts
from .profile_cache import Curve
from .stage_checks import CheckedStage, Comparison, Correction, learn_correction

# To choose an action, find its inputs and route its outputs; and what there is to do once a round: to agree on its sums, to
# report it, to begin the next. In handlings of a frame, which each kind of hardware measures. Seen by `bench.outside_model`:
# 1.8 and, where rounds take three seconds and more, up to 36, some of which goes with the seconds. 12 is chosen so as not to be
# too much for short rounds, which weren't looked at.
FRAMES_OF_AN_ACTION = 1.8
FRAMES_OF_A_ROUND = 12.0
# What a byte takes in a training, by what it takes over loopback and by what it takes on a link, each while nothing else is done;
# the larger one counts. In a training it is copied from and to tensors, an owner adds it to its sums, and all of it has left the
# caches: seen at 1000 Mbit/s, 1.5 to 2.1 times as much as on the link, which was a sixth more than over loopback. On a slow link
# whoever only receives wakes up for each few packets, and one that computes finds many of them: seen at 100 Mbit/s, 1.0 to 1.15
# times.
BYTE_IN_A_TRAINING, BYTE_ON_A_LINK = 2.1, 1.1


@dataclass(frozen=True)
class DeviceFit:
    """One kind of hardware. profile: what the planner takes. forward, backward: what was learned from whole stages."""

    profile: DeviceProfile
    forward: Correction
    backward: Correction


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
                tensors=len(trained := trained_sizes(layer_graph, layer)),
                trained_bytes=sum(trained),
                optimizer_state_factor=optimizer_state_factor,
            )
            for layer in layer_graph.layers
        ),
        overheads=Overheads(
            action_seconds=FRAMES_OF_AN_ACTION * costs.frame_seconds,
            frame_seconds=costs.frame_seconds,
            round_seconds=FRAMES_OF_A_ROUND * costs.frame_seconds,
            byte_seconds=max(
                BYTE_IN_A_TRAINING * costs.byte_seconds, BYTE_ON_A_LINK * byte_cpu_seconds * costs.stretch
            ),
            burst_seconds=costs.burst_seconds,
        ),
        layer_errors=tuple(curve_error(curve) for curve in curves),
        sums_error=_sums_error(sums, forward, backward),
        largest_measured=tuple(curve.batch_sizes[-1] for curve in curves),
        rest_parts=tuple(curve.rest_part for curve in curves),
        weights_parts=tuple(curve.weights_part for curve in curves),
    )
    return DeviceFit(profile, forward, backward)


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


def trained_sizes(layer_graph: LayerGraph, layer: Layer, *, but: Collection[str] = ()) -> list[int]:
    """Bytes of each tensor that the optimizer steps on, but for these."""
    specs = (layer_graph.tensors[name] for name in layer.parameters if name not in but)
    return [spec.bytes for spec in specs if spec.trainable]
