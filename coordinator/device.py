"""Device: what the coordinator knows about one box. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeswarm.errors import EdgeswarmError, ErrorCode


@dataclass(frozen=True)
class Device:
    """One device as its agent describes it.

    node_id: its name everywhere. address: host:port by which its agent answered.
    hardware: everything that a profile depends on; hardware_key: sha256 over it.
    memory_budget_bytes: what training may use now. slow_down: 1.0, or by how much it stretches its computing.
    clock_offset_seconds: its clock less ours. busy_with_job: empty when it is idle.
    """

    node_id: str
    address: str
    version: str = ""
    board: str = ""
    platform: str = ""
    hardware: Mapping[str, str] = field(default_factory=dict)
    hardware_key: str = ""
    cpu_cores: float = 0.0
    memory_total_bytes: int = 0
    memory_budget_bytes: int = 0
    torch_version: str = ""
    accelerator: str = "cpu"
    slow_down: float = 1.0
    busy_with_job: str = ""
    busy_since: str = ""
    clock_offset_seconds: float = 0.0

    @property
    def short_name(self) -> str:
        """The node id without its six hex digits."""
        return short_name(self.node_id)

    @property
    def idle(self) -> bool:
        return not self.busy_with_job

    def to_json(self) -> dict[str, Any]:
        return {
            "node_id": self.node_id,
            "address": self.address,
            "version": self.version,
            "board": self.board,
            "platform": self.platform,
            "hardware": dict(self.hardware),
            "hardware_key": self.hardware_key,
            "cpu_cores": self.cpu_cores,
            "memory_total_bytes": self.memory_total_bytes,
            "memory_budget_bytes": self.memory_budget_bytes,
            "torch_version": self.torch_version,
            "accelerator": self.accelerator,
            "slow_down": self.slow_down,
            "busy_with_job": self.busy_with_job,
            "busy_since": self.busy_since,
            "clock_offset_seconds": self.clock_offset_seconds,
        }


def short_name(node_id: str) -> str:
    """`nano-1` of `nano-1-0a4f22`."""
    return node_id.rpartition("-")[0] or node_id


def resolve_names(wanted: Sequence[str], node_ids: Sequence[str]) -> dict[str, str]:
    """The node id that each wanted name stands for: a whole node id, or one without its six hex digits.

    Raises EdgeswarmError (NO_DEVICES) for a name that no device has or that several have.
    """
    resolved: dict[str, str] = {}
    for name in wanted:
        matches = [name] if name in node_ids else [node_id for node_id in node_ids if short_name(node_id) == name]
        if len(matches) != 1:
            problem = f"is the name of {' and '.join(matches)}" if matches else "was not found"
            remedy = (
                "Use the whole node id."
                if matches
                else f"Start its agent, or use one of those found: {', '.join(node_ids) or 'none'}."
            )
            raise EdgeswarmError(ErrorCode.NO_DEVICES, f"The device {name} {problem}.", remedy)
        resolved[name] = matches[0]
    return resolved
