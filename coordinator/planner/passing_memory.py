"""What a device holds for the micro-batch at hand alone, beside weights and saved activations. Pure.

    layer's working memory  |  frames at both cuts  |  inputs fetched ahead (first stage), and targets (last stage):
    at its worst moment        `frames_held` of each   `inputs_ahead` micro-batches, as far as the feed's bytes go

What is taken in passes lies there as a whole, too, beside the part of it that is computed. The paper's Eq 3 knows none of this.
Which frames wait in fact is known once a whole plan is simulated (simulator/waiting_frames.py). But for the samples ahead it is a
line, or the larger of two: fixed + per_sample x samples. What a feed holds is that of edgeswarm/feed_ahead.py; the micro-batch at
hand is in what layers save and take.

The worst moment is one of two kinds. Either a layer computes, and those behind it hold nothing yet, or no more:

    | saved, and the gaps between | working memory |

or what they held lies free in pieces, too small for an early layer's gradients, since autograd's small blocks stay between the
pieces until the backward ends; those gradients come on top of all that was saved:

    | saved | in | pieces | now free | working memory |

A layer may take much whatever the batch and little for a sample (a gradient of its weights), and another one the other way round;
they don't compute at once, so that the larger of two lines counts:

    bytes |          /      layers that take much for a sample
          |--------x------  the others
          +---------------- samples

Of a short run of layers some of the pieces fit: they are of the layers next to it. What comes on top is in proportion to what the
run saves of the whole model's, from which on_top was measured.

With several micro-batches in flight they come and go in turns, and what one leaves free doesn't quite take the next one:

    | saved | saved | gaps | saved | gaps | working memory |

More of them are there with each turn, of which a round has as many as it has micro-batches beyond those in flight: none where all
of a round's are in flight at once, since each has its backward after the last forward then. And where a
link takes longer for a micro-batch than its forward does, what was computed waits to be sent, one part of each forward's:

    forwards   | 0 | 1 | 2 | 3 |
    link           |   0   |   1   |  ...      half of what came behind the first: 1 - forward / link
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgeswarm.feed_ahead import FEED_AHEAD_BYTES, most_held_ahead_bytes
from edgeswarm.model_costs import FloatArray, IntArray, ModelCosts
from edgeswarm.profile import PlanningInstance

# What layers take while they compute is more in a training than what layers by themselves were seen to take. An instance's
# numbers have grown by this. Set from the peaks of plans over six emulated devices (bench.predictions).
WORKING_GROWTH = 1.3
# Of what a micro-batch saves and of its working memory, what such gaps take in all after many turns with many in flight; with K
# of them the K-th part less. HALF_OF_GAPS: the turns after which half of them are there. Set from the peaks of plans over six
# emulated devices, with 2 to 11 in flight (bench.predictions).
TURNS_GAPS = 0.6
HALF_OF_GAPS = 1.5
# Of what the whole model saves, what a run of layers saves of which no piece fits. Set from the peaks of plans over six emulated
# devices (bench.predictions).
NO_PIECE_FITS = 2 / 3
# Of the most that a layer takes for a sample; less is little.
LITTLE = 0.1
# By which a link may be slower than it was measured to be, for what waits to be sent.
SLOWER_LINK = 1.15


@dataclass(frozen=True)
class Line:
    """What layers hold while they compute, frames left out, beside what micro-batches save that wait: arrays of one shape, in
    bytes. fixed: whatever the batch. per_sample: of each sample.
    """

    fixed: FloatArray
    per_sample: FloatArray


@dataclass(frozen=True)
class PassingMemory:
    """Of several runs of layers: arrays of one shape, in bytes.

    lines: the larger one counts. frames_per_sample: of frames at both cuts. at_hand_per_sample: of those samples of the
    micro-batch at hand that aren't in the pass which is computed. fed_per_sample: of a sample in the feed, 0 where none waits.
    ahead: micro-batches that do at most. gaps_per_sample: of a micro-batch's, where many come and go in turns.
    sent_per_sample: of what it sends, of which frames_held micro-batches' are among the frames. waiting_part: of those that were
    computed behind the first, how many the slowest link may not have taken yet, at the most.
    """

    lines: tuple[Line, ...]
    frames_per_sample: FloatArray
    at_hand_per_sample: FloatArray
    fed_per_sample: FloatArray
    ahead: int
    gaps_per_sample: FloatArray
    sent_per_sample: FloatArray
    waiting_part: FloatArray
    frames_held: int

    @property
    def _sent_anyway(self) -> int:
        """Of what is computed and not sent yet, how many micro-batches' are counted: the one at hand, and the frames held."""
        return 1 + self.frames_held

    def bytes_of(self, samples: int | IntArray, at_once: int | IntArray | None = None) -> FloatArray:
        """Of each run, with so many samples of a micro-batch; of one run with each of several numbers.

        at_once: samples of one pass, where it takes them in several; frames, the feed, and the micro-batch at hand have all of
        them nevertheless.
        """
        at_once = samples if at_once is None else at_once
        computing = np.max([line.fixed + line.per_sample * at_once for line in self.lines], axis=0)
        waiting = samples * self.fed_per_sample
        waiting = np.minimum(self.ahead * waiting, np.maximum(FEED_AHEAD_BYTES, waiting))
        others = self.at_hand_per_sample * (samples - at_once)
        result: FloatArray = computing + self.frames_per_sample * samples + others + waiting
        return result

    def bytes_of_run(self, run: tuple[int, ...], samples: int, at_once: int | None = None) -> float:
        """The same of one run, by its index into the arrays."""
        at_once = samples if at_once is None else at_once
        computing = max(float(line.fixed[run]) + float(line.per_sample[run]) * at_once for line in self.lines)
        waiting = samples * float(self.fed_per_sample[run])
        waiting = min(self.ahead * waiting, max(FEED_AHEAD_BYTES, waiting))
        others = float(self.at_hand_per_sample[run]) * (samples - at_once)
        return computing + float(self.frames_per_sample[run]) * samples + others + waiting

    def waiting_per_sample(
        self, saved_per_sample: FloatArray | IntArray, *, in_flight: int, micro_batches: int
    ) -> FloatArray:
        """Of each run, what so many micro-batches take that wait for their backward. saved_per_sample: of one. micro_batches: of
        a round; fewer in flight never take more than all of them.
        """
        saved = np.asarray(saved_per_sample, dtype=np.float64)
        waiting: FloatArray = saved * in_flight
        if in_flight > 1:
            turns = max(0, micro_batches - in_flight)
            waiting += np.minimum(_part_of_gaps(in_flight, turns) * self.gaps_per_sample, turns * saved)
            unsent = np.maximum(0.0, self.waiting_part * (in_flight - 1) - self._sent_anyway)
            waiting += unsent * self.sent_per_sample
        return waiting

    def waiting_per_sample_of(
        self, run: tuple[int, ...], saved_per_sample: float, *, in_flight: int, micro_batches: int
    ) -> float:
        """The same of one run, by its index into the arrays."""
        waiting = saved_per_sample * in_flight
        if in_flight > 1:
            turns = max(0, micro_batches - in_flight)
            gaps = _part_of_gaps(in_flight, turns) * float(self.gaps_per_sample[run])
            waiting += min(gaps, turns * saved_per_sample)
            waiting += self.unsent_per_sample_of(run, in_flight=in_flight)
        return waiting

    def unsent_per_sample_of(self, run: tuple[int, ...], *, in_flight: int) -> float:
        """Of one run, what of that was computed and waits for its link."""
        unsent = max(0.0, float(self.waiting_part[run]) * (in_flight - 1) - self._sent_anyway)
        return unsent * float(self.sent_per_sample[run])

    def most_samples(self, free: FloatArray, saved_per_sample: FloatArray, *, limit: int) -> FloatArray:
        """The samples that memory holds, whole and at most `limit`; 0 for none.

        free: bytes beside weights, of shape [..., *runs]. saved_per_sample: bytes that are held beside these, of shape [*runs].
        """
        first, *others = (self._most_by(line, free, saved_per_sample, limit=limit) for line in self.lines)
        for most in others:
            first = np.minimum(first, most)
        return first

    def _most_by(self, line: Line, free: FloatArray, saved_per_sample: FloatArray, *, limit: int) -> FloatArray:
        left = free - line.fixed
        slope = saved_per_sample + line.per_sample + self.frames_per_sample
        # What is ahead is the lesser of two: all micro-batches, or what the feed's bytes allow.
        most = _quotient(left, slope + self.ahead * self.fed_per_sample, limit)
        if self.ahead and self.fed_per_sample.any():
            within = np.minimum(
                _quotient(left - FEED_AHEAD_BYTES, slope, limit), _quotient(left, slope + self.fed_per_sample, limit)
            )
            most = np.where(left >= FEED_AHEAD_BYTES, np.maximum(most, within), most)
        return np.where(left >= 0, np.clip(np.floor(most), 0, limit), 0.0)

    def most_samples_of(self, run: tuple[int, ...], free: float, saved_per_sample: float, *, limit: int) -> int:
        """The same of one run, by its index into the arrays; without arrays, since searches ask often."""
        for line in self.lines:
            limit = self._most_of_run_by(line, run, free, saved_per_sample, limit=limit)
        return limit

    def _most_of_run_by(
        self, line: Line, run: tuple[int, ...], free: float, saved_per_sample: float, *, limit: int
    ) -> int:
        left = free - float(line.fixed[run])
        if left < 0:
            return 0
        slope = saved_per_sample + float(line.per_sample[run]) + float(self.frames_per_sample[run])
        waiting = float(self.fed_per_sample[run])
        if slope * limit + most_held_ahead_bytes(waiting * limit, ahead=self.ahead) <= left:
            return limit
        whole = slope + self.ahead * waiting
        most = left / whole if whole > 0 else math.inf
        if self.ahead and waiting > 0 and left >= FEED_AHEAD_BYTES:
            within = (left - FEED_AHEAD_BYTES) / slope if slope > 0 else math.inf
            most = max(most, min(within, left / (slope + waiting)))
        return int(min(most, limit))


