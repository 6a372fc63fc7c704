"""Which replicas of a stage add up the gradients' chunks: those with which the slowest replica is done soonest. Pure.

    owners    an owner sends and takes          the others
    all       2 (G-1)/G of the gradients        the same, in frames from and to all
    few       up to (G-1) times of them         them once, in few frames

Where links are slow all own as much, so that each link carries as little as can be. Where they are fast it is the frames that
cost, most of all a slow device's processor: fast devices own all chunks then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from edgeswarm.chunk_owners import Traffic, traffic
from edgeswarm.gradient_pieces import bucket_bytes
from edgeswarm.plan import Plan
from edgeswarm.profile import Overheads, PlanningInstance

# In larger groups so many are looked at, and all.
_MOST_OWNERS = 12


@dataclass(frozen=True, slots=True)
class Replica:
    """A device of a group: its overheads; link, card: bytes per second of its slowest link within the group, and of all its
    links together, which are no more than its fastest one.
    """

    overheads: Overheads
    link: float
    card: float

    def byte_seconds(self, does: Traffic) -> float:
        """Of its links, for each byte of a buffer with which it does so much."""
        return max(does.sent / self.card, does.over_one_link / self.link)


def choose_owners(replicas: Sequence[Replica], gradient_bytes: float) -> tuple[int, ...]:
    """Places of the owners, the one that it costs least first; of equals the first. gradient_bytes: of the stage.

    What a device spends on its links and what on its processor are added up: of a stage's last bucket nothing hides either.
    """
    size = len(replicas)
    if size < 3:
        return tuple(range(size))
    alone = _Carried.of(gradient_bytes, size=size, owners=1, is_owner=True)
    order = sorted(range(size), key=lambda place: alone.seconds(replicas[place]))
    best, best_seconds = size, float("inf")
    for owners in sorted({*range(1, min(size, _MOST_OWNERS) + 1), size}):
        own, others = (
            _Carried.of(gradient_bytes, size=size, owners=owners, is_owner=is_owner) for is_owner in (True, False)
        )
        seconds = max((own if rank < owners else others).seconds(replicas[place]) for rank, place in enumerate(order))
        if seconds < best_seconds:
            best, best_seconds = owners, seconds
    return tuple(order[:best])


def owners_in(
    instance: PlanningInstance, devices: Sequence[str], *, first_layer: int, end_layer: int
) -> tuple[str, ...]:
    """Of a stage with these replicas; empty for one or two, who have no use for any."""
    if len(devices) < 3:
        return ()
    gradient_bytes = float(instance.model.gradient_bytes(first_layer, end_layer))
    chosen = choose_owners(replicas_of(instance, [instance.index_of[device] for device in devices]), gradient_bytes)
    return tuple(devices[place] for place in chosen)


def replicas_of(
    instance: PlanningInstance, group: Sequence[int], *, cards: Sequence[float] | None = None
) -> list[Replica]:
    """Of a group of two or more devices, which are named by their places in the instance. cards: by place, where known."""
    rates = instance.network.bandwidth
    profiles = [instance.profiles[instance.devices[place].profile] for place in group]
    return [
        Replica(
            profile.overheads,
            slowest_link(rates, place, group),
            card_rate(rates, place) if cards is None else cards[place],
        )
        for profile, place in zip(profiles, group, strict=True)
    ]


def slowest_link(rates: Sequence[Sequence[float]], place: int, group: Sequence[int]) -> float:
    """Bytes per second, from one device to the others of its group and from them. rates[from][to]."""
    return min(min(rates[place][peer], rates[peer][place]) for peer in group if peer != place)


def card_rate(rates: Sequence[Sequence[float]], place: int) -> float:
    """Bytes per second that a device sends and takes at most: by its fastest link, the slower of both ways; infinite alone."""
    others = [other for other in range(len(rates)) if other != place]
    out = max((rates[place][other] for other in others), default=math.inf)
    return min(out, max((rates[other][place] for other in others), default=math.inf))


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
    return _Carried.of(gradient_bytes, size=size, owners=owners, is_owner=is_owner).handling_seconds(overheads)


class _Carried(NamedTuple):
    """What a replica does with all of a stage's gradients; frames: of all their pieces, and waits for some."""

    gradient_bytes: float
    does: Traffic
    frames: float

    @classmethod
    def of(cls, gradient_bytes: float, *, size: int, owners: int, is_owner: bool) -> _Carried:
        does = traffic(size, owners, is_owner=is_owner)
        pieces = max(1.0, gradient_bytes / bucket_bytes(size))
        return cls(gradient_bytes, does, pieces * (does.frames + does.waits))

    def seconds(self, replica: Replica) -> float:
        """Of its links and its processor."""
        return self.gradient_bytes * replica.byte_seconds(self.does) + self.handling_seconds(replica.overheads)

    def handling_seconds(self, overheads: Overheads) -> float:
        sent_bytes = self.does.sent * self.gradient_bytes
        return self.frames * overheads.frame_seconds + 2 * sent_bytes * overheads.byte_seconds
