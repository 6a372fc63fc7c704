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
import numpy.typing as npt

from edgeswarm.model_costs import FloatArray, IntArray

_BoolArray = npt.NDArray[np.bool_]

# Micro-batches that are followed, more where more are in flight.
MOST_FOLLOWED = 20


class PipelineBatch:
    """Figures of many candidates: arrays [rows, stages], zeros behind a row's last stage, or [rows, stages, 2].

    forward, backward: [rows, stages, 2] seconds of a micro-batch, a full one and the round's last.
    forward_out, forward_in, backward_out, backward_in: [rows, stages, 2] seconds that such a one occupies the cards at the
    cut behind the stage; of who sends and who receives, for each direction.
    weights: [rows, stages, 2] likewise, of the gradients of weights, where they come apart and fill gaps (ZeroBubble); None where
    the backward is all of it.
    behind: seconds from the last backward to the end of the step. in_flight: K.
    counts, last: [rows] micro-batches of the round, index of the last stage. latency: seconds.
    """

    def __init__(self, rows: int, stages: int, *, latency: float) -> None:
        def zeros() -> FloatArray:
            return np.zeros((rows, stages, 2))

        self.rows, self.stages, self.latency = rows, stages, latency
        self.counts: IntArray = np.zeros(rows, dtype=np.int64)
        self.last: IntArray = np.zeros(rows, dtype=np.int64)
        self.in_flight: IntArray = np.ones((rows, stages), dtype=np.int64)
        self.behind: FloatArray = np.zeros((rows, stages))
        self.forward, self.backward = zeros(), zeros()
        self.weights: FloatArray | None = None
        self.forward_out, self.forward_in = zeros(), zeros()
        self.backward_out, self.backward_in = zeros(), zeros()


def follow(batch: PipelineBatch) -> FloatArray:
    """[rows]: seconds from the first forward to the end of the last step; with weights apart, what a round takes among others."""
    return _Run(batch).seconds()