def passing_bytes(
    instance: PlanningInstance,
    *,
    first_layer: int,
    end_layer: int,
    samples: int,
    in_flight: int = 1,
    micro_batches: int = 1,
    at_once: int | None = None,
    table: PassingMemory | None = None,
    frame_bytes: float | None = None,
) -> int:
    """Bytes of one replica that takes `samples` of a micro-batch through layers [first_layer, end_layer).

    micro_batches: of a round. at_once: as `PassingMemory.bytes_of` has it. table: the instance's `passing_table`, where that is
    at hand. frame_bytes: of frames beside the micro-batch at hand, where a simulation knows them; by the formula where none does.
    """
    run: tuple[int, ...] = (first_layer, end_layer)
    if table is None:
        table, run = passing_of_runs(instance, np.array([first_layer]), np.array([end_layer])), (0,)
    at_once = samples if at_once is None else at_once
    saved = float(instance.model.saved_bytes(first_layer, end_layer))
    waiting = table.waiting_per_sample_of(run, saved, in_flight=in_flight, micro_batches=micro_batches)
    held = table.bytes_of_run(run, samples, at_once) + at_once * (waiting - saved * in_flight)
    if frame_bytes is not None:
        unsent = table.unsent_per_sample_of(run, in_flight=in_flight)
        held += frame_bytes - samples * float(table.frames_per_sample[run]) - at_once * unsent
    return int(held)


