"""The evaluation set through one stage's replica: forward only, over the weights and statistics that training has now.

    items 0 .. length-1, in order, as the micro-batches of one round
    inputs --> [ stage, in evaluation mode ] --> outputs               kind EVALUATE
               <-- "the next one may come" <--                         kind EVALUATED
    at the last stage: loss and metrics of this replica's samples, summed

It runs by the plan's own schedule, whose backward is the empty answer, so that no stage runs ahead without bound.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.feed_ahead import FEED_AHEAD
from edgeswarm.job import LOSS, Job
from edgeswarm.model.draws import DrawKey, SeededCalls
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.model.structure import unflatten
from edgeswarm.routes import Routes
from edgeswarm.samples import Interval
from edgeswarm.schedule.policy import Action, ActionKind
from edgeswarm.wire.frames import FrameKind
from edgeswarm.wire.v1 import agent_pb2

from .epoch_context import EpochContext
from .exchange import StageExchange
from .feed import Batch, SampleFeed
from .job_loss import called
from .samples import SampleSource
from .stage_samples import evaluation_requests, sample_part, stage_inputs
from .timing import FORWARD, WAITING
from .transformed_samples import TransformedSamples

ACTIVITY = "evaluation: "

Metric = Callable[[Any, Any], Any]


def evaluation_module(graph: StageGraph, training: StageModule, fetched: Mapping[str, torch.Tensor]) -> StageModule:
    """The stage in evaluation mode over the very tensors of the training one; what that lacks is taken from `fetched`."""
    own = {**training.constants, **training.buffers, **training.parameters}
    tensors = {**fetched, **own}
    # What training computes with may lie otherwise than evaluation would have it: a copy would never be trained.
    return StageModule(graph, tensors, device=training.device, fast_layout=True, parameters_stay=True)


@dataclasses.dataclass
class MetricTotals:
    """One metric over this replica's samples, in float64."""

    sum: float = 0.0
    count: float = 0.0

    def add(self, name: str, result: object, *, rows: int) -> None:
        """Adds what the metric returned for so many rows. Raises JOB_INVALID for what is neither form of a metric."""
        if isinstance(result, tuple) and len(result) == 2:
            self.sum += _number(name, result[0])
            self.count += _number(name, result[1])
        else:
            self.sum += _number(name, result) * rows
            self.count += rows


