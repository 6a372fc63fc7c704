"""What a worker of one kind of hardware costs beside its layers: its own memory, frames, steps of optimizers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edgeswarm.json_fields import Fields
from edgeswarm.wire.v1 import agent_pb2

SGD, MOMENTUM, ADAM = "sgd", "momentum", "adam"


@dataclass(frozen=True)
class UpdateCosts:
    """Seconds of an optimizer's step for each tensor of the parameters, and for each byte."""

    tensor_seconds: float
    byte_seconds: float


@dataclass(frozen=True)
class ProcessCosts:
    """base_bytes: of a worker that has computed, but holds no layer. frame_seconds, byte_seconds: of either end of a frame.

    stretch: seconds by the clock that a CPU second takes there. burst_seconds: by how much work is done earlier after a pause.
    updates: by kind of optimizer.
    """

    base_bytes: int
    frame_seconds: float = 0.0
    byte_seconds: float = 0.0
    stretch: float = 1.0
    burst_seconds: float = 0.0
    updates: dict[str, UpdateCosts] = field(default_factory=dict)

    @classmethod
    def from_message(cls, message: agent_pb2.ProcessCost) -> ProcessCosts:
        return cls(
            base_bytes=message.base_bytes,
            frame_seconds=message.frame_seconds,
            byte_seconds=message.byte_seconds,
            stretch=message.stretch,
            burst_seconds=message.burst_seconds,
            updates={
                update.optimizer: UpdateCosts(update.tensor_seconds, update.byte_seconds) for update in message.updates
            },
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "base_bytes": self.base_bytes,
            "frame_seconds": self.frame_seconds,
            "byte_seconds": self.byte_seconds,
            "stretch": self.stretch,
            "burst_seconds": self.burst_seconds,
            "updates": {
                name: {"tensor_seconds": update.tensor_seconds, "byte_seconds": update.byte_seconds}
                for name, update in self.updates.items()
            },
        }

    @classmethod
    def from_json(cls, fields: Fields) -> ProcessCosts:
        """Raises what `fields.invalid` makes."""
        updates = fields.section("updates")
        return cls(
            base_bytes=fields.integer("base_bytes", minimum=0),
            frame_seconds=fields.number("frame_seconds", minimum=0),
            byte_seconds=fields.number("byte_seconds", minimum=0),
            stretch=fields.number("stretch", minimum=0),
            burst_seconds=fields.number("burst_seconds", minimum=0),
            updates={name: _update_from_json(updates.section(name)) for name in updates.names()},
        )

    def update_seconds(self, *, tensors: int, trained_bytes: int, optimizer_state_factor: float) -> float:
        """Of a step over so many trained tensors. optimizer_state_factor: bytes kept per byte, which tells the optimizer."""
        kind = SGD if optimizer_state_factor < 0.5 else MOMENTUM if optimizer_state_factor < 1.5 else ADAM
        cost = self.updates.get(kind)
        return 0.0 if cost is None else tensors * cost.tensor_seconds + trained_bytes * cost.byte_seconds


def _update_from_json(fields: Fields) -> UpdateCosts:
    return UpdateCosts(
        tensor_seconds=fields.number("tensor_seconds", minimum=0), byte_seconds=fields.number("byte_seconds", minimum=0)
    )