def _frames_per_sample(instance: PlanningInstance, first_layers: IntArray, end_layers: IntArray) -> FloatArray:
    """[R]: of the frames at both cuts. Those of the micro-batch at hand are in what layers save and take while they compute; the
    model's own inputs come through the feed, and its outputs go nowhere.
    """
    of_cuts = instance.model.cut_bytes.astype(np.float64)
    of_cuts[[0, -1]] = 0.0
    at_cuts: FloatArray = of_cuts[first_layers] + of_cuts[end_layers]
    return instance.training.frames_held * at_cuts


def passing_of_runs(instance: PlanningInstance, first_layers: IntArray, end_layers: IntArray) -> PassingMemory:
    """Arrays [R], for runs of layers [first_layers[r], end_layers[r])."""
    model, training = instance.model, instance.training
    transient = model.transient_bytes
    little = transient < LITTLE * transient.max(initial=0.0)
    computing = _computing_per_sample(instance, transient, first_layers, end_layers)
    of_little = _computing_per_sample(instance, np.where(little, transient, 0.0), first_layers, end_layers)
    lines = [
        Line(_fixed(model, ~little, first_layers, end_layers), computing),
        Line(_fixed(model, little, first_layers, end_layers), of_little),
    ]
    # Where nothing is known of working memory, the paper's formula is all there is.
    saved = model.saved_bytes_before[end_layers] - model.saved_bytes_before[first_layers]
    in_turns = saved + computing if transient.any() else np.zeros_like(computing)
    fed = np.where(first_layers == 0, model.input_bytes, 0) + np.where(
        end_layers == model.layer_count, model.target_bytes, 0
    )
    at_hand = model.cut_bytes[first_layers] if training.frames_held else np.zeros(len(first_layers))
    return PassingMemory(
        tuple(lines if little.any() else lines[:1]),
        _frames_per_sample(instance, first_layers, end_layers),
        at_hand.astype(np.float64),
        fed * float(training.inputs_ahead > 0),
        training.inputs_ahead,
        gaps_per_sample=TURNS_GAPS * np.maximum(0.0, in_turns),
        sent_per_sample=model.cut_bytes[end_layers].astype(np.float64),
        waiting_part=_waiting_part(instance, first_layers, end_layers),
        frames_held=training.frames_held,
    )


