"""Who exchanges which samples with whom, by a plan. Pure; the worker sends by it, and bytes per round are counted by it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .plan import Plan, Stage
from .samples import Interval, micro_batch_sizes, overlaps, split_in_passes, split_micro_batch


@dataclass(frozen=True)
class MicroBatchRoute:
    """One replica's part of one micro-batch.

    interval: the samples it takes. upstream, downstream: with whom it shares samples in the stage before and after, in
    the order of those stages' replicas; frames go along these, forward to `downstream`, backward to `upstream`.
    passes: the interval in parts, computed one after another.
    """

    interval: Interval
    upstream: tuple[tuple[str, Interval], ...]
    downstream: tuple[tuple[str, Interval], ...]
    passes: tuple[Interval, ...]


@dataclass(frozen=True)
class TiedTensor:
    """A parameter that several stages hold. The first of `stages` owns it: it sums the gradients, in the order of stages."""

    name: str
    stages: tuple[int, ...]

    @property
    def owner(self) -> int:
        return self.stages[0]


class Routes:
    """Everything a worker must know of the plan around it, from the point of view of `device`."""

    def __init__(self, plan: Plan, device: str, *, least_batch: int = 1) -> None:
        self.plan = plan
        self.device = device
        self.least_batch = least_batch
        self.stage_index = next(index for index, stage in enumerate(plan.stages) if device in stage.shares)
        self._by_size: dict[int, MicroBatchRoute | None] = {}

    @property
    def stage(self) -> Stage:
        return self.plan.stages[self.stage_index]

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == len(self.plan.stages) - 1

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(self.stage.shares)

    @property
    def is_leader(self) -> bool:
        """Whether this is the first replica, which speaks for its stage where stages talk to each other."""
        return self.replicas[0] == self.device

    def leader_of(self, stage_index: int) -> str:
        return next(iter(self.plan.stages[stage_index].shares))

    def micro_batch_sizes(self, samples: int) -> tuple[int, ...]:
        """Sizes of the micro-batches of a round of `samples` samples."""
        return micro_batch_sizes(samples, micro_batch=self.plan.micro_batch, least_batch=self.least_batch)

    def micro_batch(self, size: int) -> MicroBatchRoute | None:
        """This replica's part of a micro-batch of `size` samples; None where it has no samples in it."""
        if size not in self._by_size:
            self._by_size[size] = self._route(size)
        return self._by_size[size]

    def _intervals(self, stage_index: int, size: int) -> dict[str, Interval]:
        return split_micro_batch(self.plan.stages[stage_index].shares, size, least_batch=self.least_batch)

    def _route(self, size: int) -> MicroBatchRoute | None:
        interval = self._intervals(self.stage_index, size)[self.device]
        if interval.size == 0:
            return None
        before = {} if self.is_first else self._intervals(self.stage_index - 1, size)
        after = {} if self.is_last else self._intervals(self.stage_index + 1, size)
        passes = split_in_passes(interval, at_once=self.stage.at_once(self.device), least_batch=self.least_batch)
        return MicroBatchRoute(interval, tuple(overlaps(interval, before)), tuple(overlaps(interval, after)), passes)

    def peers_to_send_to(
        self, round_samples: Collection[int], *, tied: Sequence[TiedTensor] = (), exchanges_totals: bool = False
    ) -> tuple[str, ...]:
        """The devices this one opens a stream to, in a fixed order.

        round_samples: the sizes that mini-batches can have (a ragged last one may route differently).
        exchanges_totals: the job clips or counts, so that leaders of neighbouring stages talk before the step.
        """
        peers: dict[str, None] = {}
        for samples in sorted(round_samples):
            for size in sorted(set(self.micro_batch_sizes(samples))):
                route = self.micro_batch(size)
                if route is not None:
                    peers.update((name, None) for name, _ in (*route.upstream, *route.downstream))
        peers.update((name, None) for name in self._group_peers())
        if exchanges_totals and self.is_leader:
            neighbours = [s for s in (self.stage_index - 1, self.stage_index + 1) if 0 <= s < len(self.plan.stages)]
            peers.update((self.leader_of(stage), None) for stage in neighbours)
            peers.update((name, None) for name in self.replicas)
        for tensor in tied:
            if self.stage_index in tensor.stages and self.is_leader:
                others = tensor.stages if self.stage_index == tensor.owner else (tensor.owner,)
                peers.update((self.leader_of(stage), None) for stage in others)
                peers.update((name, None) for name in self.replicas)
        peers.pop(self.device, None)
        return tuple(peers)

    def _group_peers(self) -> tuple[str, ...]:
        return self.stage.all_reduce_peers(self.device)
