"""What a worker's processor does beside the model: which part of it goes with rounds, micro-batches, frames and bytes.

    python -m bench.outside_model --folder bench/results/matrix
    python -m bench.outside_model --folder bench/results/matrix --write     the table in docs/benchmarks.md

Measures nothing itself: it reads the cells of bench.matrix, whose plans differ in how many micro-batches, frames and bytes a
device has to do with. What their workers spent beside the model is explained by these counts:

    CPU seconds = rounds x a + seconds x b + actions x c + frames x d + pieces x e + megabytes x f        all of one round
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from bench.estimate import OURS, RUN_AGAIN
from bench.measuring import Report
from bench.pages import BENCHMARKS_PAGE, markdown_table, write_into
from edgeswarm.chunk_owners import OwnersInTurn, traffic
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.simulator.stage_work import ReplicaWork, replica_works

# Below it an observation counts for no more than one of so many CPU seconds.
LEAST_SECONDS = 0.02


@dataclass(frozen=True)
class Counts:
    """Of one device in one round.

    actions: forwards and backwards of its micro-batches. frames: sent and received. pieces: of the all-reduce, likewise.
    seconds: the round's, in which it reports twice or more. megabytes: sent and received.
    """

    rounds: float
    seconds: float
    actions: float
    frames: float
    pieces: float
    megabytes: float


@dataclass(frozen=True)
class Observation:
    """A device in one run. outside_seconds, cpu_seconds: of its processor in a round, beside the model and in all."""

    cell: str
    method: str
    device: str
    counts: Counts
    outside_seconds: float
    cpu_seconds: float

    @property
    def outside_part(self) -> float:
        return self.outside_seconds / self.cpu_seconds


def observations(document: Mapping[str, Any]) -> list[Observation]:
    """Of every run of a plan in a cell's document."""
    instance = instance_from_json(document["profilings"][0]["instance"])
    found = []
    for run in document["runs"]:
        method = run["method"].removesuffix(RUN_AGAIN)
        if method not in document["plans"] or "devices" not in run:
            continue
        plan = Plan.from_json(document["plans"][method])
        for work in replica_works(instance, plan):
            used = run["devices"][work.name]
            parts = [part for part in work.parts if part is not None]
            counts = Counts(
                rounds=1.0,
                seconds=statistics.median(run["round_seconds"]),
                actions=2.0 * len(parts),
                frames=2.0 * sum(len(part.upstream) + len(part.downstream) for part in parts),
                pieces=float(_pieces(work, plan.stages[work.stage])),
                megabytes=(used["sent_bytes"] + used["received_bytes"]) / 1e6,
            )
            outside = used["cpu_seconds"] - used["model_cpu_seconds"]
            found.append(Observation(document["cell"], method, work.name, counts, outside, used["cpu_seconds"]))
    return found


def _pieces(work: ReplicaWork, stage: Stage) -> int:
    """Of buckets and of batch norms' sums, that the replica sends and takes in a round."""
    if not stage.replicated:
        return 0
    sizes = [float(work.statistics_bytes)] if work.statistics_bytes else []
    for bucket in work.buckets:
        sizes += [bucket.held_bytes / bucket.count] * bucket.count
    pieces = 0
    owners_in_turn = OwnersInTurn(stage.chunk_owners)
    for size in sizes:
        owners = owners_in_turn.of_next(size)
        pieces += traffic(len(stage.shares), len(owners), is_owner=work.name in owners).frames
    return pieces


def costs_of(found: Sequence[Observation]) -> Counts:
    """CPU seconds of one of each: least squares of the relative errors, none below 0.

    Raises ValueError for fewer observations than there are kinds.
    """
    kinds = len(fields(Counts))
    if len(found) < kinds:
        raise ValueError(f"{len(found)} observations can't tell {kinds} kinds apart")
    counts = np.array([astuple(each.counts) for each in found])
    measured = np.array([each.outside_seconds for each in found])
    weights = 1 / np.maximum(measured, LEAST_SECONDS)
    costs, used = np.zeros(kinds), list(range(kinds))
    while used:
        solved = np.linalg.lstsq(counts[:, used] * weights[:, np.newaxis], measured * weights, rcond=None)[0]
        if solved.min() >= 0:
            costs[used] = solved
            break
        del used[int(solved.argmin())]
    return Counts(*costs.tolist())


def explained(counts: Counts, costs: Counts) -> dict[str, float]:
    """CPU seconds by kind."""
    return {
        kind.name: float(getattr(counts, kind.name) * getattr(costs, kind.name))
        for kind in fields(Counts)
    }  # fmt: skip


def report_of(documents: Sequence[Mapping[str, Any]]) -> Report:
    """A row for what each kind costs, and one for each class of device in each cell's own plan: of its devices and runs the one
    with the largest part.
    """
    found = [each for document in documents for each in observations(document)]
    report = Report(
        title="What a worker's processor does beside the model",
        how=(
            "CPU milliseconds of a round, of edgeswarm's own plan, by what they go with: the round itself, its seconds "
            "(reports), forwards and backwards of micro-batches, frames of activations and gradients, pieces of the all-reduce, "
            "bytes (the kernel's and TLS's part). Beside what was measured, and as a part of all CPU seconds of the worker."
        ),
        columns=("cell, device", *(kind.name for kind in fields(Counts)), "together", "measured", "of its CPU"),
    )
    if len(found) < len(fields(Counts)):
        return report
    costs = costs_of(found)
    report.rows.append(("one of each, ms", *(f"{1e3 * value:.2f}" for value in astuple(costs)), "", "", ""))
    errors = [
        abs(sum(explained(each.counts, costs).values()) / each.outside_seconds - 1)
        for each in found
        if each.outside_seconds > LEAST_SECONDS
    ]
    worst: dict[tuple[str, str], Observation] = {}
    for each in found:
        kind = (each.cell, each.device.rsplit("-", 1)[0])
        if each.method == OURS and (kind not in worst or each.outside_part > worst[kind].outside_part):
            worst[kind] = each
    for each in worst.values():
        parts = explained(each.counts, costs)
        report.rows.append((
            f"{each.cell}, {each.device}",
            *(f"{1e3 * value:.1f}" for value in parts.values()),
            *(f"{1e3 * sum(parts.values()):.0f}", f"{1e3 * each.outside_seconds:.0f}"),
            f"{each.outside_part:.0%}",
        ))  # fmt: skip
    report.data = {
        "costs_seconds": dict(zip((kind.name for kind in fields(Counts)), astuple(costs), strict=True)),
        "observations": len(found),
        "median_error": statistics.median(errors) if errors else None,
    }
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the cells' files are")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in sorted(given.folder.glob("*.json"))]
    report = report_of([document for document in documents if document.get("profilings")])
    if given.write and report.rows:
        write_into(BENCHMARKS_PAGE, "outside model", markdown_table(report.columns, report.rows))
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
