"""What a stage's replica sends its neighbours and takes from them, micro-batch by micro-batch.

    frames from upstream --> inputs              outputs --> frames to downstream      kind `forward`
    frames to upstream <-- input gradients     gradients <-- frames from downstream    kind `backward`

Frames follow overlaps of sample intervals; a live value that a later stage needs is relayed like any other. Where there is
no gradient to send back, an empty frame says so. Training and evaluation differ in the kinds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.stage import StageModule
from edgeswarm.model.values import LiveValue
from edgeswarm.routes import MicroBatchRoute, Routes
from edgeswarm.samples import Interval
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD, make_policy
from edgeswarm.schedule.policy import Action, ActionKind
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame, dtype_name

from .epoch_context import EpochContext
from .mailbox import Address
from .timing import SEND, WAITING, Progress


class SampleSupply(Protocol):
    """A feed of samples. doing: what its thread is at."""

    doing: Progress

    def has(self, round_number: int, micro_batch: int) -> bool:
        """Whether a micro-batch's can be taken without waiting."""


class StageExchange:
    """The frames of one stage's replica, of one kind forward and one backward; `begin_round` before each round.

    gradients: whether backward frames carry any; without, each micro-batch is answered by one empty frame, and the schedule is
    1F1B whatever the plan's.
    activity: put before what it waits for, where a person reads it.
    """

    def __init__(
        self,
        module: StageModule,
        routes: Routes,
        *,
        shared: EpochContext,
        forward: FrameKind,
        backward: FrameKind,
        gradients: bool = True,
        activity: str = "",
    ) -> None:
        self._module = module
        self._graph = module.graph
        self._device = module.device
        self._routes = routes
        self._shared = shared
        self._forward = forward
        self._backward = backward
        self._activity = activity
        self._answer = "gradients" if gradients else "answers"
        self._schedule = routes.plan.schedule if gradients else ONE_FORWARD_ONE_BACKWARD
        self._answered_inputs = _answered(self._graph.inputs, gradients=gradients)
        self._answered_outputs = _answered(self._graph.outputs, gradients=gradients)
        self._round = 0
        self._sizes: tuple[int, ...] = ()

    # --- a round ------------------------------------------------------------------------------------------------

    def begin_round(self, round_number: int, sizes: tuple[int, ...]) -> list[int]:
        """Starts a round with micro-batches of these sizes; the indices of those in which this replica has samples."""
        self._round = round_number
        self._sizes = sizes
        return [index for index, size in enumerate(sizes) if self._routes.micro_batch(size) is not None]

    def route(self, micro_batch: int) -> MicroBatchRoute:
        route = self._routes.micro_batch(self._sizes[micro_batch])
        assert route is not None
        return route

    def follow_schedule(
        self, micro_batches: Sequence[int], run: Callable[[Action], None], *, samples: SampleSupply | None = None
    ) -> None:
        """Runs the actions of the plan's schedule, each with `run` as soon as its frames are there.

        samples: what forwards take beside frames. While those of a forward are late, a backward may come first; where there is
        none to come, the forward is run and waits for them itself. Raises what ended the epoch.
        """
        policy = make_policy(self._schedule, micro_batches, in_flight=self._routes.stage.in_flight)

        def is_late(action: Action) -> bool:
            is_forward = action.kind is ActionKind.FORWARD
            return samples is not None and is_forward and not samples.has(self._round, action.micro_batch)

        def is_ready(action: Action) -> bool:
            return self._has_frames(action) and not is_late(action)

        while not policy.is_done:
            action, awaited = policy.next_action(is_ready), policy.awaited()
            if action is None and len(awaited) == 1 and self._has_frames(awaited[0]):
                action = awaited[0]
            if action is None:
                self._wait_for(awaited, is_late=is_late, beside=None if samples is None else samples.doing)
            else:
                run(action)
                policy.finished(action)

    def _has_frames(self, action: Action) -> bool:
        return self._shared.mailbox.has_all(self._needs(action))

    def _needs(self, action: Action) -> tuple[Address, ...]:
        """The frames without which the action can't run."""
        route = self.route(action.micro_batch)
        if action.kind is ActionKind.FORWARD:
            kind, indices, peers = self._forward, tuple(range(len(self._graph.inputs))), route.upstream
        else:
            kind, indices, peers = self._backward, self._answered_outputs, route.downstream
        return tuple(
            address for index in indices for address in self._addresses(kind, action.micro_batch, index, peers)
        )

    def _wait_for(
        self, actions: Sequence[Action], *, is_late: Callable[[Action], bool], beside: Progress | None
    ) -> None:
        """Waits until one of the actions can run, or samples are there that it lacked. Raises what ended the epoch.

        beside: of the thread that makes samples ready.
        """
        late = [action for action in actions if is_late(action)]
        others = [action for action in actions if action not in late] or actions
        needed = [self._needs(action) for action in others]
        missing = self._shared.mailbox.missing(needed[0])
        peers = tuple(sorted({peer for peer, _ in missing}))
        what = self._answer if others[0].kind is ActionKind.BACKWARD else "activations"
        if peers:
            text = WAITING + f"{what} from {', '.join(peers)}"
            self._shared.progress.set(self._activity + text, peers, beside=beside if late else None)
            with self._shared.clock.part(text):
                self._shared.mailbox.wait_any(needed, or_else=lambda: not all(map(is_late, late)))

    # --- values and gradients -----------------------------------------------------------------------------------

    def send_outputs(self, micro_batch: int, outputs: Sequence[torch.Tensor]) -> None:
        """Sends downstream what the stage computed; nothing from the last one."""
        peers = self.route(micro_batch).downstream
        with self._shared.clock.part(SEND):
            for index, (value, tensor) in enumerate(zip(self._graph.outputs, outputs, strict=True)):
                for address in self._addresses(self._forward, micro_batch, index, peers):
                    self._send(address, value, tensor)

    def take_inputs(self, micro_batch: int) -> list[torch.Tensor]:
        """The live values before the stage, put together from the frames of the peers that hold parts of them."""
        peers = self.route(micro_batch).upstream
        inputs = []
        for index, value in enumerate(self._graph.inputs):
            whole = self._gathered(self._addresses(self._forward, micro_batch, index, peers), value)
            assert whole is not None
            inputs.append(whole)
        return inputs

    def send_gradients(self, micro_batch: int, gradients: Mapping[int, torch.Tensor | None]) -> None:
        """Answers upstream: the gradients by the index of their input, an empty frame where there is none."""
        peers = self.route(micro_batch).upstream
        with self._shared.clock.part(SEND):
            for index in self._answered_inputs:
                for address in self._addresses(self._backward, micro_batch, index, peers):
                    self._send(address, self._graph.inputs[index], gradients.get(index))

    def take_gradients(self, micro_batch: int) -> dict[int, torch.Tensor]:
        """The gradients of the outputs by their index, likewise; without those that none of the peers has."""
        peers = self.route(micro_batch).downstream
        gradients = {}
        for index in self._answered_outputs:
            addresses = self._addresses(self._backward, micro_batch, index, peers)
            whole = self._gathered(addresses, self._graph.outputs[index])
            if whole is not None:
                gradients[index] = self._module.arranged_gradient(whole)
        return gradients

    def _gathered(self, addresses: Sequence[Address], value: LiveValue) -> torch.Tensor | None:
        """This replica's samples of a value, from all peers that hold some; None where none of them sent any."""
        parts = [self._take(address, value) for address in addresses]
        if all(part is None for part in parts):
            return None
        dtype = getattr(torch, value.dtype)
        whole = [
            torch.zeros(value.with_batch(_samples(key)), dtype=dtype) if part is None else part
            for part, (_, key) in zip(parts, addresses, strict=True)
        ]
        return (whole[0] if len(whole) == 1 else torch.cat(whole, dim=value.batch_dim)).to(self._device)

    # --- frames -------------------------------------------------------------------------------------------------

    def _addresses(
        self, kind: FrameKind, micro_batch: int, index: int, peers: Sequence[tuple[str, Interval]]
    ) -> list[Address]:
        """One frame for each of the peers, as a MicroBatchRoute has them; the peer sends it or gets it."""
        return [
            (peer, FrameKey(kind, self._round, micro_batch, index, interval.first, interval.end))
            for peer, interval in peers
        ]

    def _send(self, address: Address, value: LiveValue, tensor: torch.Tensor | None) -> None:
        """Sends a peer its samples of this replica's tensor; an empty frame for None."""
        peer, key = address
        mine = self.route(key.micro_batch).interval
        if tensor is None:
            part = torch.empty(0)
        elif _samples(key) == mine.size:
            part = tensor
        else:
            part = tensor.narrow(value.batch_dim, key.first_sample - mine.first, _samples(key))
        wire_dtype = None if value.is_input else self._shared.wire_dtype
        frame = OutgoingFrame(key, part, epoch=self._shared.epoch, wire_dtype=wire_dtype)
        self._shared.egress.send(peer, frame)

    def _take(self, address: Address, value: LiveValue) -> torch.Tensor | None:
        """What a peer sent, with the value's shape and element type; None for no gradient. Waits for it."""
        peer, key = address
        part = self._shared.mailbox.take(address)
        shape = tuple(part.shape)
        if key.kind is self._backward and shape == (0,):
            return None
        if shape != value.with_batch(_samples(key)) or dtype_name(part.dtype) != value.dtype:
            raise EdgeswarmError(
                ErrorCode.WORKER_FAILED,
                f"{peer} sent {shape} of {part.dtype} for {value.name}; "
                f"the plan says {value.with_batch(_samples(key))} of {value.dtype}.",
                "Install the same version of edgeswarm on all devices.",
            )
        return part


def _samples(key: FrameKey) -> int:
    return key.end_sample - key.first_sample


def _answered(values: Sequence[LiveValue], *, gradients: bool) -> tuple[int, ...]:
    """Which values of a cut get a frame back for each micro-batch: those with a gradient, else the first, an empty one.

    A stage that got no answer (its parameters are frozen, or this is an evaluation) would not be held back by anything: it
    would run ahead through all micro-batches, and fill the memory of the next.
    """
    return tuple(index for index, value in enumerate(values) if gradients and value.requires_grad) or (0,)
