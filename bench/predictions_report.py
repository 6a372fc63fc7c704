"""The table of predicted and measured: pairs of a plan and a model, errors, noise, and what of it holds.

A machine that is shared changes its pace between a profile and a round, by up to a half, which the testbed writes down: what
its other tenants do is no matter of a plan, and devices of one's own have none. So the errors that count are at one pace; those
of what was measured stand beside them, and what would hold of these.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.cell import (
    FIRST_ROUNDS,
    MOST_SLOWNESS,
    PROFILED_AGAIN,
    Cell,
    counted_rounds,
    counted_slowness,
    measured_seconds,
    paced_seconds,
)
from bench.estimate import RUN_AGAIN
from bench.measuring import Report, say
from bench.refit import instance_again, median_profiles, prepared_job
from bench.sailor import rank_correlation
from bench.testbed.speed import at_one_best
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm.profile import DeviceProfile, PlanningInstance
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.planner.moved_shares import times_as_long
from edgeswarm_coordinator.planner.prediction import with_prediction
from edgeswarm_coordinator.profile_cache import Profiles
from edgeswarm_coordinator.simulator.simulate import round_seconds

MOST_ERROR_MEDIAN, MOST_ERROR_95, LEAST_RANK_CORRELATION = 0.08, 0.15, 0.95
LEAST_PAIRS = 24
MOST_PROFILE_SECONDS = {"nx": 60.0, "nano": 180.0, PROFILED_AGAIN: 0.0}
MOST_MEMORY_UNDER, MOST_MEMORY_OVER = 0.03, 0.10


@dataclass(frozen=True)
class Pair:
    """One plan of one cell. predicted: seconds of a round. measured: the median over the rounds that count, of all runs.

    medians: of each run, in seconds. paced_medians: likewise, of rounds at the machine's best pace. slowness: of the machine in
    those rounds, median. profiled_slowness: while it was profiled.
    predicted_at_one_pace: had the machine been as slow in each class's profile as in the rounds.
    memory_errors: of each device in each run, predicted against the measured peak.
    """

    cell: str
    plan: str
    predicted: float
    measured: float
    medians: tuple[float, ...]
    paced_medians: tuple[float, ...]
    slowness: float
    profiled_slowness: float
    predicted_at_one_pace: float
    memory_errors: tuple[float, ...]

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def error_at_one_pace(self) -> float:
        return self.predicted_at_one_pace / self.measured - 1

    @property
    def noise(self) -> float:
        """By how much the slowest run was above the quickest."""
        return _spread(self.medians)

    @property
    def noise_at_one_pace(self) -> float:
        return _spread(self.paced_medians)


def _spread(medians: Sequence[float]) -> float:
    return max(medians) / min(medians) - 1


def pairs_of(document: dict[str, Any], instance: PlanningInstance) -> Iterator[Pair]:
    """Of the plans that ran. instance: as it is by all profilings."""
    profiled = [slow for profiling in document["profilings"] if (slow := profiling.get("slowness")) is not None]
    all_runs = at_one_best(document["runs"])
    for name, written in document["plans"].items():
        runs = [told for told in all_runs if told["plan"] == name and "round_seconds" in told]
        if not runs:
            continue
        plan = Plan.from_json(written)
        predicted = with_prediction(instance, plan).predicted
        assert predicted is not None
        slow = statistics.median(slow for told in runs for slow in counted_slowness(told))
        yield Pair(
            cell=document["cell"],
            plan=name,
            predicted=predicted.round_seconds,
            measured=statistics.median(seconds for told in runs for seconds in counted_rounds(told)),
            medians=tuple(measured_seconds(told) for told in runs),
            paced_medians=tuple(paced_seconds(told) for told in runs),
            slowness=slow,
            profiled_slowness=statistics.median(profiled) if profiled else 1.0,
            predicted_at_one_pace=round_seconds(at_pace(instance, document["profilings"], slow), plan),
            memory_errors=tuple(
                predicted.memory_bytes[device] / peak - 1
                for told in runs
                for device, peak in told["peak_bytes"].items()
            ),
        )


def at_pace(instance: PlanningInstance, profilings: Sequence[dict[str, Any]], slowness: float) -> PlanningInstance:
    """As if the machine had been so slow in the profile of each class of devices; of one of which that isn't known as it is.

    profilings: what a cell's file has of them; a class is told by the device that was profiled.
    """
    factors: dict[str, float] = {}
    for device in instance.devices:
        profiled = [slow for each in profilings if (slow := each.get("slowness_by_class", {}).get(device.name))]
        if profiled:
            factors[device.profile] = slowness / statistics.median(profiled)
    return replace(
        instance,
        profiles={key: _slower(profile, factors.get(key, 1.0)) for key, profile in instance.profiles.items()},
    )


def _slower(profile: DeviceProfile, factor: float) -> DeviceProfile:
    """Layers, optimizer steps and what a worker does beside them."""
    return replace(
        times_as_long(profile, factor),
        update_seconds=tuple(factor * seconds for seconds in profile.update_seconds),
        overheads=replace(
            profile.overheads,
            action_seconds=factor * profile.overheads.action_seconds,
            frame_seconds=factor * profile.overheads.frame_seconds,
            byte_seconds=factor * profile.overheads.byte_seconds,
            round_seconds=factor * profile.overheads.round_seconds,
        ),
    )


def with_pairs(document: dict[str, Any]) -> dict[str, Any]:
    """A cell of the matrix (bench/matrix_cell.py) or of the ablations (bench/measured_ablations.py) as one of the predictions;
    others as they are.
    """
    kind = document.get("format", "").partition("/")[0]
    if kind == "edgeswarm-matrix":
        return {**document, "runs": list(_runs_of_matrix(document))}
    if kind == "edgeswarm-ablations":
        plans = {name: plan for name, plan in document["plans"].items() if plan is not None}
        runs = [{"plan": name.removesuffix(RUN_AGAIN), **told} for name, told in document["runs"].items()]
        return {**document, "plans": plans, "runs": runs}
    return document


def _runs_of_matrix(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of our own runtime alone, and with the plan's own shares: where these moved, another plan was measured."""
    for run in document["runs"]:
        plan = run["method"].removesuffix(RUN_AGAIN)
        if plan not in document["plans"] or run.get("share_moves"):
            continue
        if "problem" in run:
            yield {"plan": plan, "error": run["problem"]}
        else:
            yield {
                "plan": plan,
                "repeat": run["repeat"],
                "round_seconds": run["round_seconds"],
                "slowness": run["slowness"],
                **{what: run[what] for what in ("boot", "best_pace") if what in run},
                "first_rounds": 0,  # they are left out already
                "peak_bytes": {device: told["peak_bytes"] for device, told in run["devices"].items()},
            }


