"""Rooms: devices that are linked with each other faster than with the rest. Planners of server clusters see servers there."""

from __future__ import annotations

from edgeswarm.profile import PlanningInstance

from ..asteroid import memory_order


def rooms_of(instance: PlanningInstance) -> tuple[tuple[int, ...], ...]:
    """Places of the devices, room by room, those of each in descending order of memory, the room of the first one first.

    Two devices are in one room where some way from one to the other is over links that are, in both directions, faster
    than the slowest link of all. One room where all links are alike.
    """
    order = memory_order(instance)
    matrix = instance.network.matrix
    slowest = instance.network.slowest((a, b) for a in order for b in order if a != b)
    left = list(order)
    rooms = []
    while left:
        room = [left.pop(0)]
        for place in room:  # grows meanwhile
            near = [other for other in left if min(matrix[place, other], matrix[other, place]) > slowest * 1.01]
            room.extend(near)
            left = [other for other in left if other not in near]
        rooms.append(tuple(sorted(room, key=order.index)))
    if all(len(room) == 1 for room in rooms):
        return (tuple(order),)
    return tuple(rooms)
