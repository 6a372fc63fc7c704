"""Phase one of an epoch at a worker: from a PrepareRequest to a stage that is ready to run rounds.

load job -> fetch layers, or keep them -> build stage -> open links -> open data -> build optimizer -> rehearse -> ready
"""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from edgeswarm.feed_ahead import FEED_AHEAD
from edgeswarm.job import SERVED, Job
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.plan import Plan
from edgeswarm.prepare_parts import FETCH_LAYERS, REHEARSE
from edgeswarm.routes import Routes, TiedTensor
from edgeswarm.samples import SampleOrder
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState
from edgeswarm.wire.byte_stream import open_stream
from edgeswarm.wire.frames import FrameKind
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .accelerator import give_back_free_memory, held_bytes, peak_bytes, reset_peak
from .all_reduce import ReplicaGroup
from .compute import StageCompute
from .egress import EgressScheduler
from .epoch_context import EpochContext
from .epoch_state import EpochSwitch
from .evaluation import StageEvaluation, evaluation_module
from .exchange import StageExchange
from .executor import StageExecutor
from .feed import SampleFeed
from .job_loss import move_modules
from .layers import LayerHolder, fetch_layers, load_optimizer_state, tensors_of
from .links import OutboundLinks
from .loaded_job import LoadedJob
from .mailbox import Mailbox
from .rehearsal import rehearse
from .sample_cache import SampleCache
from .samples import LocalSamples, SampleSource, check_length
from .served_samples import ServedSamples
from .stage_samples import feed_requests, sample_part
from .tensor_server import InboundEpoch, TensorServer
from .timing import Progress, RoundClock
from .transformed_samples import TransformedCache, TransformedSamples

OPEN_LINKS_SECONDS = 60.0


@dataclass(frozen=True)
class WorkerContext:
    """What a worker has for its whole life."""

    identity: Identity
    device: str
    accelerator: str
    slow_down: float
    progress: Progress
    server: TensorServer
    sample_cache: SampleCache
    transformed_cache: TransformedCache


