"""What the search looks up: the profiles' own numbers, whatever the shape of their curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeswarm.profile import DeviceProfile
from edgeswarm_coordinator.planner.search.problem import SearchProblem

from ..instances import make_instance


def test_seconds_are_the_profiles_own_at_cliffs_and_beyond_their_ends() -> None:
    plain = make_instance((1.0, 2.0), (1.0,), mini_batch=40)
    # The first layer falls at 16, and the curve ends there.
    profile = DeviceProfile((1, 8, 16), ((3.0, 1.0), (9.6, 8.0), (2.9, 9.0)), ((1.0, 1.0), (4.0, 8.0), (4.0, 16.0)))
    instance = replace(plain, profiles=dict.fromkeys(plain.profiles, profile))
    forward, backward = SearchProblem(instance).seconds
    for samples in range(41):
        before = profile.seconds_before(samples)
        assert np.array_equal(forward[0, samples], before[0])
        assert np.array_equal(backward[0, samples], before[1])
    assert forward[0, 15, 1] > 9.6 > forward[0, 16, 1]