def _fixed(
    model: ModelCosts, of_layers: npt.NDArray[np.bool_], first_layers: IntArray, end_layers: IntArray
) -> FloatArray:
    """[R]: of Line, by some of the layers alone; what a stage's layers add to it is of all of them."""
    joint = np.concatenate([np.zeros(1), np.cumsum(model.joint_workspace_bytes)])
    largest = _most(np.where(of_layers, model.workspace_bytes, 0.0), first_layers, end_layers)
    fixed: FloatArray = largest + joint[end_layers] - joint[first_layers]
    return fixed


def _computing_per_sample(
    instance: PlanningInstance, transient: FloatArray, first_layers: IntArray, end_layers: IntArray
) -> FloatArray:
    """[R]: of Line. transient: of each layer that is looked at, 0 of the others."""
    training = instance.training
    # Of the micro-batch at hand, whose blocks come and go; those that wait keep theirs.
    saved = instance.model.saved_bytes_before.astype(np.float64)
    grown = training.saved_growth * saved
    more = (training.saved_growth - 1) * (saved[end_layers] - saved[first_layers])
    # While a layer computes, forward or backward, those behind it hold nothing.
    at_worst = _most(transient + grown[1:], first_layers, end_layers) - grown[end_layers]
    # In pieces: without the gaps that the micro-batch at hand has been given, since they are what is filled.
    on_top = training.on_top * _most(transient, first_layers, end_layers) - more
    saved_part = (saved[end_layers] - saved[first_layers]) / max(1.0, saved[-1])
    pieces = np.minimum(1.0, saved_part / NO_PIECE_FITS) * np.maximum(0.0, on_top - at_worst)
    computing: FloatArray = more + at_worst + pieces
    return computing


def _waiting_part(instance: PlanningInstance, first_layers: IntArray, end_layers: IntArray) -> FloatArray:
    """[R]: of PassingMemory; by the slowest link and the fastest devices, so that no stage has more of them."""
    if not instance.training.frames_held:
        return np.zeros(len(first_layers))
    links = instance.network.matrix
    slowest = float(np.min(links, where=np.isfinite(links), initial=np.inf)) / SLOWER_LINK
    carried = instance.model.cut_bytes[end_layers] / slowest
    # Of a sample in a batch of the largest size that there is.
    forward = [np.array(each.forward_seconds[-1]) / each.batch_sizes[-1] for each in instance.profiles.values()]
    before = np.array([np.concatenate([np.zeros(1), np.cumsum(of_layers)]) for of_layers in forward])
    computed = (before[:, end_layers] - before[:, first_layers]).min(axis=0)
    part = 1 - np.divide(computed, carried, out=np.ones(len(carried)), where=carried > 0)
    # The last stage sends nothing.
    result: FloatArray = np.where(end_layers < instance.model.layer_count, np.maximum(0.0, part), 0.0)
    return result


def passing_table(instance: PlanningInstance) -> PassingMemory:
    """Arrays [layer_count + 1, layer_count + 1], of every run of layers [i, j); 0 where j <= i."""
    count = instance.model.layer_count
    first, end = np.triu_indices(count + 1, k=1)
    runs = passing_of_runs(instance, first, end)

    def table(of_runs: FloatArray) -> FloatArray:
        found = np.zeros((count + 1, count + 1))
        found[first, end] = of_runs
        return found

    return replace(
        runs,
        lines=tuple(Line(table(line.fixed), table(line.per_sample)) for line in runs.lines),
        frames_per_sample=table(runs.frames_per_sample),
        at_hand_per_sample=table(runs.at_hand_per_sample),
        fed_per_sample=table(runs.fed_per_sample),
        gaps_per_sample=table(runs.gaps_per_sample),
        sent_per_sample=table(runs.sent_per_sample),
        waiting_part=table(runs.waiting_part),
    )


def _part_of_gaps(in_flight: int, turns: int) -> float:
    """The part of the gaps that there is with so many in flight, after so many turns."""
    return (1 - 1 / in_flight) * turns / (turns + HALF_OF_GAPS)


def _quotient(left: FloatArray, divisor: FloatArray, limit: int) -> FloatArray:
    """left / divisor; the limit where nothing is taken of it."""
    left, divisor = np.broadcast_arrays(left, divisor)
    result: FloatArray = np.divide(left, divisor, out=np.full(left.shape, float(limit)), where=divisor > 0)
    return result


def _most(values: FloatArray, first_layers: IntArray, end_layers: IntArray) -> FloatArray:
    """[R]: the largest value of each run. values: [layer_count], none below 0."""
    if not values.any():
        return np.zeros(len(first_layers))
    if len(first_layers) == 1:
        return np.array([values[first_layers[0] : end_layers[0]].max()])
    # From each layer on: what lies before it counts as nothing.
    of_runs = np.maximum.accumulate(np.triu(np.broadcast_to(values, (len(values), len(values)))), axis=1)
    found: FloatArray = of_runs[first_layers, end_layers - 1]
    return found
