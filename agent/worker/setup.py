"""Phase one of an epoch at a worker: from a PrepareRequest to a stage that is ready to run rounds.

load job -> fetch layers -> build stage -> open links -> build optimizer -> rehearse -> ready
"""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from edgeswarm.job import SERVED, Job
from edgeswarm.job_file import load_job
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.plan import Plan
from edgeswarm.routes import Routes, TiedTensor
from edgeswarm.samples import SampleOrder
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.fetch import SamplePart
from edgeswarm.wire.v1 import agent_pb2

from .all_reduce import ReplicaGroup
from .compute import StageCompute
from .egress import EgressScheduler
from .epoch_state import EpochSwitch
from .executor import StageExecutor
from .feed import FeedRequest, SampleFeed
from .layers import LayerHolder, fetch_layers, load_optimizer_state, tensors_of
from .links import OutboundLinks
from .mailbox import Mailbox
from .memory import anonymous_bytes, give_back_free_memory, peak_anonymous_bytes, reset_peak
from .rehearsal import rehearse
from .samples import LocalSamples, SampleSource, ServedSamples
from .tensor_server import InboundEpoch, TensorServer
from .timing import Progress, RoundClock

OPEN_LINKS_SECONDS = 60.0
FEED_AHEAD = 8


@dataclass(frozen=True)
class WorkerContext:
    """What a worker has for its whole life."""

    identity: Identity
    device: str
    accelerator: str
    slow_down: float
    progress: Progress
    server: TensorServer


