"""Many pipelines followed through a round of 1F1B at once, action by action; stages as one processor each.

A stage is its slowest replica; its card sends one transfer after another, and receives likewise, the two directions
apart:

    stage 0   f0 f1 f2 .. b0 f3 b1 ..       of every candidate, at each step, the action that can start first is next
    egress       -- -- --        --
    stage 1        f0 b0 f1 b1 f2 b2

A round of many micro-batches is followed for some of them. How long the others take is read off the first stage's forwards
while it holds as many micro-batches as it may: each but the first ones waits for a backward. The round's last micro-batch,
which may be smaller, is the last one followed.
"""

from __future__ import annotations

import numpy as np

from edgeswarm.profile import FloatArray, IntArray

# Micro-batches that are followed, more where more are in flight.
MOST_FOLLOWED = 20


class PipelineBatch:
    """Figures of many candidates: arrays [rows, stages], zeros behind a row's last stage, or [rows, stages, 2].

    forward, backward: [rows, stages, 2] seconds of a micro-batch, a full one and the round's last.
    forward_out, forward_in, backward_out, backward_in: [rows, stages, 2] seconds that such a one occupies the cards at the
    cut behind the stage; of who sends and who receives, for each direction.
    behind: seconds from the last backward to the end of the step. in_flight: K.
    counts, last: [rows] micro-batches of the round, index of the last stage. last_part: [rows] samples of the
    round's last one over those of a full one. latency: seconds.
    """

    def __init__(self, rows: int, stages: int, *, latency: float) -> None:
        def zeros() -> FloatArray:
            return np.zeros((rows, stages, 2))

        self.rows, self.stages, self.latency = rows, stages, latency
        self.counts: IntArray = np.zeros(rows, dtype=np.int64)
        self.last: IntArray = np.zeros(rows, dtype=np.int64)
        self.last_part: FloatArray = np.ones(rows)
        self.in_flight: IntArray = np.ones((rows, stages), dtype=np.int64)
        self.behind: FloatArray = np.zeros((rows, stages))
        self.forward, self.backward = zeros(), zeros()
        self.forward_out, self.forward_in = zeros(), zeros()
        self.backward_out, self.backward_in = zeros(), zeros()


def follow(batch: PipelineBatch) -> FloatArray:
    """[rows]: seconds from the first forward to the end of the last step."""
    return _Run(batch).seconds()


