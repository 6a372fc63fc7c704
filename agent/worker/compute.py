"""Forward and backward of one stage's replica, micro-batch by micro-batch: what the schedule's actions do.

    frames from upstream --> inputs --> [ stage ] --> outputs --> frames to downstream        (forward)
    frames to upstream <-- input gradients <-- [ stage ] <-- frames from downstream           (backward)

Frames follow overlaps of sample intervals; a live value that a later stage needs is relayed like any other. Where there is
no gradient to send back, an empty frame says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import model_arguments
from edgeswarm.model.draws import DrawKey
from edgeswarm.model.stage import StageModule
from edgeswarm.model.structure import flatten, unflatten
from edgeswarm.model.values import LiveValue
from edgeswarm.routes import MicroBatchRoute, Routes
from edgeswarm.samples import Interval
from edgeswarm.schedule.policy import Action, ActionKind
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame, dtype_name

from .egress import EgressScheduler
from .epoch_state import EpochSwitch
from .feed import SampleFeed
from .mailbox import Address, Mailbox
from .timing import BACKWARD, FORWARD, SEND, WAITING, Progress, RoundClock

LossFunction = Callable[[Any, Any], Any]


@dataclass
class LossTotals:
    """Sums over this replica's samples of a round."""

    loss_sum: float = 0.0
    count: float = 0.0


@dataclass
class _InFlight:
    """What waits between a micro-batch's forward and its backward."""

    route: MicroBatchRoute
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    loss: torch.Tensor | None = None