def instance_of(document: dict[str, Any]) -> PlanningInstance:
    """Out of what was measured then, as it is fitted now; what was profiled several times by its median."""
    profilings = document["profilings"]
    return instance_again(
        instance_from_json(profilings[0]["instance"]),
        prepared_job(Cell.named(document["cell"]).job),
        profiles=median_profiles([Profiles.from_json(profiling["profiles"]) for profiling in profilings]),
    )


def report(folder: Path, *, instance_of: Callable[[dict[str, Any]], PlanningInstance] = instance_of) -> Report:
    """The table over all cells that are there. instance_of: of a cell's document."""
    table = Report(
        title="Predicted and measured seconds of a round",
        how=(
            "Real agents on emulated devices, profiled before. Predicted: by the medians of the profilings, where there are "
            "several. Measured: the median over the rounds of all runs, but for the first "
            f"{FIRST_ROUNDS} of a run and those in which the machine's processors were slow with something else (by "
            f"{MOST_SLOWNESS - 1:.0%} or more), where enough others are left. Noise: by how much the slowest run of a plan was "
            "above its quickest, at one pace and in brackets as measured. Slowness: of the processors in the rounds that count, "
            "emulating the links included, and when they were profiled. Error: at one pace, had it been that of the rounds while "
            "each class of devices was profiled; beside it as measured. Left out: runs whose shares moved, and cells with "
            "profiles of another format."
        ),
        columns=(
            "cell",
            "plan",
            "predicted",
            "measured",
            "error",
            "as measured",
            "runs",
            "noise",
            "slowness",
            "memory, least to most",
        ),
    )
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    # Of a cell of the matrix that has only begun there is nothing yet.
    documents = [with_pairs(document) for document in documents if document.get("profilings") and "plans" in document]
    known = [(document, instance) for document in documents if (instance := _known(document, instance_of)) is not None]
    found = [pair for document, instance in known for pair in pairs_of(document, instance)]
    for pair in found:
        noise = f"{pair.noise_at_one_pace:.1%} ({pair.noise:.1%})" if len(pair.medians) > 1 else ""
        table.rows.append((
            *(pair.cell, pair.plan, f"{pair.predicted:.3f}", f"{pair.measured:.3f}", f"{pair.error_at_one_pace:+.1%}"),
            *(f"{pair.error:+.1%}", str(len(pair.medians)), noise, f"{pair.slowness:.2f}, {pair.profiled_slowness:.2f}"),
            f"{min(pair.memory_errors):+.0%} to {max(pair.memory_errors):+.0%}",
        ))  # fmt: skip
    for document, _ in known:
        for profiling in document["profilings"]:
            _expect_profiling(table, document["cell"], profiling["seconds"])
        for plan, why in failures(document).items():
            table.expect(f"{document['cell']}: {plan} runs ({why})", False)
    if found:
        _expect_predictions(table, found)
    return table


