"""Zeros that a cell's rounds leave out. A gradient's blocks of zeros don't travel (edgeswarm/wire/tensor_blocks.py); where a deep
network's first layers have such gradients fewer bytes are sent than a plan can know of.

    python -m bench.left_out --folder DIR --cell C:100:efficientnet_b1

Trains the plan that the cell's document has once more, for a few rounds on the cell's devices, and keeps there what they sent and
left out; `bench.matrix --report` has it beside the plan's bytes. For cells whose runs don't tell it themselves. How fast the
machine is doesn't matter. Needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.cell import Cell
from bench.estimate import OURS
from bench.matrix_on_bed import Effort, OnBed
from bench.measuring import keep, say
from bench.origin import origin
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from edgeswarm.plan import Plan

FEW_ROUNDS = replace(Effort(), rounds=6, seconds=60.0, warm_up_seconds=5.0)


def measure(path: Path, cell: Cell) -> dict[str, dict[str, float]]:
    """What each device sent and left out in a round, which the document has under `left_out` then."""
    document: dict[str, Any] = json.loads(path.read_text())
    plan = Plan.from_json(document["plans"][OURS])
    environment = load_environment(cell.environment, mbps=cell.mbps)
    with (
        tempfile.TemporaryDirectory(prefix="edgeswarm-left-out-") as folder,
        EmulatedLan(environment) as bed,
        BedCluster(bed, folder=Path(folder) / "bed") as cluster,
    ):
        told = OnBed(cell, bed, cluster, effort=FEW_ROUNDS, mini_batch=document["mini_batch"]).train(plan)
    devices = {
        name: {what: used[what] for what in ("sent_bytes", "left_out_bytes")} for name, used in told["devices"].items()
    }
    keep(path, {**document, "left_out": {**origin(), "devices": devices}})
    return devices


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the cells' files are")
    parser.add_argument("--cell", type=Cell.parse, required=True, metavar="ENVIRONMENT:MBPS:MODEL")
    given = parser.parse_args()
    path = given.folder / f"{given.cell.name}.json"
    if not path.exists():
        parser.error(f"{path}: this cell was not measured")
    for name, used in measure(path, given.cell).items():
        say(
            f"{name}: {used['sent_bytes'] / 1e6:.2f} MB sent in a round, {used['left_out_bytes'] / 1e6:.2f} MB left out"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
