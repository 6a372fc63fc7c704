"""How fast the machine under a testbed was, moment by moment: other tenants of a core make it slower for seconds at a time.

The metronome writes it down for each processor. Slowness 1 is the processor at its best; 1.8 was seen for seconds, where
the measurements of a minute before and a minute after had nothing of it. Rounds in such moments say nothing of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .metronome import SAMPLE

BEST = 0.05  # the quantile of a processor's samples that is taken for its best


def slowness(logs: Path, begin: float, end: float) -> float | None:
    """The mean over all processors from `begin` to `end` (time.monotonic); None where nothing was written down then."""
    found = []
    for path in sorted(logs.iterdir()):
        samples = read(path)
        within = samples[(samples[:, 0] >= begin) & (samples[:, 0] <= end), 1]
        if len(within):
            found.append(float(within.mean() / _best(samples)))
    return float(np.mean(found)) if found else None


def best_pace(logs: Path) -> dict[str, float]:
    """By processor, what its best is that slowness is told by at this time: seconds of what the metronome does."""
    samples = {path.name: read(path) for path in sorted(logs.iterdir())}
    return {name: _best(each) for name, each in samples.items() if len(each)}


def beside_the_best(paces: Sequence[Mapping[str, float]]) -> list[float]:
    """What slowness was told too low by at each time, for what was known of the best then: 1 or more. paces: of each time, as
    `best_pace` has them, all of one start of the machine; 1 where one of them says nothing.
    """
    best: dict[str, float] = {}
    for pace in paces:
        for name, seconds in pace.items():
            best[name] = min(seconds, best.get(name, seconds))
    return [float(np.mean([seconds / best[name] for name, seconds in pace.items()])) if pace else 1.0 for pace in paces]


def told_too_low(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of each run, by which factor: those of one start of the machine (boot) are told by the best_pace that any of them knows."""
    factors: dict[int, float] = {}
    for boot in {run.get("boot") for run in runs}:
        places = [place for place, run in enumerate(runs) if run.get("boot") == boot]
        factors.update(
            zip(places, beside_the_best([runs[place].get("best_pace", {}) for place in places]), strict=True)
        )
    return [factors[place] for place in range(len(runs))]


def at_one_best(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The runs, each round's slowness by that best; rounds of which nobody knows it stay so."""
    return [
        {**run, "slowness": [too_low * each if each else each for each in run["slowness"]]}
        if "slowness" in run
        else {**run}
        for run, too_low in zip(runs, told_too_low(runs), strict=True)
    ]


def _best(samples: npt.NDArray[np.float64]) -> float:
    return float(np.quantile(samples[:, 1], BEST))


def at_best_pace(seconds: Sequence[float], slownesses: Sequence[float | None]) -> list[float]:
    """Seconds of the rounds of which the slowness is known, had the machine been at its best."""
    return [each / slow for each, slow in zip(seconds, slownesses, strict=True) if slow]


def read(path: Path) -> npt.NDArray[np.float64]:
    """[samples, 2]: when, and seconds. What is not whole yet is left out."""
    content = path.read_bytes()
    return np.frombuffer(content[: len(content) // SAMPLE.size * SAMPLE.size]).reshape(-1, 2)
