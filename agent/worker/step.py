"""From summed gradients to the next weights: what stages tell each other before the step, and the step.

    stage 0 leader  --- (count, squares) -->  stage 1 leader  --- ... -->  last leader      up: partial sums
                    <----------------------                  <----------                     down: totals
    each leader tells its replicas

Only jobs that clip, or whose loss counts, need the totals. Tied weights: the holders' leaders send their sums to the first
holder's, which adds them in the order of the stages and sends the sum back; replicas get it from their leader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.routes import Routes, TiedTensor
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame

from .egress import EgressScheduler
from .gradients import GradientBuckets
from .mailbox import Mailbox

UP, DOWN, TO_REPLICAS = 0, 1, 2
TO_OWNER, BACK = 0, 1


@dataclass(frozen=True)
class Totals:
    """Over all stages: the count to divide by, and the sum of squares of the unnormalised gradient."""

    count: float
    sum_of_squares: float


class StageConversation:
    """What this stage tells the others between the last backward and the step."""

    def __init__(
        self,
        routes: Routes,
        *,
        tied: Sequence[TiedTensor],
        epoch: int,
        egress: EgressScheduler,
        mailbox: Mailbox,
        wire_dtype: str | None = None,
    ) -> None:
        self._routes = routes
        self._wire_dtype = wire_dtype
        self._tied = tuple(tied)
        self._epoch = epoch
        self._egress = egress
        self._mailbox = mailbox

    def exchange_totals(self, mine: Totals, *, round_number: int) -> Totals:
        """Adds every stage's part, in the order of the stages; the same bits at every worker."""
        routes = self._routes
        if not routes.is_leader:
            return self._take_totals(routes.replicas[0], TO_REPLICAS, round_number)
        partial = mine
        if not routes.is_first:
            before = self._take_totals(routes.leader_of(routes.stage_index - 1), UP, round_number)
            partial = Totals(before.count + mine.count, before.sum_of_squares + mine.sum_of_squares)
        if routes.is_last:
            totals = partial
        else:
            following = routes.leader_of(routes.stage_index + 1)
            self._send_totals(following, partial, UP, round_number)
            totals = self._take_totals(following, DOWN, round_number)
        if not routes.is_first:
            self._send_totals(routes.leader_of(routes.stage_index - 1), totals, DOWN, round_number)
        for replica in routes.replicas[1:]:
            self._send_totals(replica, totals, TO_REPLICAS, round_number)
        return totals

    def sum_tied(self, buckets: GradientBuckets, *, round_number: int) -> None:
        """Replaces the gradient of every tied weight held here by the sum over all its holders."""
        for index, tensor in enumerate(self._tied):
            if self._routes.stage_index in tensor.stages:
                self._sum_one(buckets.gradient(tensor.name), index, tensor, round_number)

    def _sum_one(self, gradient: torch.Tensor, index: int, tensor: TiedTensor, round_number: int) -> None:
        routes = self._routes
        stage = routes.stage_index
        if not routes.is_leader:
            key = FrameKey(FrameKind.TIED, round_number, BACK, index, stage, 0)
            gradient.copy_(self._mailbox.take((routes.replicas[0], key)))
            return
        if stage == tensor.owner:
            for other in tensor.stages[1:]:
                key = FrameKey(FrameKind.TIED, round_number, TO_OWNER, index, other, 0)
                gradient.add_(self._mailbox.take((routes.leader_of(other), key)).to(gradient.device))
            for other in tensor.stages[1:]:
                key = FrameKey(FrameKind.TIED, round_number, BACK, index, other, 0)
                self._send_tied(routes.leader_of(other), key, gradient)
        else:
            owner = routes.leader_of(tensor.owner)
            self._send_tied(owner, FrameKey(FrameKind.TIED, round_number, TO_OWNER, index, stage, 0), gradient)
            key = FrameKey(FrameKind.TIED, round_number, BACK, index, stage, 0)
            gradient.copy_(self._mailbox.take((owner, key)))
        for replica in routes.replicas[1:]:
            self._send_tied(replica, FrameKey(FrameKind.TIED, round_number, BACK, index, stage, 0), gradient)

    def _send_tied(self, peer: str, key: FrameKey, gradient: torch.Tensor) -> None:
        # A copy, since the gradient is divided and stepped on while the frame may still be leaving.
        frame = OutgoingFrame(
            key, gradient.clone(), epoch=self._epoch, wire_dtype=self._wire_dtype, leave_out_zeros=True
        )
        frame.leave_as_sent(gradient)
        self._egress.send(peer, frame)

    def _send_totals(self, peer: str, totals: Totals, way: int, round_number: int) -> None:
        content = torch.tensor([totals.count, totals.sum_of_squares], dtype=torch.float64)
        key = FrameKey(FrameKind.CONTROL, round_number, way, 0, 0, 0)
        self._egress.send(peer, OutgoingFrame(key, content, epoch=self._epoch))

    def _take_totals(self, peer: str, way: int, round_number: int) -> Totals:
        key = FrameKey(FrameKind.CONTROL, round_number, way, 0, 0, 0)
        count, squares = self._mailbox.take((peer, key)).tolist()
        return Totals(count, squares)