class _Run:
    """Where every stage of every row is. Arrays of one dimension, which are quicker to index: a stage of a row by its place,
    stage x rows + row, so that what is looked for over the stages lies in whole rows; arrivals by place x (micro-batches + 1) +
    micro-batch. Seconds are [2, places], see _by_place; forward_seconds, backward_seconds: of each place's next action.
    """

    def __init__(self, batch: PipelineBatch) -> None:
        self.batch = batch
        rows, stages = batch.rows, batch.stages
        self.followed = np.minimum(batch.counts, np.maximum(MOST_FOLLOWED, 2 * batch.in_flight.max(axis=1)))
        # Between these two forwards the first stage is at the pace of the pipeline, where more are to come than are followed.
        full = np.minimum(batch.in_flight[:, 0], self.followed)
        self.pace_from = full + np.maximum(self.followed - 2 - full, 0) // 4
        self.pace_to = self.followed - 2
        self.width = int(self.followed.max()) + 1
        # When what an action needs is there; the first stage has its samples, the last stage its own forwards.
        inputs = np.full((stages, rows, self.width), np.inf)
        inputs[0] = np.where(np.arange(self.width)[None, :] < self.followed[:, None], 0.0, np.inf)
        self.next_input = inputs[:, :, 0].flatten()
        self.next_gradient = np.full(rows * stages, np.inf)
        self.inputs, self.gradients = inputs.ravel(), np.full(rows * stages * self.width, np.inf)
        # Of every place: its round's last micro-batch that is followed, K, and whether it is a row's first or last stage.
        self.last_followed = np.tile(self.followed - 1, stages)
        self.in_flight = batch.in_flight.T.ravel()
        stage = np.repeat(np.arange(stages), rows)
        self.is_first, self.is_last = stage == 0, stage == np.tile(batch.last, stages)
        self.forward, self.backward = _by_place(batch.forward), _by_place(batch.backward)
        self.forward_out, self.forward_in = _by_place(batch.forward_out), _by_place(batch.forward_in)
        self.backward_out, self.backward_in = _by_place(batch.backward_out), _by_place(batch.backward_in)
        self.forwards, self.backwards = np.zeros((2, rows * stages), dtype=np.int64)
        only_one = self.last_followed == 0
        self.forward_seconds = _seconds_of(self.forward, only_one)
        self.backward_seconds = _seconds_of(self.backward, only_one)
        self.weights = None if batch.weights is None else _by_place(batch.weights)
        # What is held of a place's forwards ends with these.
        self.given_back = self.backwards if self.weights is None else np.zeros(rows * stages, dtype=np.int64)
        self.backward_was_last = np.zeros(rows * stages, dtype=np.bool_)
        self.free, self.egress, self.downstream, self.upstream = np.zeros((4, rows * stages))
        self.begins = np.zeros(rows * stages)  # of each place's first forward
        self.pace_begin, self.pace_end = np.zeros((2, rows))

    def seconds(self) -> FloatArray:
        batch = self.batch
        shape = (batch.stages, batch.rows)
        while True:
            has_room = self.forwards - self.given_back < self.in_flight
            allowed = np.where(has_room, self.next_input, np.inf)
            start = np.maximum(self.free, np.minimum(allowed, self.next_gradient))
            weights: _BoolArray | None = None
            if self.weights is not None:
                weights = self._weights_first(start, has_room)
                start = np.where(weights, self.free, start)
            by_stage = start.reshape(shape)
            earliest = by_stage.min(axis=0)
            if not np.isfinite(earliest).any():
                break
            # Where both are ready they take turns.
            backward = (self.next_gradient <= start) & ~((allowed <= start) & self.backward_was_last)
            # What begins before any other action can end is not changed by what these bring.
            seconds = np.where(backward, self.backward_seconds, self.forward_seconds)
            if self.weights is not None and weights is not None:
                of_weights = _seconds_of(self.weights, self.given_back == self.last_followed)
                seconds = np.where(weights, of_weights, seconds)
            soon = (start + seconds).reshape(shape).min(axis=0)
            going = ((by_stage < soon) | (by_stage == earliest)).ravel()
            going &= np.isfinite(start)
            if weights is not None:
                self._run_weights(*_chosen(start, going & weights))
                going &= ~weights
            self._run_backward(*_chosen(start, going & backward))
            self._run_forward(*_chosen(start, going & ~backward))
        more = batch.counts - self.followed
        pace = (self.pace_end - self.pace_begin) / np.maximum(self.pace_to - self.pace_from, 1)
        used = np.arange(batch.stages)[None, :] <= batch.last[:, None]
        ends = self.free.reshape(shape).T + batch.behind
        if self.weights is not None:
            # A later stage's last weights are beside the first stage's next forwards.
            ends -= self.begins.reshape(shape).T
        whole = np.where(used, ends, 0.0).max(axis=1)
        return np.asarray(whole + more * pace, dtype=np.float64)

    def _weights_first(self, start: FloatArray, has_room: _BoolArray) -> _BoolArray:
        """[places]: whether gradients of weights come next, since nothing else can begin, or a forward has no room otherwise.

        start: of what else is next.
        """
        is_turn = ~has_room & self.backward_was_last & (self.next_input <= self.free)
        return np.asarray((self.given_back < self.backwards) & ((start > self.free) | is_turn), dtype=np.bool_)

    def _run_weights(self, place: IntArray, start: FloatArray) -> None:
        """Computes the gradients of weights of these stages' next micro-batch."""
        assert self.weights is not None
        number = self.given_back[place]
        self.free[place] = start + _seconds_of(self.weights[:, place], number == self.last_followed[place])
        self.given_back[place] = number + 1

    def _run_forward(self, place: IntArray, start: FloatArray) -> None:
        """Runs a forward of each of these stages, and sends what comes out of it."""
        number = self.forwards[place]
        last_followed = self.last_followed[place]
        is_final = number == last_followed
        end = start + self.forward_seconds[place]
        self.free[place] = end
        self.forward_seconds[place] = _seconds_of(self.forward[:, place], number + 1 == last_followed)
        self.forwards[place] = number + 1
        is_begin = number == 0
        self.begins[place[is_begin]] = start[is_begin]
        self.backward_was_last[place] = False
        self.next_input[place] = self.inputs[place * self.width + number + 1]
        first = np.flatnonzero(self.is_first[place])
        row = place[first]  # of the first stage
        for forward, seconds in ((self.pace_from, self.pace_begin), (self.pace_to, self.pace_end)):
            there = number[first] == forward[row]
            seconds[row[there]] = end[first[there]]
        is_last = self.is_last[place]
        self._gradient_arrives(place[is_last], number[is_last], end[is_last])
        sends = ~is_last
        place, number, end, is_final = place[sends], number[sends], end[sends], is_final[sends]
        out, into = _seconds_of(self.forward_out[:, place], is_final), _seconds_of(self.forward_in[:, place], is_final)
        arrival = self._transfer(self.downstream, place, end, out=out, into=into)
        target = place + self.batch.rows
        self.inputs[target * self.width + number] = arrival
        awaited = number == self.forwards[target]
        self.next_input[target[awaited]] = arrival[awaited]

    def _run_backward(self, place: IntArray, start: FloatArray) -> None:
        """Runs a backward of each of these stages, and sends its gradient."""
        number = self.backwards[place]
        last_followed = self.last_followed[place]
        is_final = number == last_followed
        end = start + self.backward_seconds[place]
        self.free[place] = end
        self.backward_seconds[place] = _seconds_of(self.backward[:, place], number + 1 == last_followed)
        self.backwards[place] = number + 1
        self.backward_was_last[place] = True
        self.next_gradient[place] = self.gradients[place * self.width + number + 1]
        sends = ~self.is_first[place]
        place, number, end, is_final = place[sends], number[sends], end[sends], is_final[sends]
        target = place - self.batch.rows
        out, into = (
            _seconds_of(self.backward_out[:, target], is_final),
            _seconds_of(self.backward_in[:, target], is_final),
        )
        self._gradient_arrives(target, number, self._transfer(self.upstream, place, end, out=out, into=into))

    def _gradient_arrives(self, place: IntArray, number: IntArray, when: FloatArray) -> None:
        self.gradients[place * self.width + number] = when
        awaited = number == self.backwards[place]
        self.next_gradient[place[awaited]] = when[awaited]

    def _transfer(
        self, stream: FloatArray, sender: IntArray, ready: FloatArray, *, out: FloatArray, into: FloatArray
    ) -> FloatArray:
        """When it is there, of each of these senders. stream: until when each stage's transfers in this direction go on.

        The sender's card does the work of both directions; the receivers' does as much by and large, so that it is
        looked at for each direction by itself.
        """
        sent = np.maximum(ready, self.egress[sender]) + out
        self.egress[sender] = sent
        there = np.maximum(np.maximum(ready, stream[sender]) + np.maximum(out, into), sent)
        stream[sender] = there
        return np.asarray(there + self.batch.latency, dtype=np.float64)


def _by_place(seconds: FloatArray) -> FloatArray:
    """[rows, stages, 2] -> [2, places]: of a full micro-batch, and of the round's last."""
    return np.ascontiguousarray(seconds.transpose(2, 1, 0)).reshape(2, -1)


def _seconds_of(seconds: FloatArray, is_final: _BoolArray) -> FloatArray:
    """[places] of [2, places]: of each stage's micro-batch."""
    return np.asarray(np.where(is_final, seconds[1], seconds[0]), dtype=np.float64)


def _chosen(start: FloatArray, chosen: _BoolArray) -> tuple[IntArray, FloatArray]:
    place = np.flatnonzero(chosen)
    return place, start[place]
