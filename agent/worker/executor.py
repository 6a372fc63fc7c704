"""One round at one worker: the schedule's actions, the all-reduce, what stages tell each other, the step."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence

import torch

from edgeswarm.gradient_pieces import bucket_bytes
from edgeswarm.job import Job
from edgeswarm.model.batch_norm import BatchNormMerger
from edgeswarm.model.stage import StageModule
from edgeswarm.routes import Routes, TiedTensor
from edgeswarm.samples import SampleOrder
from edgeswarm.schedule.policy import Action, ActionKind
from edgeswarm.wire.v1 import agent_pb2

from .accelerator import peak_bytes, wait_for
from .all_reduce import ReplicaGroup
from .compute import StageCompute
from .excess_memory import ExcessMemory
from .gradients import GradientBuckets, OverlappedReducer
from .step import StageConversation, StageOptimizer, Totals
from .timing import ALL_REDUCE, BACKWARD, FORWARD, OTHER, SEND, STEP, WAITING

LOSS_NUMBERS = 2


class StageExecutor:
    """Runs rounds of one stage's replica. Nothing here knows which schedule it is.

    loss_counts: the loss returns (sum, count), so that the count has to be learned from the last stage.
    fetched_sample_bytes: of training samples, from the data service, since the epoch began. expected_memory_bytes: of this
    worker at its peak, as the plan has it; None where it says nothing.
    """

    def __init__(
        self,
        *,
        module: StageModule,
        job: Job,
        compute: StageCompute,
        routes: Routes,
        group: ReplicaGroup,
        tied: Sequence[TiedTensor],
        order: SampleOrder,
        loss_counts: bool,
        fetched_sample_bytes: Callable[[], int] = lambda: 0,
        expected_memory_bytes: int | None = None,
    ) -> None:
        self._module = module
        self._compute = compute
        self._shared = compute.shared
        self._routes = routes
        self._order = order
        self._loss_counts = loss_counts
        self._clips = job.clip_gradient_norm is not None
        self._group = group
        trainable = [(name, p) for name, p in module.named_parameters_in_order() if p.requires_grad]
        self.optimizer = StageOptimizer(job, trainable)
        self.buckets = GradientBuckets(
            trainable, bucket_bytes=bucket_bytes(group.size), as_parameters_lie=group.size == 1
        )
        self._reducer = OverlappedReducer(self.buckets, trainable, group=group, switch=self._shared.switch)
        self._conversation = StageConversation(
            routes,
            tied=tied,
            epoch=self._shared.epoch,
            egress=self._shared.egress,
            mailbox=self._shared.mailbox,
            wire_dtype=self._shared.wire_dtype,
        )
        self._merger = BatchNormMerger(module.graph.batch_norms, module.buffers)
        compute.after_forward = lambda: self._merger.add(module.take_batch_statistics())
        not_counted = {tensor.name for tensor in tied if tensor.owner != routes.stage_index}
        self._tied_names = [tensor.name for tensor in tied]
        self._counted_names = [name for name, _ in trainable if name not in not_counted]
        self._waiting = module.waiting_parameters if routes.plan.has_weights_apart else frozenset()
        self._clock = self._shared.clock
        self._fetched_sample_bytes = fetched_sample_bytes
        self._bytes_before = (0, 0, 0, 0)
        self.excess_memory = ExcessMemory(expected_memory_bytes)

    def close(self) -> None:
        self._reducer.close()

    def run_round(self, round_number: int) -> agent_pb2.RoundReport:
        """One mini-batch up to and with the optimizer step. Raises what ended the epoch."""
        cpu_before = _cpu_seconds()
        self._clock.begin_round()
        self._shared.progress.round = round_number
        sizes = self._routes.micro_batch_sizes(self._order.samples_of(round_number))
        mine = self._compute.begin_round(round_number, sizes)
        self.buckets.zero()
        self._reducer.begin_round(round_number)
        statistics = self._run_schedule(mine)
        with self._clock.part(ALL_REDUCE):
            self._shared.progress.set("all-reduce", self._others())
            self._reducer.finish_backward()
            loss_sum, loss_count = self._reduce_numbers(statistics)
            totals = self._agree(round_number, loss_count)
        with self._clock.part(STEP):
            self._shared.progress.set("optimizer step", kind=STEP)
            norm = self.optimizer.step(
                self.buckets,
                count=totals.count,
                sum_of_squares=totals.sum_of_squares if self._clips else None,
                round_number=round_number,
            )
            wait_for(self._module.device.type)
        samples = sum(self._compute.exchange.route(index).interval.size for index in mine)
        report = self._report(round_number, samples, _cpu_seconds() - cpu_before)
        if self._routes.is_last and self._routes.is_leader:
            report.loss_sum, report.loss_count = loss_sum, loss_count
        if norm is not None:
            report.gradient_norm = norm
        return report

    def _run_schedule(self, micro_batches: Sequence[int]) -> torch.Tensor:
        """The sums of the batch statistics, which the replicas add up while backwards are still to do."""
        statistics = self._merger.to_vector()

        def run(action: Action) -> None:
            # With weights apart, those of earlier micro-batches may come behind the last backward. That tells autograd of no
            # gradient for those that wait, which counts as one.
            is_last = action.kind is not ActionKind.FORWARD and action.micro_batch == micro_batches[-1]
            self._reducer.arm(is_last, but=self._waiting if action.kind is ActionKind.BACKWARD else ())
            self._compute.run(action)
            if action == Action(ActionKind.FORWARD, micro_batches[-1]):
                statistics.copy_(self._merger.to_vector())
                self._reduce_beside(statistics)

        if not micro_batches:
            self._reduce_beside(statistics)
        self._compute.exchange.follow_schedule(micro_batches, run, samples=self._compute.feed)
        return statistics

    def _reduce_beside(self, statistics: torch.Tensor) -> None:
        if self._merger.elements:
            self._reducer.reduce_beside(statistics)

    def _reduce_numbers(self, statistics: torch.Tensor) -> tuple[float, float]:
        """Loss sum and count, and which parameters got a gradient, over all replicas.

        Applies the batch statistics, which are there by then.
        """
        totals, buckets = self._compute.totals, self.buckets
        loss = torch.tensor([totals.loss_sum, totals.count], dtype=torch.float64)
        touched = torch.tensor([name in buckets.touched for name in buckets.names], dtype=torch.float64)
        flat = torch.cat([loss, touched])
        self._reducer.reduce_beside(flat)
        self._reducer.wait()
        counts = flat[LOSS_NUMBERS:].tolist()
        # Of a tied weight the other holders know; it is taken to have got one.
        buckets.touched.update(name for name, count in zip(buckets.names, counts, strict=True) if count)
        buckets.touched.update(self._tied_names)
        if self._merger.elements:
            with self._clock.part(STEP):
                self._merger.apply(statistics)
        return float(flat[0]), float(flat[1])

    def _agree(self, round_number: int, loss_count: float) -> Totals:
        """Sums tied weights; learns the global count, and the squares of the whole gradient where the job clips."""
        self._conversation.sum_tied(self.buckets, round_number=round_number)
        squares = self.buckets.sum_of_squares(self._counted_names) if self._clips else 0.0
        if not (self._clips or self._loss_counts):
            return Totals(float(self._order.samples_of(round_number)), 0.0)
        mine = Totals(loss_count if self._routes.is_last else 0.0, squares)
        return self._conversation.exchange_totals(mine, round_number=round_number)

    def _others(self) -> tuple[str, ...]:
        return tuple(name for name in self._routes.replicas if name != self._routes.device)

    def _report(self, round_number: int, samples: int, cpu_seconds: float) -> agent_pb2.RoundReport:
        seconds, parts = self._clock.end_round()
        shared = self._shared
        totals = self._bytes_now()
        sent, left_out, received, fetched = (
            now - before for now, before in zip(totals, self._bytes_before, strict=True)
        )
        self._bytes_before = totals
        waiting = {name.removeprefix(WAITING): value for name, value in parts.items() if name.startswith(WAITING)}
        return agent_pb2.RoundReport(
            epoch=shared.epoch,
            round=round_number,
            seconds=seconds,
            samples=samples,
            forward_seconds=parts.get(FORWARD, 0.0),
            backward_seconds=parts.get(BACKWARD, 0.0),
            send_seconds=parts.get(SEND, 0.0),
            waiting_seconds=waiting,
            all_reduce_seconds=parts.get(ALL_REDUCE, 0.0),
            step_seconds=parts.get(STEP, 0.0),
            other_seconds=parts.get(OTHER, 0.0),
            sent_bytes=sent,
            received_bytes=received,
            peak_memory_bytes=peak_bytes(self._module.device.type),
            cpu_seconds=cpu_seconds,
            fetched_sample_bytes=fetched,
            model_cpu_seconds=shared.clock.model_cpu_seconds,
            left_out_bytes=left_out,
        )

    def _bytes_now(self) -> tuple[int, int, int, int]:
        """So far: sent, zeros that were to be sent and weren't, received, and fetched from the data service."""
        egress, received = self._shared.egress, self._shared.mailbox.received_bytes
        return egress.sent_bytes, egress.left_out_bytes, received, self._fetched_sample_bytes()


def run_rounds(
    executor: StageExecutor,
    first_round: int,
    end_round: int,
    *,
    finished: Callable[[agent_pb2.RoundReport], None],
) -> None:
    """Runs rounds first_round <= r < end_round and reports each. Raises what ended the epoch."""
    for round_number in range(first_round, end_round):
        report = executor.run_round(round_number)
        finished(report)
        executor.excess_memory.after_round(report.peak_memory_bytes)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