def failures(document: Mapping[str, Any]) -> dict[str, str]:
    """By plan, why one of its runs failed: none was predicted to."""
    return {run["plan"]: run["error"] for run in document["runs"] if "error" in run}


def _known(
    document: dict[str, Any], instance_of: Callable[[dict[str, Any]], PlanningInstance]
) -> PlanningInstance | None:
    """None, and why on standard error, where its profiles are of another format."""
    try:
        return instance_of(document)
    except EdgeswarmError as error:
        say(f"{document['cell']} is left out: {error.message}")
        return None


def _expect_predictions(table: Report, found: list[Pair]) -> None:
    errors = [abs(pair.error_at_one_pace) for pair in found]
    median, most = float(np.median(errors)), float(np.quantile(errors, 0.95))
    correlation = rank_correlation([pair.predicted_at_one_pace for pair in found], [pair.measured for pair in found])
    memory = np.array([error for pair in found for error in pair.memory_errors])
    table.data = {"pairs": len(found), "median": median, "p95": most, "rank_correlation": correlation}
    table.expect(f"{len(found)} pairs of a plan and a model, at least {LEAST_PAIRS}", len(found) >= LEAST_PAIRS)
    table.expect(f"median error {median:.1%}, at most 8 %", median <= MOST_ERROR_MEDIAN)
    table.expect(f"95th percentile {most:.1%}, at most 15 %", most <= MOST_ERROR_95)
    raw = [abs(pair.error) for pair in found]
    of_raw = rank_correlation([pair.predicted for pair in found], [pair.measured for pair in found])
    say(
        f"as measured: median error {np.median(raw):.1%}, 95th percentile {np.quantile(raw, 0.95):.1%}, "
        f"rank correlation {of_raw:.3f}"
    )
    table.expect(f"rank correlation {correlation:.3f}, at least 0.95", correlation >= LEAST_RANK_CORRELATION)
    outside = int(((memory < -MOST_MEMORY_UNDER) | (memory > MOST_MEMORY_OVER)).sum())
    table.expect(
        f"memory {memory.min():+.1%} to {memory.max():+.1%} of what was measured, -3 % to +10 %; "
        f"{outside} of {len(memory)} are outside",
        not outside,
    )


def _expect_profiling(table: Report, cell: str, seconds: dict[str, float]) -> None:
    """What MobileNetV2's layers at batch sizes of 1 to 256 may take; and nothing, once they are known."""
    if Cell.named(cell).model != "mobilenet_v2":
        return
    for name, took in seconds.items():
        most = next((most for kind, most in MOST_PROFILE_SECONDS.items() if name.startswith(kind)), None)
        if most is not None:
            table.expect(f"{cell}: {name} profiled in {took:.0f} s, at most {most:.0f}", took <= most)
