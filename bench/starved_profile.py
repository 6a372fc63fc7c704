"""Whether devices had their part of this machine's processors while they were profiled, and one as much as another, or what else
runs on the machine (or on the one that it is virtual on) took some of it: by how long a CPU second took there, and by the
machine's slowness meanwhile (bench/testbed/speed.py).

    quota 0.3     a CPU second in    3.3 s    all of it
                                     4.3 s    0.78 of it: its layers seem slower by a quarter, and a plan gives it less to do

    slowness      nano 1.12, nx 1.12, tx2 1.31    a tx2's CPU seconds brought it less than the others' brought them
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgeswarm_coordinator.profile_cache import FILE_NAME, Profiles

# Times as long as its quota makes a CPU second take, more than which is worth another profile; a steady machine has 1.02 to 1.05.
MOST_STARVED = 1.12
# By which the machine may have been slower while one class was profiled than for the one for which it was quickest.
MOST_APART = 1.12
MOST_TRIES = 3


def read_profiles(cache: Path) -> Profiles:
    """What is in a folder of profiles; nothing where nothing was measured yet."""
    path = cache / FILE_NAME
    return Profiles.from_json(json.loads(path.read_text())) if path.exists() else Profiles()


def starved(profiles: Profiles, kind: str, *, cores: float) -> float:
    """By which a CPU second took longer than on a machine of its own. cores: of one core, the device's quota; at most 1."""
    return profiles.processes[kind].stretch * min(1.0, cores)


def slowed(slowness: Mapping[str, float | None]) -> tuple[str, ...]:
    """Those that the machine was too slow for beside the others. slowness: by device, None where it isn't known."""
    known = {name: slow for name, slow in slowness.items() if slow is not None}
    return tuple(name for name, slow in known.items() if slow > MOST_APART * min(known.values()))


def forget(cache: Path, kind: str) -> None:
    """What one kind of device measured of itself; links stay."""
    known = read_profiles(cache)
    kept = replace(
        known,
        curves={key: curve for key, curve in known.curves.items() if key[0] != kind},
        processes={key: costs for key, costs in known.processes.items() if key != kind},
    )
    (cache / FILE_NAME).write_text(json.dumps(kept.to_json()))
