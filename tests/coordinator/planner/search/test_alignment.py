"""The order of a group behind another one: frames over the faster links, shares with their devices."""

from __future__ import annotations

import math

from edgeswarm_coordinator.planner.search.alignment import aligned, slowest_frames
from edgeswarm_coordinator.planner.search.candidate import CandidateStage

# Rooms 0, 2 and 1, 3.
ROOMS = [[math.inf if a == b else 10.0 if a % 2 == b % 2 else 1.0 for b in range(4)] for a in range(4)]


def test_frames_stay_in_their_room() -> None:
    before = CandidateStage(0, 1, (0, 1), (2, 3), 3)
    crossed = CandidateStage(1, 2, (3, 2), (3, 2), 1)
    # 0 sends 3 two samples; 1 sends 3 one and 2 two.
    assert slowest_frames(before, crossed, ROOMS) == 2 * 2.0
    turned = aligned(before, crossed, ROOMS)
    assert (turned.devices, turned.shares) == ((2, 3), (2, 3))
    assert slowest_frames(before, turned, ROOMS) == 2 * 0.3


def test_each_direction_counts() -> None:
    links = [row[:] for row in ROOMS]
    links[2][0] = links[3][1] = 0.1  # there is fast, back is slow
    before = CandidateStage(0, 1, (0, 1), (2, 2), 3)
    assert aligned(before, CandidateStage(1, 2, (2, 3), (2, 2), 1), links).devices == (3, 2)


def test_one_device_before_changes_nothing() -> None:
    stage = CandidateStage(1, 2, (3, 2), (3, 2), 1)
    assert aligned(CandidateStage(0, 1, (0,), (5,), 3), stage, ROOMS) is stage
