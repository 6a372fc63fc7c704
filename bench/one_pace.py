"""Profiles of emulated devices as if the machine had been equally quick for all of them.

    nano   ##########  profiled in minutes in which the reference work took 1.3 as long as in others
    nx     ###
    both   at the pace in the middle

Real devices don't share a machine, whose slow minute then is all of one class's and none of another's.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from edgeswarm_coordinator.profile_cache import Profiles


def at_one_pace(profiles: Profiles) -> Profiles:
    """The same, with all curves at the geometric mean of the paces that they were measured at; where that is unknown, as is."""
    paces = {key: costs.reference_cpu_seconds for key, costs in profiles.processes.items()}
    known = {key: pace for key, pace in paces.items() if pace > 0}
    if not known:
        return profiles
    middle = math.exp(statistics.fmean(math.log(pace) for pace in known.values()))
    factors = {key: middle / pace for key, pace in known.items()}
    curves = {
        (key, dtype, mark): replace(
            curve,
            forward_seconds=tuple(factors.get(key, 1.0) * seconds for seconds in curve.forward_seconds),
            backward_seconds=tuple(factors.get(key, 1.0) * seconds for seconds in curve.backward_seconds),
        )
        for (key, dtype, mark), curve in profiles.curves.items()
    }
    processes = {
        key: replace(costs, reference_cpu_seconds=middle) if key in known else costs
        for key, costs in profiles.processes.items()
    }
    return replace(profiles, curves=curves, processes=processes)
