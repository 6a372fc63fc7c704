"""A job over the workers of a Lan: what a worker's setup makes of a plan, without its processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from edgeswarm.job import Job
from edgeswarm.model.draws import DrawKey
from edgeswarm.model.evaluation import EvaluationGraph
from edgeswarm.model.later_weights import LaterWeights
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.stage import StageModule
from edgeswarm.plan import Plan, Stage
from edgeswarm.routes import Routes
from edgeswarm.samples import SampleOrder
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD
from edgeswarm.snapshot import LayerState, pack_layer, unpack_layer
from edgeswarm.wire.frames import FrameKind
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from edgeswarm_agent.worker.all_reduce import ReplicaGroup
from edgeswarm_agent.worker.compute import StageCompute
from edgeswarm_agent.worker.epoch_context import EpochContext
from edgeswarm_agent.worker.evaluation import StageEvaluation, evaluation_module
from edgeswarm_agent.worker.exchange import StageExchange
from edgeswarm_agent.worker.executor import StageExecutor
from edgeswarm_agent.worker.feed import SampleFeed
from edgeswarm_agent.worker.layers import LayerHolder, load_optimizer_state, tensors_of
from edgeswarm_agent.worker.samples import LocalSamples
from edgeswarm_agent.worker.stage_samples import feed_requests, sample_part
from edgeswarm_agent.worker.timing import Progress, RoundClock

from .lan import JOB, Lan, WorkerEnd


def layer_states(
    graph: LayerGraph,
    model: nn.Module,
    *,
    constants: Mapping[str, Tensor] | None = None,
    evaluation: EvaluationGraph | None = None,
) -> dict[int, bytes]:
    """The layers of round 0 as a coordinator packs them. constants: the training graph's."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    lifted = {**(constants or {}), **(evaluation.constants if evaluation else {})}
    packed = {}
    for layer in graph.layers:
        further = evaluation.layer_graph.layers[layer.index].constants if evaluation else ()
        state = LayerState(
            round=0,
            parameters={name: parameters[name].detach() for name in layer.parameters},
            buffers={name: buffers[name] for name in layer.buffers},
            constants={name: lifted[name] for name in (*layer.constants, *further)},
        )
        packed[layer.index] = pack_layer(state)
    return packed


# A worker has a process of its own, and torch's generator in it; here all share one, so that they draw one after the other.
_DRAWING = threading.Lock()


class OneOfSeveral(StageModule):
    """A stage whose layers draw as in a process of their own."""

    def forward(
        self,
        batch: int,
        inputs: Sequence[Tensor],
        *,
        draw: DrawKey | None,
        check_halt: Callable[[], None] | None = None,
        later: LaterWeights | None = None,
    ) -> tuple[Tensor, ...]:
        with _DRAWING:
            return super().forward(batch, inputs, draw=draw, check_halt=check_halt, later=later)


