"""The true optimum for small instances: every plan there is, as far as it might be the fastest, with the simulator as judge.

All devices or some of them, groups and their order, cut points, whole-sample shares, all micro-batch sizes, and K of each
stage. Plans are taken up in the order of their floors, the seconds that they can't beat (round_floor.py); when the next
floor is no lower than the fastest round that was simulated, none of those left is faster:

    floor   3.1  3.2  3.2 | 3.4  3.5  4.0 ...
    round   4.0  3.3  3.8 |                      3.3 is the optimum

The order of the replicas within groups is settled for the fastest plan alone. Plans in passes (every_pass.py) come behind all
others, and are simulated likewise.

Every K that memory holds counts, up to all of a round's micro-batches. Few have to be simulated: a round tells how many
micro-batches each stage really had in flight, and with any K from there on it is the same round. A box of K, from one
corner to the other, is judged at its largest, and what that leaves open falls into one smaller box a stage:

    K of stage 1   5 | a a a = j      j: judged at (5, 5), where stage 0 had 4 in flight and stage 1 had 2
                   . | a a a = =      =: so the round is the same one
                   2 | a a a = =
                   1 | a a a b b      a, b: the boxes that are left
                       1 2 3 4 5  K of stage 0
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model_costs import FloatArray, IntArray
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance

from ...simulator.simulate import round_and_in_flight
from ..assemble import finished_plan
from ..chunk_owners import owners_in
from ..cost_model import fits_memory, held_bytes
from ..passing_memory import passing_table
from .arrangements import Arrangement, arrangements
from .every_pass import EveryPass
from .round_floor import Grid, RoundFloor

MOST_LAYERS = 8
MOST_DEVICES = 4
MOST_MINI_BATCH = 64

Limits = tuple[int, ...]  # K of each stage
_LEFT_OUT = "every plan with it is slower, or fits no memory"


@dataclass(frozen=True)
class Optimum:
    """plan: None where none fits memory. seconds: of its round, by the judge. candidates: plans, K aside, that fit memory.

    simulated: how many of them, with their K, were put to the judge.
    """

    plan: Plan | None
    seconds: float
    candidates: int
    simulated: int


def exhaustive(instance: PlanningInstance, micro_batches: Sequence[int]) -> Plan | None:
    """The fastest plan, with the given micro-batch size where it is one, else with any; None where none fits memory.

    Raises EdgeswarmError(PLAN_INVALID) for an instance with more than 8 layers, 4 devices or 64 samples in a mini-batch.
    """
    layers, devices = instance.model.layer_count, len(instance.devices)
    if layers > MOST_LAYERS or devices > MOST_DEVICES or instance.training.mini_batch > MOST_MINI_BATCH:
        raise EdgeswarmError(
            ErrorCode.PLAN_INVALID,
            f"The planner 'exhaustive' looks at every plan there is, for up to {MOST_LAYERS} layers, {MOST_DEVICES} devices "
            f"and {MOST_MINI_BATCH} samples in a mini-batch; here are {layers}, {devices} and "
            f"{instance.training.mini_batch}.",
            "Choose another planner.",
        )
    sizes = micro_batches if len(micro_batches) == 1 else every_micro_batch(instance)
    return find_optimum(instance, sizes).plan


def every_micro_batch(instance: PlanningInstance) -> tuple[int, ...]:
    """All sizes that leave neither a micro-batch nor a rest below the least batch of a layer, largest first."""
    mini_batch = instance.training.mini_batch
    least = instance.model.largest_least_batch
    sizes = range(mini_batch, least - 1, -1)
    return tuple(size for size in sizes if mini_batch % size == 0 or mini_batch % size >= least)


def find_optimum(instance: PlanningInstance, micro_batches: Sequence[int], *, tolerance: float = 1e-6) -> Optimum:
    """Search for the plan with the fewest seconds a round. tolerance: by which part it may be slower than the fastest."""
    return _Search(instance, tolerance).run(micro_batches)


class _Search:
    def __init__(self, instance: PlanningInstance, tolerance: float) -> None:
        self._instance = instance
        self._passing = passing_table(instance)
        self._floor = RoundFloor(instance)
        self._grids: list[Grid] = []
        self._most: dict[tuple[object, ...], int] = {}
        self._names = instance.device_names
        self._within = 1 - tolerance
        self.best: Plan | None = None
        self.seconds = math.inf
        self.simulated = 0

    def run(self, micro_batches: Sequence[int]) -> Optimum:
        floors, grids, places = self._candidates(micro_batches)
        for rank in np.argsort(floors, kind="stable"):
            if floors[rank] >= self.seconds * self._within:
                break
            grid = self._grids[grids[rank]]
            self._try(grid, [int(i) for i in np.unravel_index(places[rank], grid.shape)])
        count = len(floors)
        if self._instance.training.mini_batch in micro_batches:
            count += self._try_passes()
        if self.best is None:
            return Optimum(None, self.seconds, count, self.simulated)
        self._order_replicas(self.best)
        return Optimum(
            finished_plan(self._instance, self.best, left_out=_LEFT_OUT), self.seconds, count, self.simulated
        )

    def _try_passes(self) -> int:
        """How many of them might have been faster."""
        plans = EveryPass(self._instance, self._floor).plans(below=self.seconds * self._within)
        for floor, plan in plans:
            if floor >= self.seconds * self._within:
                break
            if not self._leaves_too_few(plan) and self._holds_whole(plan):
                seconds, _ = round_and_in_flight(self._instance, plan)
                self.simulated += 1
                if seconds < self.seconds:
                    self.best, self.seconds = plan, seconds
        return len(plans)

    def _order_replicas(self, plan: Plan) -> None:
        """Keeps the fastest of the orders that its groups can have: other frames, some tenths of a percent."""
        for orders in itertools.product(*(itertools.permutations(stage.shares.items()) for stage in plan.stages)):
            stages = tuple(replace(stage, shares=dict(order)) for stage, order in zip(plan.stages, orders, strict=True))
            ordered = replace(plan, stages=stages)
            # Who has frames for whom differs, and so does the memory that connections take.
            if self._leaves_too_few(ordered) or not self._holds_whole(ordered):
                continue
            seconds, _ = round_and_in_flight(self._instance, ordered)
            if seconds < self.seconds * self._within:
                self.best, self.seconds = ordered, seconds

    def _candidates(self, micro_batches: Sequence[int]) -> tuple[FloatArray, IntArray, IntArray]:
        """Of all plans that fit memory with one micro-batch in flight: their floors, grids, and places in these."""
        floors, grids, places = [], [], []
        every = list(arrangements(self._instance))
        for micro_batch in micro_batches:
            for arrangement in every:
                grid = self._grid(arrangement, micro_batch)
                if grid is None:
                    continue
                held = np.flatnonzero(self._fits(grid))
                if len(held):
                    floors.append(self._floor.floors(grid).reshape(-1)[held])
                    grids.append(np.full(len(held), len(self._grids)))
                    places.append(held)
                    self._grids.append(grid)
        if not floors:
            return np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return np.concatenate(floors), np.concatenate(grids), np.concatenate(places)

    def _grid(self, arrangement: Arrangement, micro_batch: int) -> Grid | None:
        """All cut points and shares; None where a group has more devices than the micro-batch samples."""
        if max(len(group) for group in arrangement) > micro_batch:
            return None
        layers, stages = self._instance.model.layer_count, len(arrangement)
        inner = list(itertools.combinations(range(1, layers), stages - 1))
        cuts = np.array([(0, *cut, layers) for cut in inner], dtype=np.int64)
        shares = tuple(np.array(list(compositions(micro_batch, len(group))), dtype=np.int64) for group in arrangement)
        return Grid(arrangement, micro_batch, cuts, shares)

    def _fits(self, grid: Grid) -> npt.NDArray[np.bool_]:
        """Over the grid, flat: whether every share is held with one micro-batch in flight, and none is below a least batch."""
        fits = np.ones(grid.shape, dtype=bool)
        for stage, group in enumerate(grid.arrangement):
            allowed = np.ones((len(grid.cuts), len(grid.shares[stage])), dtype=bool)
            for row, cut in enumerate(grid.cuts):
                layers = (int(cut[stage]), int(cut[stage + 1]))
                least = self._instance.model.least_batch(*layers)
                for replica, place in enumerate(group):
                    samples = grid.shares[stage][:, replica]
                    most = self._most_samples(place, layers, grid.micro_batch)
                    allowed[row] &= (samples <= most) & (samples >= least)
            shape = [1] * len(grid.shape)
            shape[0], shape[stage + 1] = allowed.shape
            fits &= allowed.reshape(shape)
        return fits.reshape(-1)

    def _most_samples(self, place: int, layers: tuple[int, int], micro_batch: int) -> int:
        key = ("samples", place, layers, micro_batch)
        if key not in self._most:
            self._most[key] = _largest(micro_batch, lambda samples: self._holds(place, layers, samples, 1, 1))
        return self._most[key]

    def _most_in_flight(self, place: int, layers: tuple[int, int], samples: int, rounds: int) -> int:
        key = ("in flight", place, layers, samples, rounds)
        if key not in self._most:
            self._most[key] = _largest(rounds, lambda in_flight: self._holds(place, layers, samples, in_flight, rounds))
        return self._most[key]

    def _holds(self, place: int, layers: tuple[int, int], samples: int, in_flight: int, rounds: int) -> bool:
        device = self._instance.devices[place]
        held = held_bytes(
            self._instance,
            first_layer=layers[0],
            end_layer=layers[1],
            samples=samples,
            in_flight=in_flight,
            micro_batches=rounds,
            base_bytes=device.base_bytes,
            passing=self._passing,
        )
        return held <= device.memory_bytes

    def _try(self, grid: Grid, index: Sequence[int]) -> None:
        """Puts the plan at a place of a grid to the judge, with every K that might be faster than the best so far."""
        cut = grid.cuts[index[0]]
        rounds = -(-self._instance.training.mini_batch // grid.micro_batch)
        stages = len(grid.arrangement)
        groups = []
        most = []
        for stage, group in enumerate(grid.arrangement):
            layers = (int(cut[stage]), int(cut[stage + 1]))
            shares = grid.shares[stage][index[stage + 1]].tolist()
            groups.append((layers, {self._names[place]: share for place, share in zip(group, shares, strict=True)}))
            held = [self._most_in_flight(place, layers, n, rounds) for place, n in zip(group, shares, strict=True)]
            most.append(min(held))
        floors = self._floor.in_flight_floors(grid.one(index), range(1, rounds + 1))
        boxes = [(0.0, tuple(most), (1,) * stages)]
        while boxes:
            floor, largest, smallest = heapq.heappop(boxes)
            if floor >= self.seconds * self._within:
                return
            used = self._judge_plan(grid.micro_batch, groups, largest)
            for box in boxes_below(largest, smallest, used):
                of_box = max(floors[stage][limit] for stage, limit in enumerate(box[0]))
                heapq.heappush(boxes, (of_box, *box))

    def _holds_whole(self, plan: Plan) -> bool:
        return fits_memory(self._instance, plan, passing=self._passing)

    def _leaves_too_few(self, plan: Plan) -> bool:
        """Whether a last, smaller micro-batch, or an epoch's last round, leaves a replica fewer samples than a layer needs."""
        return bool(self._instance.too_few_samples(plan))

    def _judge_plan(
        self, micro_batch: int, groups: Sequence[tuple[tuple[int, int], dict[str, int]]], limits: Sequence[int]
    ) -> tuple[int, ...]:
        """How many micro-batches each stage had in flight; 1 where no K makes a round of it."""
        mini_batch = self._instance.training.mini_batch
        plan = Plan(
            planner="exhaustive",
            micro_batch=micro_batch,
            micro_batches=-(-mini_batch // micro_batch),
            last_micro_batch=mini_batch % micro_batch or None,
            stages=tuple(
                Stage(
                    *layers,
                    shares,
                    limit,
                    owners_in(self._instance, tuple(shares), first_layer=layers[0], end_layer=layers[1]),
                )
                for (layers, shares), limit in zip(groups, limits, strict=True)
            ),
        )
        if self._leaves_too_few(plan):
            return (1,) * len(limits)  # whatever K is
        if not self._holds_whole(plan):
            return tuple(limits)  # with fewer in flight its links may fit as well
        seconds, used = round_and_in_flight(self._instance, plan)
        self.simulated += 1
        if seconds < self.seconds:
            stages = tuple(replace(stage, in_flight=held) for stage, held in zip(plan.stages, used, strict=True))
            self.best, self.seconds = replace(plan, stages=stages), seconds
        return used


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as a sum of so many whole numbers from 1 on, in order."""
    for bars in itertools.combinations(range(1, total), parts - 1):
        edges = (0, *bars, total)
        yield tuple(edges[i + 1] - edges[i] for i in range(parts))


def boxes_below(largest: Limits, smallest: Limits, used: Limits) -> Iterator[tuple[Limits, Limits]]:
    """What a round leaves open of the K from `smallest` to `largest`, in boxes that don't overlap: (largest, smallest).

    used: at most `largest`; the round is the same with every K between the two.
    """
    for stage, held in enumerate(used):
        if held > smallest[stage]:
            before = tuple(max(a, b) for a, b in zip(used[:stage], smallest[:stage], strict=True))
            yield (*largest[:stage], held - 1, *largest[stage + 1 :]), (*before, *smallest[stage:])


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest of 1 to `most` that is held, 0 for none; what holds a number holds smaller ones."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
