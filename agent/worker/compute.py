"""Forward and backward of one stage's replica, micro-batch by micro-batch: what the schedule's actions do.

    inputs --> [ stage ] --> outputs               (forward; at the last stage the loss after it)
    input gradients <-- [ stage ] <-- gradients    (backward)
                           |
                           +--> gradients of its weights           (in the backward; or, as the schedule has it, later)

Where inputs and gradients come from and go to is the exchange's business. A stage that is the whole model may have its samples
in passes: all of them but the last one's backward are part of the forward, whose end nobody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.draws import DrawKey, SeededCalls
from edgeswarm.model.later_weights import LaterWeights
from edgeswarm.model.stage import StageModule
from edgeswarm.model.structure import unflatten
from edgeswarm.routes import Routes
from edgeswarm.samples import Interval
from edgeswarm.schedule.policy import Action, ActionKind

from .backward import edges_of, run_backward, run_later
from .epoch_context import EpochContext
from .exchange import StageExchange
from .feed import Batch, SampleFeed
from .job_loss import called
from .stage_samples import stage_inputs
from .timing import BACKWARD, FORWARD, WAITING

LossFunction = Callable[[Any, Any], Any]


@dataclass
class LossTotals:
    """Sums over this replica's samples of a round."""

    loss_sum: float = 0.0
    count: float = 0.0


@dataclass
class _InFlight:
    """What waits between a micro-batch's forward and its backward. outputs: None where nothing is trained before one.

    later: for the gradients of weights, where the schedule has them apart.
    """

    inputs: Sequence[torch.Tensor]
    outputs: Sequence[GradientEdge | None]
    later: LaterWeights | None
    loss: torch.Tensor | None = None


