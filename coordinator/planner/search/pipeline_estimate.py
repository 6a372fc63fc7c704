"""What many candidates take, all at once: figures of stages and links, remembered, then pipeline_batch.py.

The simulator tells the truth about one plan; this tells nearly as much about a hundred in the same time, to choose which
ones to simulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeswarm.chunk_owners import exchange_steps, traffic
from edgeswarm.gradient_pieces import LEAST_BUCKET_BYTES, MOST_PIECES, bucket_bytes
from edgeswarm.model_costs import FloatArray
from edgeswarm.samples import split_micro_batch

from .candidate import Candidate, CandidateStage
from .pipeline_batch import PipelineBatch, follow
from .problem import SearchProblem

_TIE = 0.01


@dataclass(frozen=True)
class StageFigures:
    """Seconds of one stage: forward and backward of a micro-batch, and from its last backward to its round's end.

    all_reduce: of all buckets on the links; last_bucket: the part that nothing hides. handling: of the slowest replica's
    processor, with frames and bytes of the all-reduce. step: the optimizer's and the round's own. weights: of the gradients of
    weights of a micro-batch where they come apart, and the backward is the rest.
    """

    forward: float
    backward: float
    all_reduce: float
    last_bucket: float
    handling: float
    step: float
    weights: float = 0.0


@dataclass(frozen=True)
class LinkFigures:
    """Seconds that a micro-batch occupies the cards at a cut: of the senders and of the receivers, forward and backward."""

    forward_out: float
    forward_in: float
    backward_out: float
    backward_in: float


_NO_LINK = LinkFigures(0.0, 0.0, 0.0, 0.0)


class PipelineEstimator:
    """Estimates candidates of one problem; figures of stages and links are remembered.

    weights_apart: gradients of weights come apart in plans of several stages, and fill gaps.
    """

    def __init__(self, problem: SearchProblem, *, weights_apart: bool = False) -> None:
        self.problem = problem
        self._weights_apart = weights_apart
        self._stages: dict[tuple[object, ...], StageFigures] = {}
        self._links: dict[tuple[object, ...], LinkFigures] = {}
        self._rows: dict[tuple[CandidateStage, CandidateStage | None], tuple[float, ...]] = {}
        self._last: dict[tuple[object, ...], tuple[float, float]] = {}
        self._last_shares: dict[tuple[object, ...], tuple[int, ...]] = {}

    def estimate(self, candidates: Sequence[Candidate]) -> FloatArray:
        """[candidates]: seconds of a round."""
        if not candidates:
            return np.zeros(0)
        pipeline, source = follow(self._batch(candidates)), self._source_seconds(candidates)
        if self.problem.instance.model.tied:
            pipeline = pipeline + np.array([self._tied_seconds(candidate) for candidate in candidates])
        # Where the source decides, the pipeline still tells one plan from another.
        return np.asarray(np.maximum(pipeline, source) + _TIE * np.minimum(pipeline, source))

    def _batch(self, candidates: Sequence[Candidate]) -> PipelineBatch:
        problem = self.problem
        lengths = np.array([len(candidate.stages) for candidate in candidates])
        batch = PipelineBatch(len(candidates), int(lengths.max()), latency=problem.latency)
        batch.counts[:] = [candidate.micro_batches(problem.mini_batch) for candidate in candidates]
        batch.last[:] = lengths - 1
        # All at once: numbers one by one would take longer than the pipelines themselves.
        used = np.arange(batch.stages)[None, :] < lengths[:, None]
        figures = np.array([row for candidate in candidates for row in self._figures(candidate)])
        batch.in_flight[used] = figures[:, 0]
        batch.behind[used] = figures[:, 1]
        if self._weights_apart:
            batch.weights = np.zeros((len(candidates), batch.stages, 2))
            batch.weights[used] = figures[:, 2:3] * _part_of_full(figures)
        pairs = (
            *(batch.forward, batch.backward),
            *(batch.forward_out, batch.forward_in, batch.backward_out, batch.backward_in),
        )
        for place, target in enumerate(pairs):
            target[used] = figures[:, 3 + 2 * place : 5 + 2 * place]
        return batch

    def _figures(self, candidate: Candidate) -> list[tuple[float, ...]]:
        """Of each stage, as PipelineBatch has them: K, behind, and of each pair of times a full micro-batch and the last."""
        found = []
        for stage, receiver in zip(candidate.stages, (*candidate.stages[1:], None), strict=True):
            # Its shares are those of a full micro-batch, which says how many there are, and what is left for the last one.
            key = (stage, receiver)
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = self._work_out_row(stage, receiver, micro_batch=candidate.micro_batch)
            found.append(row)
        return found

    def _work_out_row(
        self, stage: CandidateStage, receiver: CandidateStage | None, *, micro_batch: int
    ) -> tuple[float, ...]:
        before, rest = divmod(self.problem.mini_batch, micro_batch)
        figures, link = self._stage_figures(stage), self._link_figures(stage, receiver)
        if not rest:
            return _row(stage, figures, (figures.forward, figures.backward), (link, link))
        end = stage._replace(shares=self._shares_of_last(stage, rest))
        is_whole = stage.end - stage.first == self.problem.layer_count
        ahead = before if is_whole else min(before, stage.in_flight)
        link_of_last = _NO_LINK
        if receiver is not None:
            link_of_last = self._link_figures(end, receiver._replace(shares=self._shares_of_last(receiver, rest)))
        return _row(stage, figures, self._last_seconds(stage, end.shares, ahead), (link, link_of_last))

    def _shares_of_last(self, stage: CandidateStage, rest: int) -> tuple[int, ...]:
        """What each replica has of the round's last micro-batch of `rest` samples; some may have nothing."""
        key = (stage.devices, stage.shares, rest)
        if key not in self._last_shares:
            names = self.problem.instance.device_names
            shares = {names[device]: share for device, share in zip(stage.devices, stage.shares, strict=True)}
            parts = split_micro_batch(shares, rest, least_batch=self.problem.least_batch)
            self._last_shares[key] = tuple(part.size for part in parts.values())
        return self._last_shares[key]

    def _last_seconds(self, stage: CandidateStage, shares: tuple[int, ...], ahead: int) -> tuple[float, float]:
        """Forward and backward of a last micro-batch with these shares, by which the stage's slowest replica is longer busy.

        ahead: micro-batches before it, in all of which a faster replica has gained on the slowest one.
        """
        key = (stage.first, stage.end, stage.devices, stage.shares, shares, ahead)
        if key not in self._last:
            full = self._stage_figures(stage)
            longest = (0.0, 0.0)
            for device, usual, share in zip(stage.devices, stage.shares, shares, strict=True):
                if share == 0:
                    continue
                forward, backward = self._replica_seconds(stage, device, share)
                gained = ahead * (full.forward + full.backward - sum(self._replica_seconds(stage, device, usual)))
                part = max(0.0, 1 - gained / max(forward + backward, 1e-300))
                longest = max(longest, (forward * part, backward * part), key=sum)
            self._last[key] = longest
        return self._last[key]

    def _stage_figures(self, stage: CandidateStage) -> StageFigures:
        kinds = self.problem.kinds
        first, end = self.problem.alike.representative(stage.first, stage.end)
        key = (first, end, tuple([kinds[device] for device in stage.devices]), stage.shares)
        if key not in self._stages:
            self._stages[key] = self._work_out_stage(stage._replace(first=first, end=end))
        return self._stages[key]

    def _work_out_stage(self, stage: CandidateStage) -> StageFigures:
        problem = self.problem
        forward, both, step, weights = 0.0, 0.0, 0.0, 0.0
        for device, share in zip(stage.devices, stage.shares, strict=True):
            there, back = self._replica_seconds(stage, device, share)
            forward, both = max(forward, there), max(both, there + back)
            kind = problem.class_of[device]
            weights = max(weights, self._weights_seconds(stage, kind, share))
            update = problem.update_before[kind]
            overheads = problem.profiles[kind].overheads
            step = max(step, float(update[stage.end] - update[stage.first]) + overheads.round_seconds)
        backward = both - forward  # one replica may be the slowest forward, another one in both
        size = len(stage.devices)
        if size == 1:
            return StageFigures(forward, backward, 0.0, 0.0, 0.0, step, weights)
        gradients = problem.gradient_bytes(stage.first, stage.end)
        latency = exchange_steps(size) * problem.instance.network.most_latency(stage.devices)
        bucket = bucket_bytes(size)
        least = problem.buckets_before[stage.end] - problem.buckets_before[stage.first]
        buckets = least * LEAST_BUCKET_BYTES / bucket + 1
        statistics = problem.statistics_bytes[stage.end] - problem.statistics_bytes[stage.first]
        pieces = max(buckets, min(gradients / bucket, buckets * MOST_PIECES))
        owners = problem.owners(stage.first, stage.end, stage.devices) or stage.devices
        factor, handling = 0.0, 0.0
        for device, replica in problem.replicas(tuple(sorted(stage.devices))).items():
            does = traffic(size, len(owners), is_owner=device in owners)
            factor = max(factor, replica.byte_seconds(does))
            each = replica.overheads
            frames = pieces * (does.frames + does.waits)
            handling = max(handling, frames * each.frame_seconds + 2 * does.sent * gradients * each.byte_seconds)
        last_bucket = factor * min(gradients, bucket, problem.last_bucket_bytes[stage.first]) + 2 * latency
        carrying = factor * (gradients + statistics) + latency * buckets
        return StageFigures(forward, backward, carrying, last_bucket, handling, step, weights)

    def _weights_seconds(self, stage: CandidateStage, kind: int, share: int) -> float:
        """Of the gradients of weights, where they come apart."""
        if not self._is_apart(stage):
            return 0.0
        weights = self.problem.seconds_apart[1]
        return float(weights[kind, share, stage.end] - weights[kind, share, stage.first])

    def _is_apart(self, stage: CandidateStage) -> bool:
        return self._weights_apart and stage.end - stage.first < self.problem.layer_count

    def _replica_seconds(self, stage: CandidateStage, device: int, share: int) -> tuple[float, float]:
        """Forward and backward of so many samples, with what their frames take the processor."""
        kind = self.problem.class_of[device]
        forward, backward = self.problem.seconds
        if self._is_apart(stage):
            backward = self.problem.seconds_apart[0]
        overheads = self.problem.profiles[kind].overheads
        more = overheads.action_seconds + overheads.frame_seconds * 2
        there, back = self._carried_bytes(stage)
        return (
            float(forward[kind, share, stage.end] - forward[kind, share, stage.first])
            + (more + overheads.byte_seconds * share * there),
            float(backward[kind, share, stage.end] - backward[kind, share, stage.first])
            + (more + overheads.byte_seconds * share * back),
        )

    def _carried_bytes(self, stage: CandidateStage) -> tuple[float, float]:
        """Of one sample, by both cuts: with its forward, samples from a data source among it, and with its backward."""
        problem = self.problem
        there = problem.cut_bytes[stage.first] if stage.first else problem.served_bytes(len(stage.devices))
        back = problem.answered_bytes[stage.first]
        if stage.end < problem.layer_count:
            there += problem.cut_bytes[stage.end]
            back += problem.answered_bytes[stage.end]
        return there, back

    def _link_figures(self, sender: CandidateStage, receiver: CandidateStage | None) -> LinkFigures:
        if receiver is None:
            return _NO_LINK
        kinds = self.problem.kinds
        senders = tuple([kinds[device] for device in sender.devices])
        receivers = tuple([kinds[device] for device in receiver.devices])
        # Wherever as many bytes cross.
        cut = (self.problem.cut_bytes[sender.end], self.problem.answered_bytes[sender.end])
        key = (cut, senders, sender.shares, receivers, receiver.shares)
        if key not in self._links:
            self._links[key] = self._work_out_link(sender, receiver)
        return self._links[key]

    def _work_out_link(self, sender: CandidateStage, receiver: CandidateStage) -> LinkFigures:
        """Each device's bytes over its card; a pair's over its link, where that is slower."""
        problem = self.problem
        sent, answered = problem.cut_bytes[sender.end], problem.answered_bytes[sender.end]
        there, back = 0.0, 0.0
        begin = 0
        others, other_begin = 0, 0
        for a, share in zip(sender.devices, sender.shares, strict=True):
            end = begin + share
            while others < len(receiver.devices) and other_begin < end:
                b = receiver.devices[others]
                other_end = other_begin + receiver.shares[others]
                overlap = min(end, other_end) - max(begin, other_begin)
                there = max(there, overlap * sent / problem.links[a][b])
                back = max(back, overlap * answered / problem.links[b][a])
                if other_end > end:
                    break
                others, other_begin = others + 1, other_end
            begin = end

        def over(rates: list[float], stage: CandidateStage) -> float:
            """Of a byte of each sample."""
            return max(share / rates[device] for device, share in zip(stage.devices, stage.shares, strict=True))

        return LinkFigures(
            forward_out=max(there, sent * over(problem.card_out, sender)),
            forward_in=max(there, sent * over(problem.card_in, receiver)),
            backward_out=max(back, answered * over(problem.card_out, receiver)),
            backward_in=max(back, answered * over(problem.card_in, sender)),
        )

    def _tied_seconds(self, candidate: Candidate) -> float:
        """What the sums of tied parameters take between stages before the step: to the first of these, back, and to its group."""
        problem, seconds = self.problem, 0.0
        for tensor in problem.instance.model.tied:
            holding = [
                stage.devices
                for stage in candidate.stages
                if any(stage.first <= layer < stage.end for layer in tensor.layers)
            ]
            if len(holding) < 2 or not tensor.gradient_bytes:
                continue
            size, (owner, *others) = tensor.gradient_bytes, [devices[0] for devices in holding]
            there = max(size / problem.links[other][owner] for other in others)
            back = max(size / problem.links[owner][other] for other in others)
            there = max(there, len(others) * size / problem.card_in[owner])
            back = max(back, (len(others) + len(holding[0]) - 1) * size / problem.card_out[owner])
            to_group = max((len(devices) - 1) * size / problem.card_out[devices[0]] for devices in holding[1:])
            seconds += there + back + to_group + 2 * problem.latency
        return seconds

    def _source_seconds(self, candidates: Sequence[Candidate]) -> FloatArray:
        """[candidates]: what the samples of a round take the data source, and the replicas that get them, at the least."""
        source = self.problem.instance.data_source
        if source is None:
            return np.zeros(len(candidates))
        instance, seconds = self.problem.instance, []
        for candidate in candidates:
            carried: dict[int, float] = {}
            ends = [(True, False, candidate.stages[0]), (False, True, candidate.stages[-1])]
            for is_first, is_last, stage in ends if len(candidate.stages) > 1 else [(True, True, candidate.stages[0])]:
                size = instance.served_bytes(is_first=is_first, is_last=is_last)
                for device, share in zip(stage.devices, stage.shares, strict=True):
                    part = share / candidate.micro_batch
                    carried[device] = part * self.problem.mini_batch * size * source.fetched(part)
            over_card = sum(size for device, size in carried.items() if not source.on_its_machine[device])
            slowest = max(size / source.bandwidth[device] for device, size in carried.items())
            seconds.append(max(over_card / source.egress, slowest))
        return np.array(seconds)


def _part_of_full(figures: FloatArray) -> FloatArray:
    """[stages, 2]: of the seconds of a full micro-batch, what that takes and what a round's last one does; by the forwards."""
    full = np.maximum(figures[:, 3:4], 1e-300)
    return np.asarray(figures[:, 3:5] / full)


def _row(
    stage: CandidateStage, figures: StageFigures, last: tuple[float, float], links: tuple[LinkFigures, LinkFigures]
) -> tuple[float, ...]:
    """In the order in which `_batch` takes them apart.

    last: forward and backward of the round's last micro-batch. links: of a full micro-batch and of the last one.
    """
    full, end = links
    hidden = figures.weights or last[1]  # beside the last of these
    reducing = max(figures.all_reduce - hidden, figures.handling + figures.last_bucket)
    return (
        *(stage.in_flight, reducing + figures.step, figures.weights),
        *(figures.forward, last[0], figures.backward, last[1]),
        *(full.forward_out, end.forward_out, full.forward_in, end.forward_in),
        *(full.backward_out, end.backward_out, full.backward_in, end.backward_in),
    )