@dataclass
class StageCompute:
    """Runs actions. One object an epoch; `begin_round` before each round.

    feed: this replica's samples where the stage is the first or the last one. loss: the job's, at the last stage.
    slow_down: stretches computing, for demos and tests: 3.0 makes a third of the speed.
    """

    module: StageModule
    routes: Routes
    epoch: int
    seed: int
    mailbox: Mailbox
    egress: EgressScheduler
    switch: EpochSwitch
    clock: RoundClock
    progress: Progress
    loss: LossFunction
    feed: SampleFeed | None = None
    slow_down: float = 1.0
    _round: int = 0
    _sizes: tuple[int, ...] = ()
    _in_flight: dict[int, _InFlight] = field(default_factory=dict)
    totals: LossTotals = field(default_factory=LossTotals)

    def begin_round(self, round_number: int, sizes: tuple[int, ...]) -> list[int]:
        """Starts a round with micro-batches of these sizes; the indices of those in which this replica has samples."""
        self._round = round_number
        self._sizes = sizes
        self._in_flight.clear()
        self.totals = LossTotals()
        return [index for index, size in enumerate(sizes) if self.routes.micro_batch(size) is not None]

    def route(self, micro_batch: int) -> MicroBatchRoute:
        route = self.routes.micro_batch(self._sizes[micro_batch])
        assert route is not None
        return route

    # --- what an action needs -----------------------------------------------------------------------------------

    def needs(self, action: Action) -> tuple[Address, ...]:
        """The frames without which the action can't run."""
        graph = self.module.graph
        route = self.route(action.micro_batch)
        if action.kind is ActionKind.FORWARD:
            if self.routes.is_first:
                return ()
            return tuple(
                self._address(FrameKind.FORWARD, action.micro_batch, index, peer, interval)
                for index in range(len(graph.inputs))
                for peer, interval in route.upstream
            )
        if self.routes.is_last:
            return ()
        return tuple(
            self._address(FrameKind.BACKWARD, action.micro_batch, index, peer, interval)
            for index in _answered(graph.outputs)
            for peer, interval in route.downstream
        )

    def is_ready(self, action: Action) -> bool:
        return self.mailbox.has_all(self.needs(action))

    def wait_for(self, actions: Sequence[Action]) -> None:
        """Waits until one of the actions can run. Raises what ended the epoch."""
        needed = [self.needs(action) for action in actions]
        missing = self.mailbox.missing(needed[0])
        peers = tuple(sorted({peer for peer, _ in missing}))
        what = "gradients" if actions[0].kind is ActionKind.BACKWARD else "activations"
        if peers:
            text = f"{what} from {', '.join(peers)}"
            self.progress.set(WAITING + text, peers)
            with self.clock.part(WAITING + text):
                self.mailbox.wait_any(needed)

    def run(self, action: Action) -> None:
        """Runs one action whose needs are there."""
        if action.kind is ActionKind.FORWARD:
            self._forward(action.micro_batch)
        else:
            self._backward(action.micro_batch)

    # --- forward ------------------------------------------------------------------------------------------------

    def _forward(self, micro_batch: int) -> None:
        route = self.route(micro_batch)
        batch = route.interval.size
        inputs, targets = self._inputs(micro_batch, route)
        with self.clock.part(FORWARD):
            self.progress.set(f"forward of micro-batch {micro_batch}")
            started = time.thread_time()
            draw = DrawKey(self.seed, self._round, micro_batch, route.interval.first, route.interval.end)
            outputs = self.module.forward(batch, inputs, draw=draw, check_halt=self.switch.check)
            held = _InFlight(route, inputs, outputs)
            if self.routes.is_last:
                held.loss = self._loss(outputs, targets, batch)
            self._stretch(started)
        self._in_flight[micro_batch] = held
        if not self.routes.is_last:
            self._send(
                FrameKind.FORWARD,
                micro_batch,
                values=self.module.graph.outputs,
                tensors=dict(enumerate(outputs)),
                mine=route.interval,
                peers=route.downstream,
            )

    def _inputs(self, micro_batch: int, route: MicroBatchRoute) -> tuple[list[torch.Tensor], Any]:
        graph = self.module.graph
        targets = None
        tensors: list[torch.Tensor]
        if self.feed is not None:
            self.progress.set("waiting for samples")
            with self.clock.part(WAITING + "samples"):
                batch = self.feed.get(self._round, micro_batch)
            targets = batch.targets
        if self.routes.is_first:
            tensors = [
                tensor.to(self.module.device)
                for tensor in flatten(graph.input_structure, model_arguments(batch.inputs))
            ]
        else:
            tensors = [self._gathered(micro_batch, index, peers=route.upstream) for index in range(len(graph.inputs))]
            for tensor, value in zip(tensors, graph.inputs, strict=True):
                tensor.requires_grad_(value.requires_grad)
        return tensors, targets

    def _loss(self, outputs: Sequence[torch.Tensor], targets: Any, batch: int) -> torch.Tensor:
        """The loss summed over this replica's samples: gradients stay sums until the step."""
        result = self.loss(
            unflatten(self.module.graph.output_structure, outputs), _to_device(targets, self.module.device)
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
        graph = self.module.graph
        roots: list[torch.Tensor] = []
        gradients: list[torch.Tensor | None] = []
        if self.routes.is_last:
            assert held.loss is not None
            if held.loss.requires_grad:
                roots, gradients = [held.loss], [None]
        else:
            for index in _answered(graph.outputs):
                gradient = self._gathered_gradient(micro_batch, index, peers=held.route.downstream)
                if gradient is not None and held.outputs[index].requires_grad:
                    roots.append(held.outputs[index])
                    gradients.append(gradient)
        with self.clock.part(BACKWARD):
            self.progress.set(f"backward of micro-batch {micro_batch}")
            self.switch.check()
            started = time.thread_time()
            if roots:
                torch.autograd.backward(roots, gradients)
            self._stretch(started)
        if not self.routes.is_first:
            self._send(
                FrameKind.BACKWARD,
                micro_batch,
                values=graph.inputs,
                tensors={index: held.inputs[index].grad for index in _answered(graph.inputs)},
                mine=held.route.interval,
                peers=held.route.upstream,
            )

    # --- frames -------------------------------------------------------------------------------------------------

    def _address(self, kind: FrameKind, micro_batch: int, index: int, peer: str, interval: Interval) -> Address:
        return peer, FrameKey(kind, self._round, micro_batch, index, interval.first, interval.end)

    def _send(
        self,
        kind: FrameKind,
        micro_batch: int,
        *,
        values: Sequence[LiveValue],
        tensors: Mapping[int, torch.Tensor | None],
        mine: Interval,
        peers: Sequence[tuple[str, Interval]],
    ) -> None:
        """Sends each peer its samples of these tensors (by the index of their value); an empty frame for None."""
        with self.clock.part(SEND):
            for index, tensor in tensors.items():
                for peer, interval in peers:
                    part = torch.empty(0) if tensor is None else tensor.detach()
                    if tensor is not None and interval != mine:
                        part = part.narrow(values[index].batch_dim, interval.first - mine.first, interval.size)
                    key = FrameKey(kind, self._round, micro_batch, index, interval.first, interval.end)
                    self.egress.send(peer, OutgoingFrame(key, part, epoch=self.epoch))

    def _gathered(self, micro_batch: int, index: int, *, peers: Sequence[tuple[str, Interval]]) -> torch.Tensor:
        """A live value put together from the frames of the peers that hold parts of it."""
        value = self.module.graph.inputs[index]
        parts = []
        for peer, interval in peers:
            part = self.mailbox.take(self._address(FrameKind.FORWARD, micro_batch, index, peer, interval))
            parts.append(_checked(part, value, interval, peer))
        return self._joined(parts, value)

    def _gathered_gradient(
        self, micro_batch: int, index: int, *, peers: Sequence[tuple[str, Interval]]
    ) -> torch.Tensor | None:
        """The gradient of an output, likewise; None where none of the peers has one."""
        value = self.module.graph.outputs[index]
        parts: list[torch.Tensor | None] = []
        for peer, interval in peers:
            part = self.mailbox.take(self._address(FrameKind.BACKWARD, micro_batch, index, peer, interval))
            parts.append(None if tuple(part.shape) == (0,) else _checked(part, value, interval, peer))
        if all(part is None for part in parts):
            return None
        dtype = getattr(torch, value.dtype)
        return self._joined(
            [
                torch.zeros(value.with_batch(interval.size), dtype=dtype) if part is None else part
                for part, (_, interval) in zip(parts, peers, strict=True)
            ],
            value,
        )

    def _joined(self, parts: Sequence[torch.Tensor], value: LiveValue) -> torch.Tensor:
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=value.batch_dim)
        return whole.to(self.module.device)

    def _stretch(self, started_cpu_seconds: float) -> None:
        """Sleeps so long that the computing since then took `slow_down` times its CPU seconds."""
        if self.slow_down > 1.0:
            self.switch.sleep((self.slow_down - 1.0) * (time.thread_time() - started_cpu_seconds))


def _answered(values: Sequence[LiveValue]) -> tuple[int, ...]:
    """Which values of a cut get a frame back for each micro-batch: those with a gradient, else the first, an empty one.

    A stage that got no answer (its parameters are frozen) would not be held back by anything: it would run ahead through
    all rounds, and fill the memory of the next.
    """
    return tuple(index for index, value in enumerate(values) if value.requires_grad) or (0,)


def _checked(part: torch.Tensor, value: LiveValue, interval: Interval, peer: str) -> torch.Tensor:
    if tuple(part.shape) != value.with_batch(interval.size) or dtype_name(part.dtype) != value.dtype:
        raise EdgeswarmError(
            ErrorCode.WORKER_FAILED,
            f"{peer} sent {tuple(part.shape)} of {part.dtype} for {value.name}; "
            f"the plan says {value.with_batch(interval.size)} of {value.dtype}.",
        )
    return part


def _to_device(value: Any, device: torch.device) -> Any:
    if device.type == "cpu":
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _to_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_device(item, device) for item in value)
    return value


def _shown(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