class StageOptimizer:
    """The user's optimizer over the parameters of one stage, its learning rate schedule and the clipping."""

    def __init__(self, job: Job, parameters: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self._schedule = job.learning_rate_schedule
        self._clip = job.clip_gradient_norm
        self._parameters = tuple(parameters)
        self.optimizer = job.optimizer(list(parameters)) if parameters else None
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            if "lr" in group:
                group.setdefault("initial_lr", group["lr"])
            elif self._schedule is not None:
                raise EdgeswarmError(
                    ErrorCode.JOB_INVALID,
                    f"The groups of {type(self.optimizer).__name__} have no lr for learning_rate_schedule to change.",
                    "Take learning_rate_schedule out of the job, or an optimizer that has it.",
                )

    def step(
        self, buckets: GradientBuckets, *, count: float, sum_of_squares: float | None, round_number: int
    ) -> float | None:
        """Divides the sums by the count, clips, sets the learning rate of this round, steps.

        sum_of_squares: of the whole model's unnormalised gradient; None where nothing is clipped.
        Returns the norm of the whole gradient before clipping, where it is known. Raises EdgeswarmError for a count of 0.
        """
        if not count > 0:
            raise EdgeswarmError(
                ErrorCode.JOB_INVALID,
                f"The loss counted {count} in round {round_number + 1}: there is nothing to divide the gradient by.",
                "Let the loss return (sum, count) with a count above 0 for every mini-batch.",
            )
        buckets.divide(count)
        norm = None
        if self._clip is not None and sum_of_squares is not None:
            norm = math.sqrt(sum_of_squares) / count
            factor = self._clip / (norm + 1e-6)
            if factor < 1.0:
                buckets.scale(factor)
        if self.optimizer is not None:
            if self._schedule is not None:
                for group in self.optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * self._schedule(round_number)
            self._step_where_there_is_a_gradient(self.optimizer, buckets)
        return norm

    def _step_where_there_is_a_gradient(self, optimizer: torch.optim.Optimizer, buckets: GradientBuckets) -> None:
        """As plain PyTorch, which leaves a parameter without a gradient alone: no weight decay, no state."""
        untouched = [(name, parameter) for name, parameter in self._parameters if name not in buckets.touched]
        for _, parameter in untouched:
            parameter.grad = None
        # Fused steps on a processor take elements as they lie, and look at no strides: weights that lie channels last would get
        # the steps of others where gradients, which replicas add up, or a state that came from elsewhere don't lie so.
        fused = [
            group
            for group in optimizer.param_groups
            if group.get("fused") and not all(parameter.is_contiguous() for parameter in group["params"])
        ]
        try:
            for group in fused:
                group["fused"] = False
            optimizer.step()
        finally:
            for group in fused:
                group["fused"] = True
            for name, parameter in untouched:
                parameter.grad = buckets.gradient(name)
