"""Which way round a group stands behind the one before it: replicas that exchange most samples get the faster links.

Two rooms, a and c in one, b and d in the other, and slow links from room to room:

    samples     0 1 | 2 3 4                     0 1 | 2 | 3 4
    stage 0      a  |   b                        a  | b |  b
    stage 1      c  |   d        instead of      d  | d |  c

The ring of the all-reduce stays the same: it is turned, or gone around the other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .candidate import CandidateStage

# Larger groups stay as they are.
_MOST_DEVICES = 8


def aligned(before: CandidateStage, stage: CandidateStage, links: Sequence[Sequence[float]]) -> CandidateStage:
    """The stage with its replicas in the order of the least seconds for the slowest frame there, and the slowest back.

    links[from][to]: bytes per second. Of equals the order that it has.
    """
    size = len(stage.devices)
    if not 1 < size <= _MOST_DEVICES or len(before.devices) == 1:
        return stage
    return min(_turned(stage), key=lambda turned: slowest_frames(before, turned, links))


def slowest_frames(before: CandidateStage, stage: CandidateStage, links: Sequence[Sequence[float]]) -> float:
    """Seconds for the slowest frame of a micro-batch in each direction, were a sample one byte."""
    there, back = 0.0, 0.0
    sent = 0
    for sender, share in zip(before.devices, before.shares, strict=True):
        taken = 0
        for receiver, part in zip(stage.devices, stage.shares, strict=True):
            samples = min(sent + share, taken + part) - max(sent, taken)
            if samples > 0:
                there = max(there, samples / links[sender][receiver])
                back = max(back, samples / links[receiver][sender])
            taken += part
        sent += share
    return there + back


def _turned(stage: CandidateStage) -> Iterator[CandidateStage]:
    replicas = list(zip(stage.devices, stage.shares, strict=True))
    for ring in (replicas, replicas[::-1]):
        for first in range(len(ring)):
            devices, shares = zip(*ring[first:], *ring[:first], strict=True)
            yield replace(stage, devices=devices, shares=shares)
