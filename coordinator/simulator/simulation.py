"""What a simulation tells: pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .log import TIED_SUM


@dataclass(frozen=True)
class DeviceUse:
    """Fractions of a round, 0 to 1.

    busy: it computes, the optimizer's step included. all_reduce: it waits for the group after its last backward.
    waiting: neither. sending, receiving: something leaves or enters by its card, whatever it does meanwhile.
    """

    busy: float
    waiting: float
    sending: float
    receiving: float
    all_reduce: float


@dataclass(frozen=True)
class DeviceMemory:
    """peak_bytes: of weights, gradients, optimizer state, saved activations, frames and the worker itself, in these rounds.

    expected_bytes: with as many micro-batches in flight as are allowed: workers try that before the first round.
    over_time: (seconds since the round began, bytes from then on); empty where no timeline was wanted.
    """

    peak_bytes: int
    expected_bytes: int
    over_time: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True)
class TimelineEvent:
    """Something that took time on one of a device's tracks; seconds count from the beginning of the round.

    device: its name, "" for the data source. track: compute, all-reduce, egress or ingress.
    kind: forward, backward, weights, step, all-reduce (waiting for it, or its bytes), tied weights or samples.
    micro_batch: -1 where it is of none.
    peer: whom a transfer goes to or comes from. size_bytes: of a transfer.
    What began before the round did, in the one before it, has a time below 0.
    """

    device: str
    track: str
    kind: str
    micro_batch: int
    start_seconds: float
    end_seconds: float
    peer: str = ""
    size_bytes: float = 0.0


@dataclass(frozen=True)
class Limit:
    """A part of the round's critical path. kind: stage, link, all-reduce, tied weights or data source.

    stage: which; for a link or tied weights the one that sends. forward: for a link, whether it carries activations.
    """

    kind: str
    stage: int
    seconds: float
    fraction: float
    forward: bool = True

    @property
    def text(self) -> str:
        """In words."""
        if self.kind == "data source":
            return f"the samples from the data source to stage {self.stage}"
        if self.kind == "link":
            return f"the link from stage {self.stage} to stage {self.stage + (1 if self.forward else -1)}"
        if self.kind == "all-reduce":
            return f"the all-reduce of stage {self.stage}"
        if self.kind == TIED_SUM:
            return f"the sum of weights that stages share, from stage {self.stage}"
        return f"computing in stage {self.stage}"


@dataclass(frozen=True)
class Simulation:
    """A round of training in a pipeline that has settled.

    devices, memory, sent_bytes: by device, those of the plan. sent_bytes: in a round. frame_bytes: likewise, what frames add to a
    device's peak; empty where the instance counts none.
    events: of the round, empty where no timeline was wanted. limits: what the critical path is made of, the most first.
    """

    round_seconds: float
    samples_per_second: float
    devices: Mapping[str, DeviceUse]
    memory: Mapping[str, DeviceMemory]
    sent_bytes: Mapping[str, float]
    limits: tuple[Limit, ...]
    frame_bytes: Mapping[str, int]
    events: tuple[TimelineEvent, ...] = ()