class StageEpoch:
    """Everything of one epoch at this worker. `close` ends its threads and streams."""

    def __init__(self, context: WorkerContext, request: agent_pb2.PrepareRequest, *, bundle_folder: Path) -> None:
        self._context = context
        self._request = request
        self._bundle_folder = bundle_folder
        self.job = request.job
        self.switch = EpochSwitch()
        self.seconds: dict[str, float] = {}
        self.parameter_bytes = 0
        self.peak_memory_bytes = 0
        self._stack = contextlib.ExitStack()
        self._executor: StageExecutor | None = None
        self._holder: LayerHolder | None = None

    @property
    def executor(self) -> StageExecutor:
        assert self._executor is not None, "the epoch is not prepared"
        return self._executor

    @property
    def holder(self) -> LayerHolder:
        assert self._holder is not None, "the epoch is not prepared"
        return self._holder

    def prepare(self) -> agent_pb2.PrepareReply:
        """Does all of it. Raises EdgeswarmError where something is missing, and what ended the epoch when it ends first."""
        request, context = self._request, self._context
        settings = request.training
        base_bytes = anonymous_bytes()
        reset_peak()
        self.switch.check()
        with self._timed("load job"):
            job = load_job(self._bundle_folder, settings.job_file, where=context.device)
            plan = Plan.from_json(json.loads(request.plan_json))
            graph = StageGraph.from_json(json.loads(request.stage_graph_json))
        tied = [TiedTensor(item.name, tuple(item.stages)) for item in request.tied]
        routes = Routes(plan, context.device, least_batch=max(1, settings.least_batch))
        order = SampleOrder(settings.dataset_length, settings.batch_size, settings.seed)
        with self._timed("fetch layers"):
            states = fetch_layers(
                context.identity, request.job, request.sources, round_number=request.first_round, switch=self.switch
            )
            self.switch.check()
        with self._timed("build stage"):
            module = StageModule(graph, tensors_of(states), device=context.accelerator)
        fetch_peak_memory_bytes = peak_anonymous_bytes()
        self.parameter_bytes = sum(p.numel() * p.element_size() for p in module.parameters.values())
        mailbox = Mailbox(self.switch, epoch=request.job.epoch)
        egress = EgressScheduler(self.switch)
        with self._timed("open links"):
            self._open_links(job, routes, order=order, tied=tied, mailbox=mailbox, egress=egress)
        feed = self._feed(job, routes, order)
        compute = StageCompute(
            module=module,
            routes=routes,
            epoch=request.job.epoch,
            seed=settings.seed,
            mailbox=mailbox,
            egress=egress,
            switch=self.switch,
            clock=RoundClock(),
            progress=context.progress,
            loss=job.loss,
            feed=feed,
            slow_down=context.slow_down,
        )
        group = ReplicaGroup(routes.replicas, context.device, epoch=request.job.epoch, egress=egress, mailbox=mailbox)
        with self._timed("build optimizer"):
            self._executor = StageExecutor(
                module=module,
                job=job,
                compute=compute,
                routes=routes,
                group=group,
                tied=tied,
                order=order,
                loss_counts=settings.loss_counts,
            )
            self._stack.callback(self._executor.close)
            load_optimizer_state(self._executor.optimizer, module, states)
        self._holder = LayerHolder(module, self._executor.optimizer, job_id=request.job.job_id)
        del states
        # What fetching left behind as the layers grew is no part of the peak.
        give_back_free_memory()
        with self._timed("rehearse"):
            self.peak_memory_bytes = rehearse(
                module,
                batch=routes.stage.shares[context.device],
                in_flight=min(routes.stage.in_flight, plan.micro_batches),
                device=context.device,
                check_halt=self.switch.check,
            )
            give_back_free_memory()
        return agent_pb2.PrepareReply(
            parameter_bytes=self.parameter_bytes,
            peak_memory_bytes=self.peak_memory_bytes,
            seconds=self.seconds,
            base_bytes=base_bytes,
            fetch_peak_memory_bytes=fetch_peak_memory_bytes,
        )

    def close(self) -> None:
        """Ends the epoch: streams, threads, feed. Idempotent."""
        self.switch.halt()
        self._context.server.hold_layers(None)
        self._stack.close()
        self._executor = None
        self._holder = None
        if self.switch.error is not None:
            # Its frames hold the stage and what was in flight, and the switch outlives both.
            self.switch.error.__traceback__ = None
        gc.collect()
        give_back_free_memory()

    @contextlib.contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        self._context.progress.set(part)
        started = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - started

    def _open_links(
        self,
        job: Job,
        routes: Routes,
        *,
        order: SampleOrder,
        tied: list[TiedTensor],
        mailbox: Mailbox,
        egress: EgressScheduler,
    ) -> None:
        """Streams to all that the plan has this device send to; takes those that come from the others."""
        request, context = self._request, self._context
        exchanges_totals = job.clip_gradient_norm is not None or request.training.loss_counts
        round_samples = {order.samples_of(0), order.samples_of(order.rounds_per_epoch - 1)}

        def peers_of(device: str) -> tuple[str, ...]:
            there = Routes(routes.plan, device, least_batch=routes.least_batch)
            return there.peers_to_send_to(round_samples, tied=tied, exchanges_totals=exchanges_totals)

        senders = {name for name in routes.plan.devices if name != context.device and context.device in peers_of(name)}
        context.server.open_epoch(InboundEpoch(request.job.job_id, request.job.epoch, senders, mailbox, self.switch))
        links = OutboundLinks(
            context.identity, job_id=request.job.job_id, epoch=request.job.epoch, egress=egress, switch=self.switch
        )
        self._stack.callback(links.close)
        addresses = {peer.node_id: peer.address for peer in request.peers}
        links.open({peer: addresses[peer] for peer in peers_of(context.device)}, timeout_seconds=OPEN_LINKS_SECONDS)

    def _feed(self, job: Job, routes: Routes, order: SampleOrder) -> SampleFeed | None:
        """Samples for the first stage (inputs) and the last (targets); None for those between."""
        if not (routes.is_first or routes.is_last):
            return None
        part = SamplePart.BOTH if routes.is_first and routes.is_last else SamplePart.TARGETS
        if routes.is_first and not routes.is_last:
            part = SamplePart.INPUTS
        settings = self._request.training
        feed = SampleFeed(
            source=self._sample_source(job),
            job=job,
            seed=settings.seed,
            part=part,
            requests=feed_requests(routes, order, self._request.first_round, settings.epochs * order.rounds_per_epoch),
            ahead=FEED_AHEAD,
            where=self._context.device,
        )
        self._stack.callback(feed.close)
        # Closing waits for the feed's thread; whoever throws the switch shall not.
        self.switch.on_thrown(lambda: threading.Thread(target=feed.close, name="close-feed", daemon=True).start())
        return feed

    def _sample_source(self, job: Job) -> SampleSource:
        settings = self._request.training
        if settings.data_mode != SERVED:
            return LocalSamples(job.dataset(), where=self._context.device)
        service = settings.data_service
        channel: grpc.Channel = secure_channel(
            service.address, identity=self._context.identity, node_id=service.node_id
        )
        self._stack.callback(channel.close)
        return ServedSamples(channel, self._request.job, holder=service.node_id)


def feed_requests(routes: Routes, order: SampleOrder, first_round: int, end_round: int) -> Iterator[FeedRequest]:
    """What this replica needs of every micro-batch of rounds first_round <= r < end_round, in the order of use."""
    epoch, permutation = -1, order.permutation(0)
    for round_number in range(first_round, end_round):
        if order.epoch_of(round_number) != epoch:
            epoch = order.epoch_of(round_number)
            permutation = order.permutation(epoch)
        start = (round_number % order.rounds_per_epoch) * order.batch_size
        for micro_batch, size in enumerate(routes.micro_batch_sizes(order.samples_of(round_number))):
            route = routes.micro_batch(size)
            if route is not None:
                first, end = start + route.interval.first, start + route.interval.end
                indices = tuple(int(index) for index in permutation[first:end])
                yield FeedRequest(round_number, micro_batch, indices, epoch)
            start += size