class StageEpoch:
    """Everything of one epoch at this worker. `close` ends its threads and streams.

    loaded: the request's job, of which something may be there already. kept: the layers of the epoch before, where the request
    says that they are kept.
    """

    def __init__(
        self,
        context: WorkerContext,
        request: agent_pb2.PrepareRequest,
        *,
        loaded: LoadedJob,
        kept: Mapping[int, LayerState] | None = None,
    ) -> None:
        self._context = context
        self._request = request
        self._kept = kept
        self._keeps_layers = kept is not None
        self._loaded: LoadedJob | None = loaded
        self.job = request.job
        self.switch = EpochSwitch()
        self.seconds: dict[str, float] = {}
        self.parameter_bytes = 0
        self.peak_memory_bytes = 0
        self._stack = contextlib.ExitStack()
        self._executor: StageExecutor | None = None
        self._holder: LayerHolder | None = None
        self.evaluation: StageEvaluation | None = None

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
        base_bytes = held_bytes(context.accelerator)
        reset_peak(context.accelerator)
        self.switch.check()
        with self._timed("load job"):
            loaded, self._loaded = self._loaded, None  # nothing but its samples keep a data set in memory
            assert loaded is not None, "an epoch is prepared once"
            job = loaded.job
            plan = Plan.from_json(json.loads(request.plan_json))
            graph = StageGraph.from_json(json.loads(request.stage_graph_json))
        tied = [TiedTensor(item.name, tuple(item.stages)) for item in request.tied]
        routes = Routes(plan, context.device, least_batch=max(1, settings.least_batch))
        order = SampleOrder(settings.dataset_length, settings.batch_size, settings.seed, job.drop_last)
        with self._timed(FETCH_LAYERS):
            states = self._layers()
            self.switch.check()
        with self._timed("build stage"):
            module = StageModule(graph, tensors_of(states), device=context.accelerator, fast_layout=True)
            move_modules(job, module.device)
        fetch_peak_memory_bytes = peak_bytes(context.accelerator)
        self.parameter_bytes = sum(p.numel() * p.element_size() for p in module.parameters.values())
        mailbox = Mailbox(self.switch, epoch=request.job.epoch)
        egress = EgressScheduler(self.switch)
        with self._timed("open links"):
            self._open_links(job, routes, order=order, tied=tied, mailbox=mailbox, egress=egress)
        shared = EpochContext(
            epoch=request.job.epoch,
            seed=settings.seed,
            switch=self.switch,
            mailbox=mailbox,
            egress=egress,
            clock=RoundClock(),
            progress=context.progress,
            wire_dtype=settings.wire_dtype or None,
            slow_down=context.slow_down,
            accelerator=context.accelerator,
        )
        with self._timed("open data"):
            source = self._sample_source(loaded, routes, data_pb2.SAMPLE_SET_TRAINING)
            self.evaluation = self._evaluation(loaded, routes, module, states, shared)
            del loaded
        compute = StageCompute(
            module=module,
            routes=routes,
            exchange=StageExchange(
                module, routes, shared=shared, forward=FrameKind.FORWARD, backward=FrameKind.BACKWARD
            ),
            shared=shared,
            loss=job.loss,
            feed=self._feed(source, job, routes, order, changed=mailbox.look_again),
        )
        group = ReplicaGroup(
            routes.replicas,
            context.device,
            epoch=request.job.epoch,
            egress=egress,
            mailbox=mailbox,
            owners=routes.stage.chunk_owners,
            wire_dtype=shared.wire_dtype,
        )
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
                fetched_sample_bytes=_fetched_bytes_of(source),
                expected_memory_bytes=plan.predicted.memory_bytes.get(context.device) if plan.predicted else None,
            )
            self._stack.callback(self._executor.close)
            load_optimizer_state(self._executor.optimizer, module, states)
        self._holder = LayerHolder(
            module,
            self._executor.optimizer,
            job_id=request.job.job_id,
            evaluation=self.evaluation.module if self.evaluation is not None else None,
        )
        del states
        if not self._keeps_layers:
            # What fetching left behind as the layers grew is no part of the peak.
            give_back_free_memory(context.accelerator)
        with self._timed(REHEARSE):
            self.peak_memory_bytes = rehearse(
                module,
                batch=routes.stage.at_once(context.device),
                in_flight=min(routes.stage.in_flight, plan.micro_batches),
                device=context.device,
                check_halt=self.switch.check,
                weights_apart=plan.has_weights_apart,
                in_full=plan.held_micro_batches(routes.stage_index)[0],
            )
        self._holder.hold(request.first_round)
        context.server.hold_layers(self._holder.read)
        return agent_pb2.PrepareReply(
            parameter_bytes=self.parameter_bytes,
            peak_memory_bytes=self.peak_memory_bytes,
            seconds=self.seconds,
            base_bytes=base_bytes,
            fetch_peak_memory_bytes=fetch_peak_memory_bytes,
            opened_data=source is not None and settings.data_mode != SERVED,
        )

    def close(self, *, keeps_memory: bool = False) -> None:
        """Ends the epoch: streams, threads, feed. Idempotent.

        keeps_memory: another one follows at once, which will need as much.
        """
        self.switch.halt()
        self._context.server.hold_layers(None)
        if self._holder is not None:
            self._holder.let_go()  # a layer that is still on its way out must not be of what another epoch trains
        self._stack.close()
        self._executor = None
        self._holder = None
        self.evaluation = None
        if self.switch.error is not None:
            # Its frames hold the stage and what was in flight, and the switch outlives both.
            self.switch.error.__traceback__ = None
        gc.collect()
        if not keeps_memory:
            give_back_free_memory(self._context.accelerator)

    def _layers(self) -> Mapping[int, LayerState]:
        kept, self._kept = self._kept, None  # nothing but the stage keeps them in memory
        if kept is not None:
            return kept
        request = self._request
        return fetch_layers(
            self._context.identity, request.job, request.sources, round_number=request.first_round, switch=self.switch
        )

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
        if request.training.evaluation_length:
            round_samples.add(request.training.evaluation_length)

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

    def _feed(
        self,
        source: SampleSource | None,
        job: Job,
        routes: Routes,
        order: SampleOrder,
        *,
        changed: Callable[[], None],
    ) -> SampleFeed | None:
        """Samples of all rounds for the first stage (inputs) and the last (targets); None for those between. changed: as
        SampleFeed has it.
        """
        part = sample_part(routes)
        if source is None or part is None:
            return None
        settings = self._request.training
        feed = SampleFeed(
            source=source,
            job=job,
            seed=settings.seed,
            part=part,
            requests=feed_requests(routes, order, self._request.first_round, settings.epochs * order.rounds_per_epoch),
            ahead=FEED_AHEAD,
            where=self._context.device,
            transformed=self._transformed(routes, data_pb2.SAMPLE_SET_TRAINING),
            changed=changed,
        )
        self._stack.callback(feed.close)
        # Closing waits for the feed's thread; whoever throws the switch shall not.
        self.switch.on_thrown(lambda: threading.Thread(target=feed.close, name="close-feed", daemon=True).start())
        return feed

    def _evaluation(
        self,
        loaded: LoadedJob,
        routes: Routes,
        module: StageModule,
        states: Mapping[int, LayerState],
        shared: EpochContext,
    ) -> StageEvaluation | None:
        """The evaluation over the training stage's tensors; None where the job has no evaluation set."""
        request = self._request
        if not request.evaluation_graph_json:
            return None
        graph = StageGraph.from_json(json.loads(request.evaluation_graph_json))
        return StageEvaluation(
            evaluation_module(graph, module, tensors_of(states)),
            loaded.job,
            routes=routes,
            shared=shared,
            length=request.training.evaluation_length,
            source=self._sample_source(loaded, routes, data_pb2.SAMPLE_SET_EVALUATION),
            transformed=self._transformed(routes, data_pb2.SAMPLE_SET_EVALUATION),
            device=self._context.device,
        )

    def _transformed(self, routes: Routes, sample_set: data_pb2.SampleSet) -> TransformedSamples | None:
        """Where what the job's transform makes of samples is kept."""
        part = sample_part(routes)
        if part is None:
            return None
        return self._context.transformed_cache.of(self._request.job.job_id, int(sample_set), part)

    def _sample_source(self, loaded: LoadedJob, routes: Routes, sample_set: data_pb2.SampleSet) -> SampleSource | None:
        """Where the first and the last stage have their samples from; None between."""
        if sample_part(routes) is None:
            return None
        settings = self._request.training
        if settings.data_mode != SERVED:
            is_evaluation = sample_set == data_pb2.SAMPLE_SET_EVALUATION
            dataset = loaded.evaluation_dataset if is_evaluation else loaded.dataset
            check_length(
                dataset,
                settings.evaluation_length if is_evaluation else settings.dataset_length,
                called="evaluation dataset" if is_evaluation else "dataset",
                where=self._context.device,
            )
            return LocalSamples(dataset, where=self._context.device, reading=loaded.reading)
        service = settings.data_service
        served = ServedSamples(
            partial(open_stream, service.address, identity=self._context.identity, node_id=service.node_id),
            self._request.job,
            holder=service.node_id,
            sample_set=sample_set,
            cache=self._context.sample_cache,
        )
        self._stack.callback(served.close)
        return served


def _fetched_bytes_of(source: SampleSource | None) -> Callable[[], int]:
    return lambda: source.fetched_bytes if isinstance(source, ServedSamples) else 0
