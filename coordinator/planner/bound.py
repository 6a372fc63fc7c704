"""The bound that no plan can beat: every device computes at its best speed all the time, and nothing ever waits.

A device d needs at least c[d, l] seconds for a sample of layer l: its curve's best seconds per sample at any batch size.
However the samples of every layer are spread over the devices, a round of B samples takes T with

    T >= B * sum over l of min over d of (price_d * c[d, l])        for any prices >= 0 that add up to 1

since the right side is what the work costs at least where a device's second costs its price, and T seconds of all
devices cost T. Devices that differ by one factor alone have equality at prices in proportion to their speeds: T is then
the mini-batch over the sum of what the devices do alone. Elsewhere better prices are looked for; every one is a bound.
"""

from __future__ import annotations

import numpy as np

from edgeswarm.model_costs import FloatArray
from edgeswarm.profile import DeviceProfile, PlanningInstance

_STEPS = 200


def round_bound_seconds(instance: PlanningInstance) -> float:
    """Seconds that a round takes at least, whatever the plan; memory and network are not asked."""
    mini_batch = instance.training.mini_batch
    best = {kind: best_seconds_per_sample(profile, mini_batch) for kind, profile in instance.profiles.items()}
    costs = np.array([best[device.profile] for device in instance.devices])
    return mini_batch * _highest_price(costs)


def best_seconds_per_sample(profile: DeviceProfile, mini_batch: int) -> FloatArray:
    """[layer_count]: forward and backward of a sample at the batch size, up to the mini-batch, that suits the layer best."""
    per_sample = [
        np.diff(sum(profile.seconds_before(size))) / size  # forward and backward
        for size in _corners(profile, mini_batch)
    ]
    result: FloatArray = np.min(per_sample, axis=0)
    return result


def _corners(profile: DeviceProfile, mini_batch: int) -> list[int]:
    """Batch sizes of which one is the best: between two corners seconds are a straight line, and line / size is monotone."""
    sizes = {1, mini_batch, *profile.batch_sizes}
    if profile.batch_sizes[0] > 1 and len(profile.batch_sizes) > 1:
        # Before the first size a curve may bend once, where it meets the proportional line.
        sizes |= set(range(1, min(profile.batch_sizes[0], mini_batch) + 1))
    return sorted(size for size in sizes if 1 <= size <= mini_batch)


def _highest_price(costs: FloatArray) -> float:
    """The best of the bounds over prices that were tried. costs: [devices, layers] seconds per sample."""
    totals = costs.sum(axis=1)
    if not np.all(totals > 0):
        return 0.0
    prices = (1.0 / totals) / np.sum(1.0 / totals)
    best = 0.0
    for step in range(_STEPS):
        priced = prices[:, np.newaxis] * costs
        cheapest = np.argmin(priced, axis=0)
        value = float(priced[cheapest, np.arange(costs.shape[1])].sum())
        best = max(best, value)
        # Seconds that each device would get to do at these prices: the busiest one's second is worth more.
        busy = np.bincount(cheapest, weights=costs[cheapest, np.arange(costs.shape[1])], minlength=len(prices))
        prices = prices * np.exp(busy / max(busy.max(), 1e-300) / (step + 2.0))
        prices /= prices.sum()
    return best
