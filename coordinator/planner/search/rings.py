"""In what order a group's all-reduce goes around: the ring whose slowest link is fastest.

a --- b      links of 10, a-c and b-d of 1: the ring a c b d has a link of 1, the ring a b c d none
|     |
d --- c
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

# Groups up to this size are tried in every order; larger ones go to the fastest next each time.
_MOST_TRIED = 6


def ring_order(devices: Sequence[int], links: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """The devices in ring order, the first of them first; of equals the order that is closest to ascending.

    links[from][to]: bytes per second.
    """
    ordered = tuple(sorted(devices))
    rates = {links[a][b] for a in ordered for b in ordered if a != b}
    if len(ordered) < 3 or len(rates) == 1:
        return ordered
    if len(ordered) > _MOST_TRIED:
        return _to_the_fastest_next(ordered, links)
    rings = ((ordered[0], *rest) for rest in itertools.permutations(ordered[1:]))
    return max(rings, key=lambda ring: slowest_of_ring(ring, links))


def slowest_of_ring(ring: Sequence[int], links: Sequence[Sequence[float]]) -> float:
    """Bytes per second of the slowest link from each device to its successor, from the last to the first."""
    return min(links[a][b] for a, b in zip(ring, [*ring[1:], ring[0]], strict=True))


def _to_the_fastest_next(ordered: tuple[int, ...], links: Sequence[Sequence[float]]) -> tuple[int, ...]:
    ring = [ordered[0]]
    left = list(ordered[1:])
    while left:
        here = ring[-1]
        following = max(left, key=lambda device: links[here][device])
        left.remove(following)
        ring.append(following)
    found = tuple(ring)
    return found if slowest_of_ring(found, links) > slowest_of_ring(ordered, links) else ordered