class StageRun:
    """layers: the packed state of each layer at the beginning of `first_round`; each worker unpacks its own copy.

    `close` it: it has feeds and threads.
    """

    def __init__(
        self,
        lan: Lan,
        job: Job,
        graph: LayerGraph,
        stages: Sequence[Stage],
        layers: Mapping[int, bytes],
        *,
        evaluation: EvaluationGraph | None = None,
        first_round: int = 0,
        schedule: str = ONE_FORWARD_ONE_BACKWARD,
    ) -> None:
        micro_batch = sum(stages[0].shares.values())
        self.plan = Plan(
            planner="by hand",
            micro_batch=micro_batch,
            micro_batches=-(-job.batch_size // micro_batch),
            stages=tuple(stages),
            schedule=schedule,
        )
        self.job = job
        self.first_round = first_round
        self.order = SampleOrder(len(job.dataset()), job.batch_size, job.seed)
        self.rounds = job.epochs * self.order.rounds_per_epoch
        self.feeds: list[SampleFeed] = []
        self.computes: dict[str, StageCompute] = {}
        self.executors: dict[str, StageExecutor] = {}
        self.holders: dict[str, LayerHolder] = {}
        self.evaluations: dict[str, StageEvaluation] = {}
        for name, end in lan.ends.items():
            stage = self.plan.stages[self.plan.stage_of(name)]
            states = {index: unpack_layer(layers[index]) for index in range(stage.first_layer, stage.end_layer)}
            module = OneOfSeveral(graph.stage(stage.first_layer, stage.end_layer), tensors_of(states))
            self._build(end, module, states)
            further = None
            if evaluation is not None:
                further = evaluation_module(
                    evaluation.layer_graph.stage(stage.first_layer, stage.end_layer), module, tensors_of(states)
                )
                self.evaluations[name] = self._evaluation(end, further)
            self.holders[name] = LayerHolder(module, self.executors[name].optimizer, job_id=JOB, evaluation=further)
            self.holders[name].hold(first_round)

    def _build(self, end: WorkerEnd, module: StageModule, states: Mapping[int, LayerState]) -> None:
        job, routes = self.job, Routes(self.plan, end.name)
        shared = EpochContext(
            epoch=1,
            seed=job.seed,
            switch=end.switch,
            mailbox=end.mailbox,
            egress=end.egress,
            clock=RoundClock(),
            progress=Progress(),
            wire_dtype=job.wire_dtype,
        )
        feed = None
        part = sample_part(routes)
        if part is not None:
            feed = SampleFeed(
                source=LocalSamples(job.dataset(), where=end.name),
                job=job,
                seed=job.seed,
                part=part,
                requests=feed_requests(routes, self.order, self.first_round, self.rounds),
                where=end.name,
                changed=end.mailbox.look_again,
            )
            self.feeds.append(feed)
        compute = StageCompute(
            module=module,
            routes=routes,
            exchange=StageExchange(
                module, routes, shared=shared, forward=FrameKind.FORWARD, backward=FrameKind.BACKWARD
            ),
            shared=shared,
            loss=job.loss,
            feed=feed,
        )
        executor = StageExecutor(
            module=module,
            job=job,
            compute=compute,
            routes=routes,
            group=ReplicaGroup(
                routes.replicas,
                end.name,
                epoch=1,
                egress=end.egress,
                mailbox=end.mailbox,
                wire_dtype=job.wire_dtype,
            ),
            tied=(),
            order=self.order,
            loss_counts=False,
        )
        load_optimizer_state(executor.optimizer, module, states)
        self.computes[end.name], self.executors[end.name] = compute, executor

    def _evaluation(self, end: WorkerEnd, module: StageModule) -> StageEvaluation:
        job, compute = self.job, self.computes[end.name]
        assert job.evaluation_dataset is not None
        dataset = job.evaluation_dataset()
        return StageEvaluation(
            module,
            job,
            routes=compute.routes,
            shared=compute.shared,
            length=len(dataset),
            source=LocalSamples(dataset, where=end.name) if sample_part(compute.routes) is not None else None,
            device=end.name,
        )

    def train(self, end: WorkerEnd, *, first_round: int | None = None, end_round: int | None = None) -> None:
        """Rounds first_round <= r < end_round, by default all that are left."""
        first = self.first_round if first_round is None else first_round
        last = self.rounds if end_round is None else end_round
        self.holders[end.name].let_go()
        for number in range(first, last):
            self.executors[end.name].run_round(number)
        self.holders[end.name].hold(last)

    def packed_layers(self, round_number: int) -> dict[int, bytes]:
        """Every layer as the first replica of its stage gives it."""
        packed = {}
        for stage in self.plan.stages:
            holder = self.holders[next(iter(stage.shares))]
            for layer in range(stage.first_layer, stage.end_layer):
                request = data_pb2.FetchLayerRequest(
                    job=agent_pb2.JobReference(job_id=JOB), layer=layer, round=round_number
                )
                packed[layer] = b"".join(holder.read(request)[1])
        return packed

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()
        for executor in self.executors.values():
            executor.close()

    def parameters(self) -> dict[str, Tensor]:
        return {
            name: parameter.detach()
            for compute in self.computes.values()
            for name, parameter in compute.module.parameters.items()
        }

    def with_optimizer_state(self) -> set[str]:
        return {
            name
            for device, executor in self.executors.items()
            for name, parameter in self.computes[device].module.parameters.items()
            if executor.optimizer.optimizer is not None and executor.optimizer.optimizer.state.get(parameter)
        }