class StageEvaluation:
    """One object an epoch; `run` once for each evaluation.

    length: items of the evaluation set. source: its samples, at the first and the last stage; what it keeps makes the
    next evaluation local. device: its name, for messages. transformed: what the transform made of samples before.
    """

    def __init__(
        self,
        module: StageModule,
        job: Job,
        *,
        routes: Routes,
        shared: EpochContext,
        length: int,
        source: SampleSource | None,
        device: str,
        transformed: TransformedSamples | None = None,
    ) -> None:
        self.module = module
        self._job = dataclasses.replace(job, transform=job.evaluation_transform or job.transform)
        functions: dict[str, Metric] = {LOSS: job.loss, **job.metrics}
        self._metrics = {name: SeededCalls(function) for name, function in functions.items()}
        self._routes = routes
        self._shared = shared
        self._length = length
        self._source = source
        self._transformed = transformed
        self._device = device
        self._exchange = StageExchange(
            module,
            routes,
            shared=shared,
            forward=FrameKind.EVALUATE,
            backward=FrameKind.EVALUATED,
            gradients=False,
            activity=ACTIVITY,
        )
        self._round = 0
        self._totals: dict[str, MetricTotals] = {}
        self._feed: SampleFeed | None = None
        shared.switch.on_thrown(self._close_feed_beside)

    def run(self, round_number: int) -> agent_pb2.EvaluationReport | None:
        """Evaluates the model as it is after so many rounds. What the last stage reports; None at the others.

        Raises what ended the epoch, and EdgeswarmError JOB_INVALID for a metric that gives no number.
        """
        started = time.perf_counter()
        self._round = round_number
        self._totals = {name: MetricTotals() for name in self._metrics}
        mine = self._exchange.begin_round(round_number, self._routes.micro_batch_sizes(self._length))
        feed = self._feed = self._open_feed()
        try:
            self._shared.switch.check()  # thrown before there was a feed to close
            with torch.no_grad():
                self._exchange.follow_schedule(mine, self._run)
        finally:
            self._feed = None
            if feed is not None:
                feed.close()
        if not self._routes.is_last:
            return None
        return agent_pb2.EvaluationReport(
            epoch=self._shared.epoch,
            round=round_number,
            seconds=time.perf_counter() - started,
            samples=sum(self._exchange.route(index).interval.size for index in mine),
            metrics=[
                agent_pb2.MetricSum(name=name, sum=totals.sum, count=totals.count)
                for name, totals in self._totals.items()
            ],
        )

    # --- actions ------------------------------------------------------------------------------------------------

    def _run(self, action: Action) -> None:
        if action.kind is ActionKind.FORWARD:
            self._forward(action.micro_batch)
        else:
            self._shared.switch.check()
            if not self._routes.is_last:
                self._exchange.take_gradients(action.micro_batch)
            if not self._routes.is_first:
                self._exchange.send_gradients(action.micro_batch, {})

    def _forward(self, micro_batch: int) -> None:
        route = self._exchange.route(micro_batch)
        samples = self._samples(micro_batch)
        for interval in route.passes:
            part = samples.rows(interval.first - route.interval.first, interval.end - route.interval.first)
            if self._routes.is_first:
                inputs = stage_inputs(self.module, part)
            else:
                inputs = self.module.arranged(self._exchange.take_inputs(micro_batch))
            outputs = self._forward_of(micro_batch, interval, inputs, part)
        # Only a stage that is the whole model has passes, and it sends nothing.
        self._exchange.send_outputs(micro_batch, outputs)

    def _forward_of(
        self, micro_batch: int, interval: Interval, inputs: list[torch.Tensor], samples: Batch
    ) -> Sequence[torch.Tensor]:
        with self._shared.clock.part(FORWARD):
            feed = None if self._feed is None else self._feed.doing
            self._shared.progress.set(f"{ACTIVITY}forward of micro-batch {micro_batch}", kind=ACTIVITY, turns_with=feed)
            with self._shared.computing():
                # A model may draw even here; then each evaluation of a round draws the same.
                draw = DrawKey(self._shared.seed, self._round, micro_batch, interval.first, interval.end)
                outputs = self.module.forward(interval.size, inputs, draw=draw, check_halt=self._shared.switch.check)
                if self._routes.is_last:
                    self._measure(outputs, samples, draw, rows=interval.size)
        return outputs

    def _samples(self, micro_batch: int) -> Batch:
        if self._feed is None:
            return Batch()
        self._shared.progress.set(f"{ACTIVITY}{WAITING}samples", beside=self._feed.doing)
        return self._feed.get(self._round, micro_batch)

    def _measure(self, outputs: Sequence[torch.Tensor], samples: Batch, draw: DrawKey, *, rows: int) -> None:
        output = unflatten(self.module.graph.output_structure, outputs)
        seed = draw.seed_of_layer(self.module.graph.end_layer)
        for name, metric in self._metrics.items():
            result = called(
                partial(metric, seed=seed, device=self.module.device),
                output,
                samples.targets,
                indices=samples.indices,
                device=self._device,
                on=self.module.device,
                dataset="evaluation dataset",
            )
            self._totals[name].add(name, result, rows=rows)

    # --- samples ------------------------------------------------------------------------------------------------

    def _open_feed(self) -> SampleFeed | None:
        part = sample_part(self._routes)
        if part is None or self._source is None:
            return None
        return SampleFeed(
            source=self._source,
            job=self._job,
            seed=self._shared.seed,
            part=part,
            requests=evaluation_requests(self._routes, self._length, self._round),
            ahead=FEED_AHEAD,
            where=self._device,
            transformed=self._transformed,
        )

    def _close_feed_beside(self) -> None:
        """Closing waits for the feed's thread; whoever throws the switch shall not."""
        feed = self._feed
        if feed is not None:
            threading.Thread(target=feed.close, name="close-feed", daemon=True).start()


def _number(name: str, value: object) -> float:
    """The one number that a metric gave. Raises JOB_INVALID naming the metric."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value)
    if not isinstance(value, (torch.Tensor, str)):
        try:
            return float(value)  # type: ignore[arg-type]  # a number of Python's or numpy's; anything else raises
        except (TypeError, ValueError):
            pass
    shown = (
        f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    )
    raise EdgeswarmError(
        ErrorCode.JOB_INVALID,
        f"The loss returned {shown} in the evaluation, not one number."
        if name == LOSS
        else f"The metric {name!r} returned {shown}, not one number.",
        "Let it return the mean over its rows, or (sum, count).",
    )