@dataclass
class StageCompute:
    """Runs actions. One object an epoch; `begin_round` before each round.

    feed: this replica's samples where the stage is the first or the last one. loss: the job's, at the last stage.
    after_forward: called after each forward of the module.
    """

    module: StageModule
    routes: Routes
    exchange: StageExchange
    shared: EpochContext
    loss: LossFunction
    feed: SampleFeed | None = None
    after_forward: Callable[[], None] = lambda: None
    totals: LossTotals = field(default_factory=LossTotals)
    _seeded_loss: SeededCalls = field(init=False)
    _round: int = 0
    _in_flight: dict[int, _InFlight] = field(default_factory=dict)
    _left: dict[int, LaterWeights] = field(default_factory=dict)
    _has_weights_apart: bool = field(init=False)

    def __post_init__(self) -> None:
        self._seeded_loss = SeededCalls(self.loss)
        self._has_weights_apart = self.routes.plan.has_weights_apart

    def begin_round(self, round_number: int, sizes: tuple[int, ...]) -> list[int]:
        """Starts a round with micro-batches of these sizes; the indices of those in which this replica has samples."""
        self._round = round_number
        self._in_flight.clear()
        self._left.clear()
        self.totals = LossTotals()
        return self.exchange.begin_round(round_number, sizes)

    def run(self, action: Action) -> None:
        """Runs one action whose frames are there."""
        if action.kind is ActionKind.FORWARD:
            self._forward(action.micro_batch)
        elif action.kind is ActionKind.BACKWARD:
            self._backward(action.micro_batch)
        else:
            self._weights(action.micro_batch)

    # --- forward ------------------------------------------------------------------------------------------------

    def _forward(self, micro_batch: int) -> None:
        route = self.exchange.route(micro_batch)
        samples = self._samples(micro_batch)
        for interval in route.passes[:-1]:
            part = samples.rows(interval.first - route.interval.first, interval.end - route.interval.first)
            # Nothing of a pass is held while the next one computes: its outputs alone would hold its graph.
            self._backward_of(
                micro_batch, self._forward_of(micro_batch, interval, stage_inputs(self.module, part), part)[0]
            )
        last = route.passes[-1]
        if last != route.interval:
            samples = samples.rows(last.first - route.interval.first, last.end - route.interval.first)
        inputs = stage_inputs(self.module, samples) if self.routes.is_first else self._inputs(micro_batch)
        self._in_flight[micro_batch], outputs = self._forward_of(micro_batch, last, inputs, samples)
        self.exchange.send_outputs(micro_batch, outputs)

    def _forward_of(
        self, micro_batch: int, interval: Interval, inputs: list[torch.Tensor], samples: Batch
    ) -> tuple[_InFlight, Sequence[torch.Tensor]]:
        """Forward of an interval of a micro-batch: what its backward needs, and the outputs."""
        with self.shared.clock.part(FORWARD):
            feed = None if self.feed is None else self.feed.doing
            self.shared.progress.set(f"forward of micro-batch {micro_batch}", kind=FORWARD, turns_with=feed)
            with self.shared.computing():
                draw = DrawKey(self.shared.seed, self._round, micro_batch, interval.first, interval.end)
                later = LaterWeights() if self._has_weights_apart else None
                outputs = self.module.forward(
                    interval.size, inputs, draw=draw, check_halt=self.shared.switch.check, later=later
                )
                held = _InFlight(inputs, edges_of(outputs), later)
                if self.routes.is_last:
                    held.loss = self._loss(outputs, samples, draw, interval.size)
        self.after_forward()
        return held, outputs

    def _samples(self, micro_batch: int) -> Batch:
        """Of the first and the last stage."""
        if self.feed is None:
            return Batch()
        self.shared.progress.set(WAITING + "samples", beside=self.feed.doing)
        with self.shared.clock.part(WAITING + "samples"):
            return self.feed.get(self._round, micro_batch)

    def _inputs(self, micro_batch: int) -> list[torch.Tensor]:
        """What the stage before sent."""
        inputs = self.module.arranged(self.exchange.take_inputs(micro_batch))
        for tensor, value in zip(inputs, self.module.graph.inputs, strict=True):
            tensor.requires_grad_(value.requires_grad)
        return inputs

    def _loss(self, outputs: Sequence[torch.Tensor], samples: Batch, draw: DrawKey, batch: int) -> torch.Tensor:
        """The loss summed over this replica's samples: gradients stay sums until the step.

        It draws as a layer behind the model's last one would.
        """
        seed = draw.seed_of_layer(self.module.graph.end_layer)
        result = called(
            partial(self._seeded_loss, seed=seed, device=self.module.device),
            unflatten(self.module.graph.output_structure, outputs),
            samples.targets,
            indices=samples.indices,
            device=self.routes.device,
            on=self.module.device,
        )
        if isinstance(result, tuple):
            total, count = result
            self.totals.count += float(count)
        else:
            total = result * batch
            self.totals.count += batch
        if not isinstance(total, torch.Tensor) or total.numel() != 1:
            raise EdgeswarmError(
                ErrorCode.JOB_INVALID,
                f"The loss returned {_shown(total)}, not one number.",
                "Let it return the mean over its rows, or (sum, count).",
            )
        self.totals.loss_sum += float(total.detach())
        return total

    # --- backward -----------------------------------------------------------------------------------------------

    def _backward(self, micro_batch: int) -> None:
        held = self._in_flight.pop(micro_batch)
        self._backward_of(micro_batch, held)
        if held.later is not None:
            self._left[micro_batch] = held.later
        if not self.routes.is_first:
            self.exchange.send_gradients(micro_batch, {index: tensor.grad for index, tensor in enumerate(held.inputs)})

    def _weights(self, micro_batch: int) -> None:
        """What the backward of the micro-batch has left."""
        left = self._left.pop(micro_batch)
        with self.shared.clock.part(BACKWARD):
            self.shared.progress.set(f"gradients of weights of micro-batch {micro_batch}", kind=BACKWARD)
            with self.shared.computing():
                run_later(left, check_halt=self.shared.switch.check)

    def _backward_of(self, micro_batch: int, held: _InFlight) -> None:
        roots: list[torch.Tensor | GradientEdge] = []
        gradients: list[torch.Tensor | None] = []
        if self.routes.is_last:
            assert held.loss is not None
            if held.loss.requires_grad:
                roots, gradients = [held.loss], [None]
        else:
            for index, gradient in self.exchange.take_gradients(micro_batch).items():
                if (output := held.outputs[index]) is not None:
                    roots.append(output)
                    gradients.append(gradient)
        with self.shared.clock.part(BACKWARD):
            self.shared.progress.set(f"backward of micro-batch {micro_batch}", kind=BACKWARD)
            self.shared.switch.check()
            with self.shared.computing():
                if roots:
                    run_backward(roots, gradients)


def _shown(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
