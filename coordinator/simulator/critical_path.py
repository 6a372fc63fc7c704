"""What a round waits for: the chain of causes from the end of the round back to its beginning.

stage 0  F F . . . . . B B step        walked from right to left: each thing that begins is put down to what
link        >---->   <---<             ended last before it, on the same device or on its way there
stage 1          F B F B
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .log import TIED_SUM, ComputeRecord, Log, TransferRecord
from .simulation import Limit
from .stage_work import ReplicaWork

# kind, stage, whether forward
Cause = tuple[str, int, bool]


def critical_path(
    log: Log,
    works: Sequence[ReplicaWork],
    *,
    begin: float,
    latency_seconds: float,
    round_seconds: float,
    source_wait: tuple[int, float],
) -> tuple[Limit, ...]:
    """What makes up a round, by the time from `begin` to the end of the log; the most seconds first.

    source_wait: the stage that gets most samples, and the seconds of a round in the long run for which it waits for them beyond
    what the log has.
    """
    found = _Walk(log, works, begin, latency_seconds).causes()
    stage_of_source, waits = source_wait
    part = (round_seconds - waits) / (sum(found.values()) or 1.0)
    told = {cause: seconds * part for cause, seconds in found.items()}
    if waits:
        cause = ("data source", stage_of_source, True)
        told[cause] = told.get(cause, 0.0) + waits
    limits = [
        Limit(kind, stage, seconds, seconds / round_seconds, forward)
        for (kind, stage, forward), seconds in told.items()
        if seconds > 0
    ]
    return tuple(sorted(limits, key=lambda limit: (-limit.seconds, limit.kind, limit.stage, limit.forward)))


class _Walk:
    def __init__(self, log: Log, works: Sequence[ReplicaWork], begin: float, latency: float) -> None:
        self._works = works
        self._begin = begin
        self._latency = latency
        self._seconds: dict[Cause, float] = {}
        self._by_replica: list[list[ComputeRecord]] = [[] for _ in works]
        self._place: dict[tuple[int, str, int, int], int] = {}
        for record in log.computed:
            mine = self._by_replica[record.replica]
            self._place[record.replica, record.kind, record.round, record.micro_batch] = len(mine)
            mine.append(record)
        self._frames: dict[tuple[int, str, int, int], TransferRecord] = {}  # the last one of each micro-batch
        self._samples: list[list[TransferRecord]] = [[] for _ in works]
        self._sums: list[list[tuple[int, TransferRecord]]] = [[] for _ in works]  # with their places in the log
        self._reduced: list[list[float]] = [[] for _ in works]
        for place, transfer in enumerate(log.transfers):
            if transfer.label[0] == "samples":
                self._samples[transfer.receiver].append(transfer)
            elif transfer.label[0] == TIED_SUM:
                self._sums[transfer.receiver].append((place, transfer))
            elif transfer.label[0] == "all-reduce":
                if transfer.receiver >= 0:
                    self._reduced[transfer.receiver].append(transfer.end)
            else:
                kind, of_round, micro_batch = transfer.label
                self._frames[transfer.receiver, kind, of_round, micro_batch] = transfer
        self._last = max(log.computed, key=lambda record: record.end)

    def causes(self) -> dict[Cause, float]:
        """Seconds by cause."""
        record: ComputeRecord | None = self._last
        now = self._last.end
        while record is not None and now > self._begin:
            now = self._take(("stage", self._works[record.replica].stage, True), record.start, now)
            record, now = self._cause(record, now)
        return self._seconds

    def _take(self, cause: Cause, start: float, end: float) -> float:
        """Puts the time from start to end down to the cause, as far as it lies behind `begin`; returns start."""
        seconds = end - max(start, self._begin)
        if seconds > 0:
            self._seconds[cause] = self._seconds.get(cause, 0.0) + seconds
        return start

    def _cause(self, record: ComputeRecord, now: float) -> tuple[ComputeRecord | None, float]:
        """What ended last before the record began, and when it ended."""
        stage = self._works[record.replica].stage
        mine = self._by_replica[record.replica]
        place = self._place[record.replica, record.kind, record.round, record.micro_batch]
        before = mine[place - 1] if place else None
        if record.kind == "step":
            return self._last_of_group(*self._first_of_sums(record, now))
        if before is not None and before.end >= record.start:
            return before, now
        frame = self._frames.get((record.replica, record.kind, record.round, record.micro_batch))
        samples = self._last_samples(record)
        if samples is not None and (frame is None or samples.end > frame.end):
            now = self._take(("data source", stage, True), samples.start - self._latency, now)
            # The call was made when the feed had room: as an earlier forward began.
            earlier = [other for other in mine[:place] if other.start <= now]
            return (earlier[-1] if earlier else None), now
        if frame is None:
            return before, now
        sender_place = self._place[frame.sender, record.kind, record.round, record.micro_batch]
        sender = self._by_replica[frame.sender][sender_place]
        sent_by = self._works[frame.sender].stage
        return sender, self._take(("link", sent_by, record.kind == "forward"), sender.end, now)

    def _last_samples(self, record: ComputeRecord) -> TransferRecord | None:
        if record.kind != "forward":
            return None
        came = [transfer for transfer in self._samples[record.replica] if transfer.end <= record.start]
        return came[-1] if came else None

    def _first_of_sums(self, step: ComputeRecord, now: float) -> tuple[ComputeRecord, float]:
        """Where the sums of weights that stages share began for which the step waited: a step of the replica that sent the first
        of them, and when it did; the step itself where it waited for none.
        """
        before = math.inf  # a frame may take no time at all
        while (found := self._last_sum(step, now, before)) is not None:
            before, frame = found
            sender = frame.sender
            now = self._take((TIED_SUM, self._works[sender].stage, True), frame.start, now)
            step = self._by_replica[sender][self._place[sender, "step", step.round, -1]]
        return step, now

    def _last_sum(self, step: ComputeRecord, now: float, before: float) -> tuple[int, TransferRecord] | None:
        """The last frame of such a sum that came until `now`, and behind all else that its receiver waited for: its own last
        backward, and its group's all-reduce. With its place in the log, which is below `before`.
        """
        place = self._place[step.replica, "step", step.round, -1]
        ready = self._by_replica[step.replica][place - 1].end if place else 0.0
        ready = max([ready, *(end for end in self._reduced[step.replica] if end <= now)])
        came = [
            (order, frame)
            for order, frame in self._sums[step.replica]
            if order < before and frame.end <= now and frame.end + self._latency > ready
        ]
        return came[-1] if came else None

    def _last_of_group(self, step: ComputeRecord, now: float) -> tuple[ComputeRecord | None, float]:
        """The last backward of the step's group; what lies between is the all-reduce."""
        stage = self._works[step.replica].stage
        last: ComputeRecord | None = None
        for replica, work in enumerate(self._works):
            place = self._place.get((replica, "step", step.round, -1))
            if work.stage == stage and place:
                before = self._by_replica[replica][place - 1]
                if last is None or before.end > last.end:
                    last = before
        if last is None:
            return None, now
        return last, self._take(("all-reduce", stage, True), last.end, now)
