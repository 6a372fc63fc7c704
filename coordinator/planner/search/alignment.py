"""Which way round a group stands behind the one before it: replicas that exchange most samples get the faster links.

Two rooms, a and c in one, b and d in the other, and slow links from room to room:

    samples     0 1 | 2 3 4                     0 1 | 2 | 3 4
    stage 0      a  |   b                        a  | b |  b
    stage 1      c  |   d        instead of      d  | d |  c

Of the orders that a group may have those are tried that turn it, or turn it around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .candidate import CandidateStage

# Devices, and the samples of a micro-batch that each takes.
_Group = tuple[tuple[int, ...], tuple[int, ...]]

# Larger groups stay as they are.
_MOST_DEVICES = 8


def aligned(before: CandidateStage, stage: CandidateStage, links: Sequence[Sequence[float]]) -> CandidateStage:
    """The stage with its replicas in the order of the least seconds for the slowest frame there, and the slowest back.

    links[from][to]: bytes per second. Of equals the order that it has.
    """
    size = len(stage.devices)
    if not 1 < size <= _MOST_DEVICES or len(before.devices) == 1:
        return stage
    devices, shares = min(_turned(stage), key=lambda turned: _slowest((before.devices, before.shares), turned, links))
    return stage if devices == stage.devices else stage._replace(devices=devices, shares=shares)


def slowest_frames(before: CandidateStage, stage: CandidateStage, links: Sequence[Sequence[float]]) -> float:
    """Seconds for the slowest frame of a micro-batch in each direction, were a sample one byte."""
    return _slowest((before.devices, before.shares), (stage.devices, stage.shares), links)


def _slowest(before: _Group, stage: _Group, links: Sequence[Sequence[float]]) -> float:
    """Goes along the samples once: each step ends a sender's interval or a receiver's. Millions of calls where there are many
    devices.
    """
    there, back = 0.0, 0.0
    receivers = zip(*stage, strict=True)
    receiver, part = next(receivers)
    for sender, share in zip(*before, strict=True):
        to_receiver, left = links[sender], share
        while left:
            if not part:
                receiver, part = next(receivers)
                continue
            samples = left if left < part else part
            there = max(there, samples / to_receiver[receiver])
            back = max(back, samples / links[receiver][sender])
            left -= samples
            part -= samples
    return there + back


def _turned(stage: CandidateStage) -> Iterator[_Group]:
    for devices, shares in ((stage.devices, stage.shares), (stage.devices[::-1], stage.shares[::-1])):
        for first in range(len(devices)):
            yield devices[first:] + devices[:first], shares[first:] + shares[:first]
