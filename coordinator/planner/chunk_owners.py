"""Which replicas of a stage add up the gradients' chunks: those with which the slowest replica is done soonest. Pure.

    owners    an owner sends and takes          the others
    all       2 (G-1)/G of the gradients        the same, in frames from and to all
    few       up to (G-1) times of them         them once, in few frames

Where links are slow all own as much, so that each link carries as little as can be. Where they are fast it is the frames that
cost, most of all a slow device's processor: fast devices own all chunks then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgeswarm.chunk_owners import traffic
from edgeswarm.gradient_pieces import bucket_bytes
from edgeswarm.plan import Plan
from edgeswarm.profile import Overheads, PlanningInstance

# In larger groups so many are looked at, and all.
_MOST_OWNERS = 12


@dataclass(frozen=True, slots=True)
class Replica:
    """A device of a group: its overheads, and bytes per second of its slowest link within the group."""

    overheads: Overheads
    bandwidth: float


def choose_owners(replicas: Sequence[Replica], gradient_bytes: float) -> tuple[int, ...]:
    """Places of the owners, the one that it costs least first; of equals the first. gradient_bytes: of the stage.

    What a device spends on its links and what on its processor are added up: of a stage's last bucket nothing hides either.
    """
    size = len(replicas)
    if size < 3:
        return tuple(range(size))
    order = sorted(range(size), key=lambda place: _seconds(replicas[place], size, 1, gradient_bytes, is_owner=True))
    best, best_seconds = size, float("inf")
    for owners in sorted({*range(1, min(size, _MOST_OWNERS) + 1), size}):
        seconds = max(
            _seconds(replicas[place], size, owners, gradient_bytes, is_owner=rank < owners)
            for rank, place in enumerate(order)
        )
        if seconds < best_seconds:
            best, best_seconds = owners, seconds
    return tuple(order[:best])


def owners_in(
    instance: PlanningInstance, devices: Sequence[str], *, first_layer: int, end_layer: int
) -> tuple[str, ...]:
    """Of a stage with these replicas; empty for one or two, who have no use for any."""
    if len(devices) < 3:
        return ()
    places = [instance.index_of[device] for device in devices]
    rates = instance.network.bandwidth
    replicas = [
        Replica(
            instance.profile_of(device).overheads,
            slowest_link(rates, place, places),
        )
        for device, place in zip(devices, places, strict=True)
    ]
    chosen = choose_owners(replicas, float(instance.model.gradient_bytes(first_layer, end_layer)))
    return tuple(devices[place] for place in chosen)


def slowest_link(rates: Sequence[Sequence[float]], place: int, group: Sequence[int]) -> float:
    """Bytes per second, from one device to the others of its group and from them. rates[from][to]."""
    return min(min(rates[place][peer], rates[peer][place]) for peer in group if peer != place)


def with_owners(instance: PlanningInstance, plan: Plan) -> Plan:
    """The same plan with the owners of each group's chunks."""
    stages = (
        replace(
            stage,
            owners=owners_in(instance, stage.devices, first_layer=stage.first_layer, end_layer=stage.end_layer),
        )
        for stage in plan.stages
    )
    return replace(plan, stages=tuple(stages))


def handling_seconds(overheads: Overheads, *, size: int, owners: int, gradient_bytes: float, is_owner: bool) -> float:
    """Of one replica's processor, for the frames and bytes of all of a stage's gradients. size: replicas of the group."""
    share = traffic(size, owners, is_owner=is_owner)
    pieces = max(1.0, gradient_bytes / bucket_bytes(size))
    frames = pieces * (share.frames + share.waits)
    return frames * overheads.frame_seconds + 2 * share.sent * gradient_bytes * overheads.byte_seconds


def _seconds(replica: Replica, size: int, owners: int, gradient_bytes: float, *, is_owner: bool) -> float:
    """Of one replica's links and processor, for all of the stage's gradients."""
    sent = traffic(size, owners, is_owner=is_owner).sent * gradient_bytes
    handling = handling_seconds(
        replica.overheads, size=size, owners=owners, gradient_bytes=gradient_bytes, is_owner=is_owner
    )
    return sent / replica.bandwidth + handling
