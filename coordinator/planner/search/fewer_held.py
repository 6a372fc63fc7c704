"""Less memory for the same round: K of a plan that was found, cut back where the search took more than it brings.

The search tries K up to all micro-batches of a round, and keeps the first of equals; what a stage holds beyond the usual often
only makes it take in early what it computes late.
"""

from __future__ import annotations

from dataclasses import replace

from .candidate import Candidate, usual_in_flight
from .judge import Judge

# By how much longer the round may get; it is for rounding alone.
_TOLERANCE = 1e-6


def with_fewer_held(judge: Judge, candidate: Candidate, seconds: float) -> tuple[Candidate, float]:
    """The candidate with no more than the usual K in every stage where that costs nothing, and its seconds.

    seconds: of the candidate. Simulates as long as the judge has budget.
    """
    most = usual_in_flight(len(candidate.stages))
    more = [place for place, stage in enumerate(candidate.stages) if stage.in_flight > most[place]]
    tries = [more, *([place] for place in more)] if len(more) > 1 else [more] if more else []
    for places in tries:
        stages = tuple(
            stage._replace(in_flight=min(stage.in_flight, most[place])) if place in places else stage
            for place, stage in enumerate(candidate.stages)
        )
        fewer = replace(candidate, stages=stages)
        if fewer == candidate or not judge.affords(fewer):
            continue
        found = judge.seconds(fewer)
        if found <= seconds * (1 + _TOLERANCE):
            candidate, seconds = fewer, found
    return candidate, seconds
