"""Tied parameters that several stages hold: what the stages' first replicas tell each other before they step.

    stage 0, which owns it    <--- gradient ---   stage 2      one such frame from each other stage that holds it,
                              ---    sum    -->   stage 2      and one back
    first replica             ---    sum    -->   each of the others of its group

One parameter after the other, as the worker does it; whoever comes early waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from edgeswarm.model_costs import ModelCosts
from edgeswarm.plan import Plan

from .replica import Replica


class TiedSum(NamedTuple):
    """stages: those that hold the parameter, ascending; the first one owns it. size: bytes of its gradient."""

    stages: tuple[int, ...]
    size: int


# Whom a frame went to, in which round, and of which sum.
Arrival = tuple[Replica, int, int]


class Send(Protocol):
    """Sends a frame of a sum; `TiedSums.came` is to be called with the arrival when it is there."""

    def __call__(self, sender: Replica, size: int, arrival: Arrival) -> None: ...


def tied_sums(model: ModelCosts, plan: Plan) -> tuple[TiedSum, ...]:
    """What has to be summed up between stages in each round."""
    found = []
    for tensor in model.tied:
        stages = tuple(
            index
            for index, stage in enumerate(plan.stages)
            if any(stage.first_layer <= layer < stage.end_layer for layer in tensor.layers)
        )
        if len(stages) > 1 and tensor.gradient_bytes:
            found.append(TiedSum(stages, tensor.gradient_bytes))
    return tuple(found)


def sent_for_sums(sums: Sequence[TiedSum], plan: Plan) -> dict[str, int]:
    """By device of the plan, the bytes that it sends in a round."""
    sent = dict.fromkeys(plan.devices, 0)
    for tied in sums:
        for stage in tied.stages:
            first, *others = plan.stages[stage].shares
            elsewhere = len(tied.stages) - 1 if stage == tied.stages[0] else 1
            sent[first] += tied.size * (elsewhere + len(others))
    return sent


class TiedSums:
    """All rounds of a simulation. groups: by stage its replicas, in their order. done: called when a replica may step."""

    def __init__(
        self,
        sums: Sequence[TiedSum],
        groups: Sequence[Sequence[Replica]],
        *,
        send: Send,
        done: Callable[[Replica], None],
    ) -> None:
        self._sums = tuple(sums)
        self._groups = groups
        self._send = send
        self._done = done
        self._of_stage = [
            [number for number, tied in enumerate(self._sums) if stage in tied.stages] for stage in range(len(groups))
        ]
        self._places: dict[int, int] = {}  # by replica that is at it: which of its stage's sums
        self._came: Counter[tuple[int, int, int]] = Counter()  # frames, by replica, round and sum

    def involve(self, stage: int) -> bool:
        """Whether a stage has to wait for others before its step."""
        return bool(self._of_stage[stage])

    def size_of(self, number: int) -> int:
        """Bytes of one of the sums."""
        return self._sums[number].size

    def arrive(self, replica: Replica) -> None:
        """A replica whose group has summed up its gradients."""
        self._places[replica.index] = 0
        self._begin(replica)

    def came(self, arrival: Arrival) -> None:
        """A frame is there."""
        replica, round_number, number = arrival
        self._came[replica.index, round_number, number] += 1
        if replica.index in self._places and replica.round == round_number:
            self._go_on(replica)

    def _begin(self, replica: Replica) -> None:
        stage, place = replica.work.stage, self._places[replica.index]
        if place == len(self._of_stage[stage]):
            del self._places[replica.index]
            self._done(replica)
            return
        number = self._of_stage[stage][place]
        tied = self._sums[number]
        if replica is self._groups[stage][0] and stage != tied.stages[0]:
            self._send(replica, tied.size, (self._groups[tied.stages[0]][0], replica.round, number))
        self._go_on(replica)

    def _go_on(self, replica: Replica) -> None:
        """Past the sum that the replica is at, if all has come that it waits for."""
        stage = replica.work.stage
        number = self._of_stage[stage][self._places[replica.index]]
        tied = self._sums[number]
        first, *others = self._groups[stage]
        owns = replica is first and stage == tied.stages[0]
        missing = len(tied.stages) - 1 if owns else 1
        if self._came[replica.index, replica.round, number] < missing:
            return
        if owns:
            for other in tied.stages[1:]:
                self._send(replica, tied.size, (self._groups[other][0], replica.round, number))
        if replica is first:
            for other_replica in others:
                self._send(replica, tied.size, (other_replica, replica.round, number))
        self._places[replica.index] += 1
        self._begin(replica)
