"""What more samples at once than anybody measured may cost beside what curves go on with. Pure.

    seconds per sample     _ . -   expected: a little more with each doubling
              '-.______ ----       the curve: a straight line
                       |
                  the largest size that was measured

A straight line goes on as it was; but larger tensors leave caches behind. On a Xeon MobileNetV2 took 1.10 times the processor
seconds per sample with 512 at once that it took with 256, and 1.08 to 1.19 times with 1024; EfficientNet-B1 with 512 as with 256.
So a plan for which that is a guess gives way to one that is about as fast within what was measured. Predictions stay the curves'.
"""

from __future__ import annotations

import numpy as np

from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.plan import Plan
from edgeswarm.profile import DeviceProfile, PlanningInstance

# Of a layer's seconds, for each doubling beyond its largest measured size.
GROWTH_OF_A_DOUBLING = 0.05


def slower_beyond(profile: DeviceProfile, samples: IntArray, *, first_layer: int, end_layer: int) -> FloatArray:
    """[samples]: by which factor a device's seconds for layers [first_layer, end_layer) are expected to be above its curves.

    1 where nothing tells which sizes were measured. samples: at once, of each entry.
    """
    factor: FloatArray = np.ones(len(samples))
    measured = np.array(profile.largest_measured[first_layer:end_layer])
    if not measured.size or samples.max(initial=0) <= measured.min():
        return factor
    before = sum(profile.seconds_before(int(measured.max())))
    seconds = np.diff(before)[first_layer:end_layer]
    whole = float(seconds.sum()) or 1.0
    for size in np.unique(measured):
        part = float(seconds[measured == size].sum()) / whole
        factor += GROWTH_OF_A_DOUBLING * part * np.log2(np.maximum(samples / size, 1.0))
    return factor


def most_beyond(instance: PlanningInstance, plan: Plan) -> float:
    """Of a plan's devices the one that is expected to be slowest beside its curves: by which factor."""
    return max(
        float(
            slower_beyond(
                instance.profile_of(device),
                np.array([stage.at_once(device)]),
                first_layer=stage.first_layer,
                end_layer=stage.end_layer,
            )[0]
        )
        for stage in plan.stages
        for device in stage.devices
    )
