"""A plan as the search handles it: small tuples of numbers, devices by their place in the canonical order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


# Named tuples, since the search makes and compares them by the ten thousand.
class CandidateStage(NamedTuple):
    """Layers [first, end) on `devices`, which take `shares` samples of each micro-batch, at least 1 each.

    in_flight: K. Devices and shares are in the order of the replicas.
    """

    first: int
    end: int
    devices: tuple[int, ...]
    shares: tuple[int, ...]
    in_flight: int


@dataclass(frozen=True)
class Candidate:
    """Stages in order, and the samples of a full micro-batch."""

    micro_batch: int
    stages: tuple[CandidateStage, ...]

    def __post_init__(self) -> None:
        # Looked up again and again.
        object.__setattr__(self, "_hash", hash((self.micro_batch, self.stages)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def micro_batches(self, mini_batch: int) -> int:
        return -(-mini_batch // self.micro_batch)


class Outline(NamedTuple):
    """A candidate before samples are shared: cuts [stages + 1], the devices of each stage, K of each stage.

    in_flight is what the stages would hold at most; sharing lowers it where memory asks for that.
    """

    micro_batch: int
    cuts: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    in_flight: tuple[int, ...]

    @classmethod
    def of(cls, candidate: Candidate) -> Outline:
        return cls(
            candidate.micro_batch,
            (0, *(stage.end for stage in candidate.stages)),
            tuple(stage.devices for stage in candidate.stages),
            tuple(stage.in_flight for stage in candidate.stages),
        )


def usual_in_flight(stage_count: int) -> tuple[int, ...]:
    """3(P-p)-2 of every stage: a micro-batch in each stage from it to the end, and in each direction of the links between.

    Asteroid's 2(P-p)-1 has one for a link, which is too few where links take as long as stages (`fewer_in_flight`).
    """
    return tuple(3 * (stage_count - stage) - 2 for stage in range(stage_count))


def roomy_in_flight(stage_count: int) -> tuple[int, ...]:
    """3(P-p)+1: as above, and three more whose gradients of weights wait for a gap."""
    return tuple(3 * (stage_count - stage) + 1 for stage in range(stage_count))


def fewer_in_flight(stage_count: int) -> tuple[int, ...]:
    """Asteroid's K_p = 2(P-p)-1: one micro-batch for each step from the stage to the end (section 3.2)."""
    return tuple(2 * (stage_count - stage) - 1 for stage in range(stage_count))