class _Run:
    """Where every stage of every row is: arrays [rows, stages], arrivals [rows, stages, micro-batches + 1]."""

    def __init__(self, batch: PipelineBatch) -> None:
        self.batch = batch
        rows, stages = batch.rows, batch.stages
        self.followed = np.minimum(batch.counts, np.maximum(MOST_FOLLOWED, 2 * batch.in_flight.max(axis=1)))
        # Between these two forwards the first stage is at the pace of the pipeline, where more are to come than are followed.
        full = np.minimum(batch.in_flight[:, 0], self.followed)
        self.pace_from = full + np.maximum(self.followed - 2 - full, 0) // 4
        self.pace_to = self.followed - 2
        most = int(self.followed.max())
        # When what an action needs is there; the first stage has its samples, the last stage its own forwards.
        self.inputs = np.full((rows, stages, most + 1), np.inf)
        self.inputs[:, 0, :] = np.where(np.arange(most + 1)[None, :] < self.followed[:, None], 0.0, np.inf)
        self.gradients = np.full((rows, stages, most + 1), np.inf)
        self.next_input = self.inputs[:, :, 0].copy()
        self.next_gradient = self.gradients[:, :, 0].copy()
        self.forwards = np.zeros((rows, stages), dtype=np.int64)
        self.backwards = np.zeros((rows, stages), dtype=np.int64)
        self.backward_was_last = np.zeros((rows, stages), dtype=bool)
        self.free = np.zeros((rows, stages))
        self.egress = np.zeros((rows, stages))
        self.downstream, self.upstream = np.zeros((rows, stages)), np.zeros((rows, stages))
        self.pace_begin, self.pace_end = np.zeros(rows), np.zeros(rows)

    def seconds(self) -> FloatArray:
        batch = self.batch
        while True:
            allowed = np.where(self.forwards - self.backwards < batch.in_flight, self.next_input, np.inf)
            start = np.maximum(self.free, np.minimum(allowed, self.next_gradient))
            earliest = start.min(axis=1)
            if not np.isfinite(earliest).any():
                break
            # Where both are ready they take turns.
            backward = (self.next_gradient <= start) & ~((allowed <= start) & self.backward_was_last)
            # What begins before any other action can end is not changed by what these bring.
            seconds = np.where(
                backward,
                self._seconds_of(batch.backward, self.backwards),
                self._seconds_of(batch.forward, self.forwards),
            )
            soon = (start + seconds).min(axis=1)
            going = (start < soon[:, None]) | (start == earliest[:, None])
            going &= np.isfinite(start)
            self._backward(*_chosen(start, going & backward))
            self._forward(*_chosen(start, going & ~backward))
        more = batch.counts - self.followed
        pace = (self.pace_end - self.pace_begin) / np.maximum(self.pace_to - self.pace_from, 1)
        used = np.arange(batch.stages)[None, :] <= batch.last[:, None]
        whole = np.where(used, self.free + batch.behind, 0.0).max(axis=1)
        return np.asarray(whole + more * pace, dtype=np.float64)

    def _seconds_of(self, seconds: FloatArray, number: IntArray) -> FloatArray:
        """[rows, stages]: of each stage's next micro-batch."""
        is_last = number == self.followed[:, None] - 1
        return np.where(is_last, seconds[:, :, 1], seconds[:, :, 0])

    def _forward(self, row: IntArray, stage: IntArray, start: FloatArray) -> None:
        """Runs a forward of each of these stages, and sends what comes out of it."""
        batch = self.batch
        number = self.forwards[row, stage]
        end = start + batch.forward[row, stage, self._which(row, number)]
        self.free[row, stage] = end
        self.forwards[row, stage] = number + 1
        self.backward_was_last[row, stage] = False
        for forward, seconds in ((self.pace_from, self.pace_begin), (self.pace_to, self.pace_end)):
            there = (stage == 0) & (number == forward[row])
            seconds[row[there]] = end[there]
        self.next_input[row, stage] = self.inputs[row, stage, number + 1]
        is_last = stage == batch.last[row]
        self._gradient_arrives(row[is_last], stage[is_last], number[is_last], end[is_last])
        row, stage, number, end = row[~is_last], stage[~is_last], number[~is_last], end[~is_last]
        which = self._which(row, number)
        out, into = batch.forward_out[row, stage, which], batch.forward_in[row, stage, which]
        arrival = self._transfer(self.downstream, row, stage, end, out=out, into=into)
        self.inputs[row, stage + 1, number] = arrival
        awaited = number == self.forwards[row, stage + 1]
        self.next_input[row[awaited], stage[awaited] + 1] = arrival[awaited]

    def _backward(self, row: IntArray, stage: IntArray, start: FloatArray) -> None:
        """Runs a backward of each of these stages, and sends its gradient."""
        batch = self.batch
        number = self.backwards[row, stage]
        end = start + batch.backward[row, stage, self._which(row, number)]
        self.free[row, stage] = end
        self.backwards[row, stage] = number + 1
        self.backward_was_last[row, stage] = True
        self.next_gradient[row, stage] = self.gradients[row, stage, number + 1]
        inner = stage > 0
        row, stage, number, end = row[inner], stage[inner], number[inner], end[inner]
        target = stage - 1
        which = self._which(row, number)
        out, into = batch.backward_out[row, target, which], batch.backward_in[row, target, which]
        arrival = self._transfer(self.upstream, row, stage, end, out=out, into=into)
        self._gradient_arrives(row, target, number, arrival)

    def _which(self, row: IntArray, number: IntArray) -> IntArray:
        """1 for the round's last micro-batch, 0 for others."""
        which: IntArray = (number == self.followed[row] - 1).astype(np.int64)
        return which

    def _gradient_arrives(self, row: IntArray, stage: IntArray, number: IntArray, when: FloatArray) -> None:
        self.gradients[row, stage, number] = when
        awaited = number == self.backwards[row, stage]
        self.next_gradient[row[awaited], stage[awaited]] = when[awaited]

    def _transfer(
        self,
        stream: FloatArray,
        row: IntArray,
        sender: IntArray,
        ready: FloatArray,
        *,
        out: FloatArray,
        into: FloatArray,
    ) -> FloatArray:
        """When it is there, in each of the rows. stream: until when each stage's transfers in this direction go on.

        The sender's card does the work of both directions; the receivers' does as much by and large, so that it is
        looked at for each direction by itself.
        """
        sent = np.maximum(ready, self.egress[row, sender]) + out
        self.egress[row, sender] = sent
        there = np.maximum(np.maximum(ready, stream[row, sender]) + np.maximum(out, into), sent)
        stream[row, sender] = there
        return np.asarray(there + self.batch.latency, dtype=np.float64)


def _chosen(
    start: FloatArray, chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> tuple[IntArray, IntArray, FloatArray]:
    row, stage = np.nonzero(chosen)
    return row, stage, start[row, stage]
