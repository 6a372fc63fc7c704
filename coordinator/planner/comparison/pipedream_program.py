"""PipeDream's hierarchical optimizer: its dynamic program over a model's cuts and a machine's levels, vectorised.

A(i, j, m) is the time of the slowest stage, or transfer between stages, of the best pipeline of the states i to j on m
machines. Either one stage replicated on all of them, or the best of a shorter pipeline and one more stage behind it:

    states    i . . . . . . k | k+1 . . . . . j        A(i, j, m) = min over k, r of max(A(i, k, m - r),
    machines  [    m - r    ]-|-[     r      ]             transfer of k's output, stage k+1 to j on r, transfer of j's)

A stage on r machines takes (compute + 4 (r-1) W / (r * bandwidth)) / r seconds for each mini-batch: W its parameter bytes,
all-reduced after every mini-batch. A transfer takes 2 * output / (r * bandwidth), there and back. Levels are solved
from the innermost out: what a whole component of a level takes for states i to j is a machine's compute at the next one.

Source: PipeDream (SOSP 2019), section 3.1, and what its published optimizer does where the two differ: the time of a
stage's all-reduce is divided by the machines of a component only where one stage takes all of them. Its limit on memory
counts a stage itself among those in flight, as the paper does and the published optimizer does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeswarm.model_costs import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ModelStates:
    """A model as the optimizer sees it: states in order, each the part of the model up to one cut.

    compute_seconds, parameter_bytes, activation_bytes: [states], of all layers up to and with the state; for one mini-batch.
    resident_bytes: [states], what a machine holds of them however many mini-batches are in flight.
    output_bytes: [states], that cross the cut behind it. before: [states, states], whether state k's layers are all among
    j's at before[j, k]; in a model that is a chain of layers, wherever k < j.
    """

    compute_seconds: FloatArray
    parameter_bytes: FloatArray
    activation_bytes: FloatArray
    resident_bytes: FloatArray
    output_bytes: FloatArray
    before: BoolArray

    @classmethod
    def of_chain(
        cls,
        layer_seconds: FloatArray,
        *,
        layer_parameter_bytes: Sequence[float],
        layer_activation_bytes: Sequence[float],
        layer_resident_bytes: Sequence[float],
        output_bytes: Sequence[float],
    ) -> ModelStates:
        """The states of a chain of layers: one behind each layer; arguments by layer."""
        return cls(
            np.cumsum(layer_seconds),
            np.cumsum(layer_parameter_bytes, dtype=np.float64),
            np.cumsum(layer_activation_bytes, dtype=np.float64),
            np.cumsum(layer_resident_bytes, dtype=np.float64),
            np.asarray(output_bytes, dtype=np.float64),
            np.tri(len(layer_seconds), k=-1, dtype=bool),
        )

    @property
    def count(self) -> int:
        return len(self.compute_seconds)


@dataclass(frozen=True)
class Level:
    """One level of the machine room: so many components of the level below, linked with each other at a bandwidth (bytes/s)."""

    components: int
    bandwidth: float


@dataclass(frozen=True)
class StageFound:
    """States [first, end) replicated over `replicas[level]` components of each level, the innermost first."""

    first: int
    end: int
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class PipelineFound:
    """seconds: of the slowest stage or transfer for one mini-batch."""

    seconds: float
    stages: tuple[StageFound, ...]


def optimize(
    states: ModelStates,
    levels: Sequence[Level],
    *,
    memory_bytes: float | None = None,
    most_in_flight: int | None = None,
) -> PipelineFound | None:
    """The best pipeline over all machines of all levels, the innermost level first; None where memory holds none.

    memory_bytes: of one machine, for what is resident of its stage, and the activations of the mini-batches in flight: as
    many as there are machines from the stage to the end for each of its replicas, rounded up, and never more than
    most_in_flight.
    Of equally fast ones the first in the order of cuts, then the one with fewer replicas of the last stage.
    """
    spans = None
    tables = []
    inside = 1
    for level in levels:
        last = level is levels[-1]
        table = solve_level(
            states,
            level,
            spans=spans,
            inside=inside,
            last=last,
            memory_bytes=memory_bytes,
            most_in_flight=most_in_flight,
        )
        tables.append(table)
        spans = np.vstack([table.seconds[-1], np.full((1, states.count), np.inf)])
        inside = level.components
    seconds = float(tables[-1].seconds[-1, 0, states.count - 1])
    if not np.isfinite(seconds):
        return None
    found = [StageFound(0, states.count, ())]
    for table in reversed(tables):
        found = [
            StageFound(first, end, (replicas, *stage.replicas))
            for stage in found
            for first, end, replicas in table.stages(stage.first, stage.end)
        ]
    return PipelineFound(seconds, tuple(found))


@dataclass(frozen=True)
class LevelTable:
    """A of one level, arrays [machines, first state, last state]; cut: k, or -1 for one stage; replicas: of the last stage."""

    seconds: FloatArray
    cut: IntArray
    replicas: IntArray

    def stages(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """The stages [first, end) of the best pipeline of some states, with their replicas."""
        found = []
        last, machines = end - 1, len(self.seconds) - 1
        while True:
            cut, replicas = int(self.cut[machines, first, last]), int(self.replicas[machines, first, last])
            if cut < 0:
                found.append((first, last + 1, replicas))
                return found[::-1]
            found.append((cut + 1, last + 1, replicas))
            last, machines = cut, machines - replicas


def _between(values: FloatArray, before: BoolArray, *, elsewhere: float) -> FloatArray:
    """[states + 1, states]: at [i, j] the value of the states i to j; `elsewhere` where i - 1 is not before j."""
    count = len(values)
    result = np.empty((count + 1, count))
    result[0] = values
    result[1:] = np.where(before.T, values[np.newaxis, :] - values[:, np.newaxis], elsewhere)
    return result


def solve_level(
    states: ModelStates,
    level: Level,
    *,
    spans: FloatArray | None = None,
    inside: int = 1,
    last: bool = True,
    memory_bytes: float | None = None,
    most_in_flight: int | None = None,
) -> LevelTable:
    """A of one level. inside: machines of one component of it.

    spans: [states + 1, states], seconds of states i to j on one component; None where that is one machine.
    Of the last level only rows of the first state 0 are worked out: no other is asked for.
    """
    if spans is None:
        spans = _between(states.compute_seconds, states.before, elsewhere=np.inf)
    count, machines = states.count, level.components
    firsts = 1 if last else count
    parameters = _between(states.parameter_bytes, states.before, elsewhere=0.0)
    resident = _between(states.resident_bytes, states.before, elsewhere=0.0)
    activations = _between(states.activation_bytes, states.before, elsewhere=0.0)

    def held(in_flight: int) -> BoolArray:
        if memory_bytes is None:
            return np.ones(spans.shape, dtype=bool)
        count = in_flight if most_in_flight is None else min(in_flight, most_in_flight)
        return np.asarray(resident + count * activations <= memory_bytes)

    reduces = [4.0 * part * parameters / (level.bandwidth * (part + 1)) for part in range(machines)]
    # A state that is before the first one's predecessor can't be cut off behind it.
    too_early = np.zeros((count, count), dtype=bool)
    too_early[1:] = states.before[:-1]
    seconds = np.full((machines, count, count), np.inf)
    cut = np.full((machines, count, count), -1, dtype=np.int64)
    replicas = np.zeros((machines, count, count), dtype=np.int64)
    for m in range(machines):
        whole = (spans + reduces[m] / inside) / (m + 1)
        seconds[m] = np.where(held(-(-machines // (m + 1))), whole, np.inf)[:count]
        replicas[m] = m + 1
    for m in range(1, machines):
        options = []
        for r in range(1, m + 1):
            stage = (spans + reduces[r - 1]) / r
            stage = np.where(held(-(-(machines - m - 1 + r) // r)), stage, np.inf)[1:].T  # [j, k]
            transfer = 2.0 * states.output_bytes / (level.bandwidth * r)
            behind = np.where(np.arange(count) < count - 1, transfer, 0.0)
            step = np.maximum(np.maximum(stage, transfer[np.newaxis, :]), behind[:, np.newaxis])
            options.append(np.where(states.before, step, np.inf))
        steps = np.stack(options, axis=2)  # [j, k, r]
        for first in range(firsts):
            shorter = np.stack([seconds[m - r, first] for r in range(1, m + 1)], axis=1)  # [k, r]
            shorter = np.where(too_early[first][:, np.newaxis], np.inf, shorter)
            both = np.maximum(steps, shorter[np.newaxis]).reshape(count, -1)
            best = np.argmin(both, axis=1)
            value = both[np.arange(count), best]
            better = (value < seconds[m, first]) & (np.arange(count) > first)
            seconds[m, first] = np.where(better, value, seconds[m, first])
            cut[m, first] = np.where(better, best // m, -1)
            replicas[m, first] = np.where(better, best % m + 1, m + 1)
    return LevelTable(seconds, cut, replicas)
