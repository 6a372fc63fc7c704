"""What made a result: the code, torch and the machine. Each run of a measurement has it; a report says where runs differ."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measuring import processor

REPOSITORY = Path(__file__).parents[1]
# What is measured, and what measures it; results change with each measurement.
CODE = ("edgeswarm", "agent", "coordinator", "bench", ":(exclude)bench/results")
COMPARED = ("commit", "torch", "processor")  # of a result's runs; each repeat is of one boot anyway
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def origin() -> dict[str, str]:
    """Of a run that is measured now: commit, version of torch, processor, and which start of the machine."""
    import torch

    return {"commit": commit(), "torch": str(torch.__version__), "processor": processor(), "boot": boot_id()}


def boot_id() -> str:
    """Another one after each start of a machine."""
    return _BOOT_ID.read_text().strip()


def commit(repository: Path = REPOSITORY) -> str:
    """The last one that changed the code, `-dirty` behind it where files differ from it now; nothing outside of a checkout."""
    last = _git(repository, "log", "-1", "--format=%h", "--abbrev=12", "--", *CODE)
    changed = _git(repository, "status", "--porcelain", "--untracked-files=no", "--", *CODE)
    return f"{last}-dirty" if last and changed else last


def _git(repository: Path, *words: str) -> str:
    """What it says; nothing where it can't."""
    # Measurements run as root, in somebody else's checkout, and leave it as it is.
    command = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-C", str(repository), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def remark(runs: Sequence[Mapping[str, Any]]) -> str:
    """What of their origin keeps a result's runs from being alike, or isn't known; nothing where they are."""
    told = [run for run in runs if "commit" in run]
    found = []
    if len(told) < len(runs):
        which = "" if not told else f"{len(runs) - len(told)} of {len(runs)} runs "
        found.append(f"{which}measured before commit, torch and processor were written down")
    for what in COMPARED:
        values = dict.fromkeys(run[what] or "not known" for run in told)
        if len(values) > 1:
            found.append(f"runs differ in {what}: {', '.join(values)}")
    return "; ".join(found)


def remarks(of_results: Mapping[str, str]) -> list[str]:
    """A line for each remark that there is, with the results that it is of. of_results: `remark` by result."""
    names: dict[str, list[str]] = {}
    for name, told in of_results.items():
        if told:
            names.setdefault(told, []).append(name)
    return [f"{', '.join(results)}: {told}" for told, results in names.items()]
