"""What a device's memory holds for compiled kernels of other batch sizes than the first one. Pure.

oneDNN makes code for the operations of a layer and the samples that they have at once, and keeps it. A round may have more sizes:

    mini-batch of 2048      | 410 | 410 | 410 | 410 | 408 |     a smaller last micro-batch, of which a replica has less
    873 samples in 2 passes |   437   |   436   |               or as many as of the others
    an epoch's last 1100    | 410 | 410 | 280 |                 likewise

The resident bytes of layers have the kernels of one size (PlanningInstance.resident_bytes); these are those of the others. They
are known for a whole plan only; while it looks for one, a search takes them for granted wherever a micro-batch is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm.samples import micro_batch_sizes, split_in_passes, split_micro_batch


def further_kernel_bytes(instance: PlanningInstance, plan: Plan, *, earlier: Sequence[Plan] = ()) -> dict[str, int]:
    """By device that computes; 0 where it computes all that it has in parts of one size.

    earlier: plans with the same layers that the same workers followed before, whose kernels are still there.
    """
    found = dict.fromkeys(plan.devices, 0)
    if not instance.model.kernel_bytes_before[-1]:
        return found
    least_batch, rest = instance.model.largest_least_batch, instance.training.rest
    for place, stage in enumerate(plan.stages):
        of_one_size = instance.model.kernel_bytes(stage.first_layer, stage.end_layer)
        sizes = sizes_at_once(plan, stage, rest=rest, least_batch=least_batch)
        for before in earlier:
            others = sizes_at_once(before, before.stages[place], rest=rest, least_batch=least_batch)
            for device, of_before in others.items():
                sizes.setdefault(device, set()).update(of_before)
        found.update({device: of_one_size * max(0, len(sizes[device]) - 1) for device in stage.devices})
    return found


def sizes_at_once(plan: Plan, stage: Stage, *, rest: int = 0, least_batch: int = 1) -> dict[str, set[int]]:
    """By replica: the numbers of samples that it takes through the stage's layers at once, in a full round and in an epoch's last
    one, which has `rest` samples; 0 where that is full, too.
    """
    found: dict[str, set[int]] = {device: set() for device in stage.devices}
    of_rest = micro_batch_sizes(rest, micro_batch=plan.micro_batch, least_batch=least_batch) if rest else ()
    for samples in {*plan.micro_batch_sizes(), *of_rest}:
        for device, interval in split_micro_batch(stage.shares, samples, least_batch=least_batch).items():
            if interval.size:
                parts = split_in_passes(interval, at_once=stage.at_once(device), least_batch=least_batch)
                found[device].update(part.size for part in parts)
    return found
