"""Small changes of a candidate, of which the local search tries all: where to cut, who is where, how many samples.

stage 0 {a, b} layers 0-4 | stage 1 {c} layers 4-9 | idle d
->  move a cut      {a, b} 0-5 | {c} 5-9          swap            {a, c} 0-4 | {b} 4-9
    move a device   {a} 0-4 | {b, c} 4-9          add, drop       {a, b} 0-4 | {c, d} 4-9
    split           {a} 0-2 | {b} 2-4 | {c} 4-9   merge           {a, b, c} 0-9
    micro-batches larger or smaller; in `fine`: samples from one replica to another, K, the order of replicas
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from .alignment import aligned
from .balanced_cuts import BalancedCuts
from .candidate import Candidate, CandidateStage, Outline, fewer_in_flight, usual_in_flight
from .problem import SearchProblem
from .sample_shares import SampleSharing

FEW_LAYERS = 16
# More in flight than this aren't tried: far above the usual K of any pipeline, and each costs memory and planning.
MOST_IN_FLIGHT = 64
_CUT_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_PAIR_STEPS = (1, 2, 4)


class Moves:
    """Neighbours of candidates of one problem. sizes: micro-batch sizes that may be chosen, ascending.

    usual: K of so many stages, where nothing speaks for others.
    """

    def __init__(
        self,
        problem: SearchProblem,
        sharing: SampleSharing,
        sizes: tuple[int, ...],
        *,
        usual: Callable[[int], tuple[int, ...]] = usual_in_flight,
    ) -> None:
        self.problem = problem
        self.sharing = sharing
        self.sizes = sizes
        self._usual = usual
        self._work_before = _work_before(problem)
        self._balance = BalancedCuts(problem, speed=self._speed)
        self._uneven = len({rate for row in problem.links for rate in row if math.isfinite(rate)}) > 1

    def realise(self, outline: Outline) -> Candidate | None:
        """Samples shared, devices without any left out, others of their kind named in canonical order; None if too large."""
        most = -(-self.problem.mini_batch // outline.micro_batch)
        stages: list[CandidateStage] = []
        for place, group in enumerate(outline.groups):
            stage = self.sharing.stage(
                outline.cuts[place],
                outline.cuts[place + 1],
                tuple(sorted(group)),
                outline.micro_batch,
                min(outline.in_flight[place], most),
            )
            if stage is None:
                return None
            if self._uneven and stages:
                stage = aligned(stages[-1], stage, self.problem.links)
            stages.append(stage)
        return canonical(self.problem, Candidate(outline.micro_batch, tuple(stages)))

    def coarse(self, candidate: Candidate) -> list[Candidate]:
        """Other cuts, groups and micro-batch sizes, samples shared anew; each once, without the candidate itself."""
        outline = Outline.of(candidate)
        found: dict[Candidate, None] = {}
        for neighbour in itertools.chain(
            self._cuts(outline),
            self._groups(outline),
            self._splits(outline),
            self._sizes(outline),
            self._flights(outline),
        ):
            realised = self.realise(neighbour)
            if realised is not None:
                found.setdefault(realised)
        found.pop(candidate, None)
        return list(found)

    def fine(self, candidate: Candidate) -> list[Candidate]:
        """Other shares, K and orders of replicas in one stage; other shares with the usual K everywhere, too.

        Few in flight and even shares may be faster than more of them, and yet slower than more with other shares. And all
        stages with as many in flight as their memory holds, which one step at a stage may not lead to.
        """
        found: dict[Candidate, None] = {}
        usual = self._with_usual_in_flight(candidate.stages)
        found.setdefault(
            canonical(self.problem, Candidate(candidate.micro_batch, self._with_most_in_flight(candidate)))
        )
        for place, stage in enumerate(candidate.stages):
            for changed in itertools.chain(self._shares(stage), self._in_flight(candidate, place), _orders(stage)):
                stages = (*candidate.stages[:place], changed, *candidate.stages[place + 1 :])
                found.setdefault(canonical(self.problem, Candidate(candidate.micro_batch, stages)))
            if usual != candidate.stages:
                for changed in self._shares(usual[place]):
                    stages = (*usual[:place], changed, *usual[place + 1 :])
                    found.setdefault(canonical(self.problem, Candidate(candidate.micro_batch, stages)))
        found.pop(candidate, None)
        return list(found)

    def _with_usual_in_flight(self, stages: tuple[CandidateStage, ...]) -> tuple[CandidateStage, ...]:
        """With the usual K, or what memory holds of it."""
        most = self.problem.micro_batches(sum(stages[0].shares))
        changed = []
        for stage, wanted in zip(stages, self._usual(len(stages)), strict=True):
            held = min(wanted, most)
            while held > 1 and not self._holds(stage, held):
                held -= 1
            changed.append(stage._replace(in_flight=held))
        return tuple(changed)

    def _with_most_in_flight(self, candidate: Candidate) -> tuple[CandidateStage, ...]:
        """With as many as memory holds, all of a round's at the most; but for the last stage where it gives each back at once."""
        every = min(MOST_IN_FLIGHT, candidate.micro_batches(self.problem.mini_batch))
        changed = []
        gives_back = self._usual(1) == (1,)
        for stage in candidate.stages[:-1] if gives_back else candidate.stages:
            held = stage.in_flight
            while held < every and self._holds(stage, held + 1):
                held += 1
            changed.append(stage._replace(in_flight=held))
        return (*changed, *candidate.stages[len(changed) :])

    def _holds(self, stage: CandidateStage, in_flight: int) -> bool:
        """Whether every replica's memory holds so many micro-batches with the shares as they are."""
        layers, micro_batch = (stage.first, stage.end), sum(stage.shares)
        return all(
            share <= self.problem.largest_share(device, layers, in_flight=in_flight, micro_batch=micro_batch)
            for device, share in zip(stage.devices, stage.shares, strict=True)
        )

    def _cuts(self, outline: Outline) -> Iterator[Outline]:
        """One cut moved: by some layers, or to the next cuts that fewer bytes cross. Two neighbours moved together."""
        cuts = outline.cuts
        for place in range(1, len(cuts) - 1):
            targets = {cuts[place] + sign * step for step in _CUT_STEPS for sign in (-1, 1)}
            for cut in sorted(targets | self._cheaper_cuts(cuts[place])):
                if cuts[place - 1] < cut < cuts[place + 1]:
                    moved = (*cuts[:place], cut, *cuts[place + 1 :])
                    yield Outline(outline.micro_batch, moved, outline.groups, outline.in_flight)
        for place in range(1, len(cuts) - 2):
            for step in (sign * step for step in _PAIR_STEPS for sign in (-1, 1)):
                first, second = cuts[place] + step, cuts[place + 1] + step
                if cuts[place - 1] < first and second < cuts[place + 2]:
                    moved = (*cuts[:place], first, second, *cuts[place + 2 :])
                    yield Outline(outline.micro_batch, moved, outline.groups, outline.in_flight)

    def _cheaper_cuts(self, cut: int) -> set[int]:
        """The nearest cut on either side that fewer bytes cross."""
        sent = self.problem.cut_bytes
        before = next((other for other in range(cut - 1, 0, -1) if sent[other] < sent[cut]), cut)
        behind = next((other for other in range(cut + 1, self.problem.layer_count) if sent[other] < sent[cut]), cut)
        return {before, behind}

    def _groups(self, outline: Outline) -> Iterator[Outline]:
        """Devices moved, swapped, added, dropped; whole groups swapped; one of each kind stands for the others.

        Of few layers neighbours take theirs along, where memory is short: with those of the other group they may not fit.
        """
        groups = outline.groups
        stages = range(len(groups))
        idle = self._one_of_each_kind(set(range(self.problem.device_count)) - {d for group in groups for d in group})
        ones = [self._one_of_each_kind(set(group)) for group in groups]

        def changed(*changes: tuple[int, tuple[int, ...]]) -> Iterator[Outline]:
            new = list(groups)
            for place, group in changes:
                new[place] = group
            yield from self._regrouped(outline, new)

        for a in stages:
            for device in ones[a]:
                rest = _without(groups[a], device)
                yield from changed((a, rest))
                for b in stages:
                    if b != a:
                        yield from changed((a, rest), (b, (*groups[b], device)))
                for other in idle:
                    yield from changed((a, (*rest, other)))
            for device in idle:
                yield from changed((a, (*groups[a], device)))
            for b in stages[a + 1 :]:
                yield from changed((a, groups[b]), (b, groups[a]))
                if b == a + 1 and self.problem.layer_count <= FEW_LAYERS:
                    yield _turned_round(outline, a)
                for mine, theirs in itertools.product(ones[a], ones[b]):
                    if self.problem.kinds[mine] != self.problem.kinds[theirs]:
                        yield from changed(
                            (a, (*_without(groups[a], mine), theirs)), (b, (*_without(groups[b], theirs), mine))
                        )

    def _regrouped(self, outline: Outline, groups: list[tuple[int, ...]]) -> Iterator[Outline]:
        """With these groups; where one is empty, its layers go to the stage before it, or to the one behind it."""
        empty = next((place for place, group in enumerate(groups) if not group), None)
        if empty is None:
            yield Outline(outline.micro_batch, outline.cuts, tuple(groups), outline.in_flight)
            return
        left = tuple(group for group in groups if group)
        if not left:
            return
        for place in {max(empty, 1), min(empty + 1, len(groups) - 1)}:
            cuts = (*outline.cuts[:place], *outline.cuts[place + 1 :])
            yield Outline(outline.micro_batch, cuts, left, self._usual(len(left)))

    def _splits(self, outline: Outline) -> Iterator[Outline]:
        """A stage cut in two, its devices shared out or an idle one given one half; two neighbours made one."""
        cuts, groups = outline.cuts, outline.groups
        idle = self._one_of_each_kind(set(range(self.problem.device_count)) - {d for group in groups for d in group})
        for place, group in enumerate(groups):
            pairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(group, (device,)) for device in idle]
            pairs += [((device,), group) for device in idle]
            ordered = sorted(group)
            for split in range(1, len(ordered)):
                pairs += [(tuple(ordered[:split]), tuple(ordered[split:]))]
                pairs += [(tuple(ordered[split:]), tuple(ordered[:split]))]
            for first, second in pairs:
                for cut in self._halves(cuts[place], cuts[place + 1], first, second):
                    yield Outline(
                        outline.micro_batch,
                        (*cuts[: place + 1], cut, *cuts[place + 1 :]),
                        (*groups[:place], first, second, *groups[place + 1 :]),
                        self._usual(len(groups) + 1),
                    )
        for place in range(len(groups) - 1):
            yield Outline(
                outline.micro_batch,
                (*cuts[: place + 1], *cuts[place + 2 :]),
                (*groups[:place], (*groups[place], *groups[place + 1]), *groups[place + 2 :]),
                self._usual(len(groups) - 1),
            )

    def _halves(self, begin: int, end: int, first: tuple[int, ...], second: tuple[int, ...]) -> set[int]:
        """Cuts inside [begin, end): where the work is shared by the groups' speed, and the cheapest one near it.

        Of few layers one more at either end, which memory or a slow link may ask for.
        """
        if end - begin < 2:
            return set()
        work = self._work_before
        speeds = [sum(map(self._speed, group)) for group in (first, second)]
        mean = work[self.problem.class_of[first[0]]]
        wanted = mean[begin] + (mean[end] - mean[begin]) * speeds[0] / sum(speeds)
        inside = range(begin + 1, end)
        balanced = min(inside, key=lambda cut: abs(mean[cut] - wanted))
        near = [cut for cut in inside if abs(mean[cut] - wanted) <= 0.2 * (mean[end] - mean[begin])] or [balanced]
        ends = {begin + 1, end - 1} if self.problem.layer_count <= FEW_LAYERS else set()
        return {balanced, min(near, key=lambda cut: (self.problem.cut_bytes[cut], abs(cut - balanced))), *ends}

    def _speed(self, device: int) -> float:
        """In mini-batches of the whole model per second."""
        return 1.0 / max(float(self._work_before[self.problem.class_of[device]][-1]), 1e-300)

    def cut_anew(self, outline: Outline) -> Outline | None:
        """The same groups with the layers shared among them anew: one cut at a time may lead there by way of worse plans."""
        groups = outline.groups
        cuts = self._balance.cuts(groups, outline.micro_batch) if len(groups) > 1 else None
        return None if cuts is None else Outline(outline.micro_batch, cuts, groups, self._usual(len(groups)))

    def _sizes(self, outline: Outline) -> Iterator[Outline]:
        """Micro-batches of about half and twice the samples, and of those next to them in `sizes`."""
        size = outline.micro_batch
        below = [other for other in self.sizes if other < size][-2:]
        above = [other for other in self.sizes if other > size][:2]
        half = [other for other in self.sizes if 2 * other <= size][-1:]
        twice = [other for other in self.sizes if other >= 2 * size][:1]
        count = len(outline.groups)
        for other in sorted({*below, *above, *half, *twice}):
            every = min(MOST_IN_FLIGHT, -(-self.problem.mini_batch // other))
            for flights in (self._usual(count), (*[every] * (count - 1), self._usual(count)[-1])):
                yield Outline(other, outline.cuts, outline.groups, flights)

    def _flights(self, outline: Outline) -> Iterator[Outline]:
        """The usual K, Asteroid's, as many as there are in all but the last stage, and one less in all."""
        count = len(outline.groups)
        every = min(MOST_IN_FLIGHT, -(-self.problem.mini_batch // outline.micro_batch))
        fewer = tuple(max(1, held - 1) for held in outline.in_flight)
        for flights in (
            self._usual(count),
            fewer_in_flight(count),
            (*[every] * (count - 1), self._usual(count)[-1]),
            fewer,
        ):
            yield Outline(outline.micro_batch, outline.cuts, outline.groups, flights)

    def _shares(self, stage: CandidateStage) -> Iterator[CandidateStage]:
        """Some samples from one replica to another; of replicas of one kind with one share the first."""
        least = self.problem.instance.model.least_batch(stage.first, stage.end)
        kinds = [(self.problem.kinds[device], share) for device, share in zip(stage.devices, stage.shares, strict=True)]
        firsts = [place for place, kind in enumerate(kinds) if kinds.index(kind) == place]
        for giver in firsts:
            for taker in range(len(kinds)):
                if taker == giver or (kinds[taker] == kinds[giver] and taker > giver + 1):
                    continue
                if kinds.index(kinds[taker]) != taker and kinds[taker] != kinds[giver]:
                    continue
                for moved in {1, 2, max(1, stage.shares[giver] // 4), stage.shares[giver]}:
                    left = stage.shares[giver] - moved
                    if left < 0 or 0 < left < least:
                        continue
                    shares = list(stage.shares)
                    shares[giver] = left
                    shares[taker] += moved
                    most = self.problem.largest_share(
                        *(stage.devices[taker], (stage.first, stage.end)),
                        in_flight=stage.in_flight,
                        micro_batch=sum(shares),
                    )
                    if shares[taker] <= most:
                        yield _with_shares(stage, shares)

    def _in_flight(self, candidate: Candidate, place: int) -> Iterator[CandidateStage]:
        """K one more or one less, with samples shared anew for it and as they are."""
        stage = candidate.stages[place]
        for held in (stage.in_flight - 1, stage.in_flight + 1):
            if not 1 <= held <= min(MOST_IN_FLIGHT, candidate.micro_batches(self.problem.mini_batch)):
                continue
            if self._holds(stage, held):
                yield CandidateStage(stage.first, stage.end, stage.devices, stage.shares, held)
            shared = self.sharing.stage(
                stage.first, stage.end, tuple(sorted(stage.devices)), candidate.micro_batch, held
            )
            if shared is not None and shared.in_flight == held:
                yield shared

    def _one_of_each_kind(self, devices: set[int]) -> list[int]:
        kinds: dict[int, int] = {}
        for device in sorted(devices):
            kinds.setdefault(self.problem.kinds[device], device)
        return list(kinds.values())


def canonical(problem: SearchProblem, candidate: Candidate) -> Candidate:
    """The same with devices of each kind named in canonical order, as they come in the plan."""
    kinds, members = problem.kinds, problem.members
    named = [0] * len(members)
    stages = []
    changed = False
    for stage in candidate.stages:
        devices = []
        for device in stage.devices:
            kind = kinds[device]
            devices.append(members[kind][named[kind]])
            named[kind] += 1
        if (names := tuple(devices)) == stage.devices:
            stages.append(stage)
        else:
            stages.append(CandidateStage(stage.first, stage.end, names, stage.shares, stage.in_flight))
            changed = True
    return Candidate(candidate.micro_batch, tuple(stages)) if changed else candidate


def _orders(stage: CandidateStage) -> Iterator[CandidateStage]:
    """Two neighbours of the group swapped, or all the other way round: other frames."""
    places = list(range(len(stage.devices)))
    swaps = [[*places[:at], at + 1, at, *places[at + 2 :]] for at in range(len(places) - 1)]
    for order in [*swaps, places[::-1]]:
        yield CandidateStage(
            stage.first,
            stage.end,
            tuple(stage.devices[at] for at in order),
            tuple(stage.shares[at] for at in order),
            stage.in_flight,
        )


def _with_shares(stage: CandidateStage, shares: list[int]) -> CandidateStage:
    used = [place for place, share in enumerate(shares) if share > 0]
    return CandidateStage(
        stage.first,
        stage.end,
        tuple(stage.devices[place] for place in used),
        tuple(shares[place] for place in used),
        stage.in_flight,
    )


def _turned_round(outline: Outline, place: int) -> Outline:
    """A stage and the one behind it change places, each group with as many layers as it had."""
    cuts, groups = list(outline.cuts), list(outline.groups)
    cuts[place + 1] = cuts[place] + cuts[place + 2] - cuts[place + 1]
    groups[place], groups[place + 1] = groups[place + 1], groups[place]
    return outline._replace(cuts=tuple(cuts), groups=tuple(groups))


def _without(group: tuple[int, ...], device: int) -> tuple[int, ...]:
    return tuple(other for other in group if other != device)


def _work_before(problem: SearchProblem) -> list[list[float]]:
    """By class: seconds of the layers before each cut for the whole mini-batch."""
    forward, backward = problem.seconds
    rows: list[list[float]] = (forward[:, -1] + backward[:, -1]).tolist()
    return rows
