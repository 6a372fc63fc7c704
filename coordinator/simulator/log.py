"""What a simulation writes down where somebody wants to know: who computed, sent and waited, from when to when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

TIED_SUM = "tied weights"  # the kind of a frame between stages that share weights


class ComputeRecord(NamedTuple):
    """Something that a replica computed; kind: forward, backward, weights or step. round counts from 0."""

    replica: int
    kind: str
    round: int
    micro_batch: int
    start: float
    end: float


class TransferRecord(NamedTuple):
    """Bytes that went from one replica to another, -1 for the data source, -2 for all others of its group; in seconds.

    label: kind of what it was, then (round and micro-batch of a frame; stage and number of an all-reduce's buffer or of a sum).
    """

    sender: int
    receiver: int
    label: tuple[str, int, int]
    size: float
    start: float
    end: float


class WaitRecord(NamedTuple):
    """A replica's all-reduce that its last backward no longer hides."""

    replica: int
    round: int
    start: float
    end: float


@dataclass
class Log:
    """All that happened, where somebody wants to know; the order is that of the ends."""

    computed: list[ComputeRecord] = field(default_factory=list)
    transfers: list[TransferRecord] = field(default_factory=list)
    all_reduces: list[WaitRecord] = field(default_factory=list)
