"""One device at work in the simulation: where it is in its round, what it waits for, what its processor owes."""

from __future__ import annotations

from typing import NamedTuple

from edgeswarm.schedule.policy import Action, ActionKind, SchedulePolicy

from .all_reduce import GroupAllReduce
from .network import Stream
from .sample_feed import SampleFeed
from .stage_work import ReplicaWork

FORWARD = ActionKind.FORWARD
BACKWARD = ActionKind.BACKWARD
WEIGHTS = ActionKind.WEIGHTS


class Frame(NamedTuple):
    """What goes to one peer for each micro-batch of a size. sending, receiving: seconds that it takes the processors there."""

    stream: Stream
    receiver: Replica
    size: int
    sending: float
    receiving: float


class Replica:
    """One device at work. outputs, gradients: the frames that it sends for a part of its work, by the part's identity."""

    __slots__ = (
        "action",
        "all_reduce",
        "before_gradients",
        "before_inputs",
        "busy_until",
        "ends",
        "feed",
        "first_slot",
        "free_since",
        "gradients",
        "handling_until",
        "in_flight",
        "index",
        "is_idle",
        "is_ready",
        "least_owed",
        "mine",
        "most_in_flight",
        "outputs",
        "owed",
        "policy",
        "round",
        "sharing_until",
        "stalled",
        "started",
        "waits_for_samples",
        "work",
    )

    def __init__(self, index: int, work: ReplicaWork, rounds: int) -> None:
        self.index = index
        self.work = work
        self.mine = work.micro_batches
        self.round = -1
        self.first_slot = 0  # of the round, in what is kept by round and micro-batch
        self.policy: SchedulePolicy
        self.action: Action
        self.is_idle = False
        self.waits_for_samples = False
        self.started = 0.0
        self.free_since = 0.0
        self.owed = 0.0
        self.least_owed = -work.overheads.burst_seconds
        self.busy_until = 0.0  # with the action under way
        self.handling_until = 0.0  # with the frames of an all-reduce
        self.stalled = 0.0  # seconds that an all-reduce takes from the action under way
        self.sharing_until = 0.0  # and until when it does
        self.ends: list[float] = []  # of its rounds
        self.in_flight = 0
        self.most_in_flight = 0
        self.feed: SampleFeed | None = None
        self.all_reduce: GroupAllReduce | None = None
        self.outputs: dict[int, tuple[Frame, ...]] = {}
        self.gradients: dict[int, tuple[Frame, ...]] = {}
        # Frames still missing, by round * micro-batches + micro-batch.
        self.before_inputs = [0 if part is None else len(part.upstream) for part in work.parts] * rounds
        self.before_gradients = [0 if part is None else len(part.downstream) for part in work.parts] * rounds
        self.is_ready = self._is_ready

    def _is_ready(self, action: Action) -> bool:
        is_late = self.feed is not None and action.kind is FORWARD and not self.feed.has_next
        return not is_late and self._has_frames(action)

    def _has_frames(self, action: Action) -> bool:
        missing = self.before_inputs if action.kind is FORWARD else self.before_gradients
        return missing[self.first_slot + action.micro_batch] == 0

    def next_action(self) -> Action | None:
        """What the worker takes on now: a forward that lacks samples alone only where nothing can come before it."""
        action = self.policy.next_action(self.is_ready)
        if action is None and self.feed is not None:
            awaited = self.policy.awaited()
            if len(awaited) == 1 and self._has_frames(awaited[0]):
                return awaited[0]
        return action


def handling_seconds(work: ReplicaWork) -> float:
    """What a frame spends at one of its ends before it is on its way, or can be used."""
    return work.overheads.frame_seconds


def frame_to(stream: Stream, sender: Replica, receiver: Replica, size: int, *, frames: int) -> Frame:
    """frames: of the worker's, which this one stands for: they follow one another."""
    sending, receiving = (carrying_seconds(end.work, size, frames=frames) for end in (sender, receiver))
    return Frame(stream, receiver, size, sending, receiving)


def carrying_seconds(work: ReplicaWork, size: float, *, frames: int = 1) -> float:
    """What frames of so many bytes together take the processor at one of their ends, which owes it."""
    return work.overheads.frame_seconds * frames + work.overheads.byte_seconds * size


def pay(replica: Replica, now: float) -> float:
    """What is still owed when the device begins to compute: idling since it last did has paid for some.

    Below 0 where it has a quota of its processor, and has idled: the quota's next part can be used at once.
    """
    owed = replica.owed - (now - replica.free_since)
    replica.owed = 0.0
    return max(owed, replica.least_owed)
