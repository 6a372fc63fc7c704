"""From the cells' documents to what they say: rates, ratios beside the noise, the table. Pure.

A method's rate in a repeat is that of its median round. Ratios are taken within a repeat, since its runs are neighbours in time,
and their median over the repeats counts. The noise is the same setting against itself, likewise: the largest of the repeats.
A ratio that is no further from 1 than that reads `equal`.

A machine that is shared changes its pace between two runs, which the testbed writes down. So there are two estimates of each
ratio, of the rates as they were measured, and of those at one pace (rate x slowness); in each cell the one counts that is the
less noisy of the two by the same setting against itself. The other one stands beside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.bad_plan import BAD_PLAN
from bench.cell import RUN_AGAIN
from bench.measuring import Report

OURS = "edgeswarm"
SERVED = "edgeswarm, first epoch served"
AT_ONE_PACE, AS_MEASURED = "at one pace", "as measured"


@dataclass(frozen=True)
class CellResult:
    """What one cell's document says.

    rates: by method and repeat, samples per second of the median round; methods that failed have none. paced: likewise, as if the
    machine had been at its best pace, where its slowness is known. problems: by method, why.
    worst_rounds: by method, its slowest round by its median one. ideal: samples per second, what the devices do alone in all.
    ideal_beside: likewise, each measured while the others compute, since they share a machine here.
    """

    cell: str
    rates: dict[str, dict[int, float]]
    paced: dict[str, dict[int, float]]
    problems: dict[str, str]
    worst_rounds: dict[str, float]
    ideal: float
    ideal_beside: float
    peers: tuple[str, ...]
    plans: tuple[str, ...]
    same_plan_as: dict[str, str]

    @property
    def is_at_one_pace(self) -> bool:
        """Whether ratios are those of rates at one pace, which are the less noisy ones."""
        at_one_pace, measured = _noise(self.paced), _noise(self.rates)
        return at_one_pace is not None and measured is not None and at_one_pace < measured

    @property
    def noise(self) -> float | None:
        """Of the same setting against itself, 0.02 for 2 %; None while it was not run twice in a repeat."""
        return _noise(self._counted)

    @property
    def other_noise(self) -> float | None:
        """That of the estimate that doesn't count."""
        return _noise(self._other)

    @property
    def _counted(self) -> dict[str, dict[int, float]]:
        return self.paced if self.is_at_one_pace else self.rates

    @property
    def _other(self) -> dict[str, dict[int, float]]:
        return self.rates if self.is_at_one_pace else self.paced

    def rate(self, method: str) -> float | None:
        """Median over the repeats."""
        found = list(self.rates.get(method, {}).values())
        return statistics.median(found) if found else None

    def speed_up(self, other: str, *, of: str = OURS) -> float | None:
        """Ours, or that of one of our own methods, by the other's rate."""
        if other == of:
            return 1.0
        found = _ratios(self._counted, of, other)
        return statistics.median(found) if found else None

    def other_speed_up(self, other: str, *, of: str = OURS) -> float | None:
        """By the estimate that doesn't count; None where there is none."""
        found = _ratios(self._other, of, other)
        return statistics.median(found) if found else None

    @property
    def best_peer(self) -> str | None:
        """The peer against which we do worst."""
        found = {peer: ratio for peer in self.peers if (ratio := self.speed_up(peer)) is not None}
        return min(found, key=lambda peer: found[peer]) if found else None

    def shown(self, ratio: float | None) -> str:
        """`1.31`, or `equal` within the noise."""
        if ratio is None:
            return ""
        if self.noise is not None and abs(ratio - 1) <= self.noise:
            return f"equal ({ratio:.2f})"
        return f"{ratio:.2f}"


def _noise(rates: dict[str, dict[int, float]]) -> float | None:
    return max((abs(ratio - 1) for ratio in _ratios(rates, OURS, OURS + RUN_AGAIN)), default=None)


def _ratios(rates: dict[str, dict[int, float]], above: str, below: str) -> list[float]:
    """Of the repeats that both have."""
    ours, theirs = rates.get(above, {}), rates.get(below, {})
    return [ours[repeat] / theirs[repeat] for repeat in ours if repeat in theirs]


def read_cell(document: dict[str, Any]) -> CellResult:
    """Of a document that has its peers' settings; runs may be missing."""
    rates: dict[str, dict[int, float]] = {}
    paced: dict[str, dict[int, float]] = {}
    problems: dict[str, str] = {}
    worst: dict[str, list[float]] = {}
    for run in document["runs"]:
        if "problem" in run:
            problems[run["method"]] = run["problem"]
            continue
        median = statistics.median(run["round_seconds"])
        rate = document["mini_batch"] / median
        rates.setdefault(run["method"], {})[run["repeat"]] = rate
        if slowness := [value for value in run.get("slowness", []) if value]:
            paced.setdefault(run["method"], {})[run["repeat"]] = rate * statistics.median(slowness)
        worst.setdefault(run["method"], []).append(max(run["round_seconds"]) / median)
    return CellResult(
        cell=document["cell"],
        rates=rates,
        paced=paced,
        problems=problems,
        worst_rounds={method: max(found) for method, found in worst.items()},
        ideal=sum(document["alone"][kind]["samples_per_second"] for kind in document["device_classes"]),
        ideal_beside=sum(document["alone"][kind]["beside_others"] for kind in document["device_classes"]),
        peers=tuple(document["peers"]),
        plans=tuple(name for name in document["plans"] if name != BAD_PLAN),
        same_plan_as=document["same_plan_as"],
    )


def peers_table(cells: Sequence[CellResult]) -> Report:
    """Each cell beside every peer and the ideal."""
    peers = list(dict.fromkeys(peer for cell in cells for peer in cell.peers))
    report = Report(
        title="edgeswarm and its peers",
        how=(
            "Samples per second of the median round, and edgeswarm's by each peer's: medians over interleaved repeats. Ideal: "
            "the sum of what the devices do alone; at once: each measured while the others compute, since devices on one machine "
            "take of each other's caches. Noise: the same setting against itself. `equal`: within the noise. By: whether ratios "
            "are of rates as measured or at one pace, each times the machine's slowness meanwhile; that which is the less noisy. "
            "Otherwise: the best peer by the other one, and its noise."
        ),
        columns=(
            *("cell", "samples/s", "of the ideal", "of the ideal at once", "noise", "worst round"),
            *(f"x {peer}" for peer in peers),
            "by",
            "otherwise",
        ),
    )
    for cell in cells:
        ours = cell.rate(OURS)
        if ours is None:
            report.rows.append((cell.cell, cell.problems.get(OURS, "not yet"), *[""] * (len(report.columns) - 2)))
            continue
        report.rows.append(_beside_peers(cell, OURS, peers))
        if SERVED in cell.rates:
            report.rows.append(_beside_peers(cell, SERVED, peers))
        best = cell.best_peer
        if best is not None and (ratio := cell.speed_up(best)) is not None:
            report.expect(f"{cell.cell}: {ratio:.2f} times {best}", ratio > 1 + (cell.noise or 0.0))
        report.data[cell.cell] = {"samples_per_second": ours, "of_ideal": ours / cell.ideal, "noise": cell.noise}
    return report


def _beside_peers(cell: CellResult, method: str, peers: Sequence[str]) -> tuple[str, ...]:
    """A row for one of our own methods. Peers that failed say why."""
    rate = cell.rate(method)
    assert rate is not None
    ratios = {peer: cell.speed_up(peer, of=method) for peer in peers}
    otherwise = None if cell.best_peer is None else cell.other_speed_up(cell.best_peer, of=method)
    return (
        cell.cell if method == OURS else method.replace(OURS, cell.cell),
        *(f"{rate:.1f}", f"{rate / cell.ideal:.2f}", f"{rate / cell.ideal_beside:.2f}"),
        *("" if cell.noise is None else f"{cell.noise:.0%}", f"{cell.worst_rounds[method]:.2f}"),
        *(cell.problems.get(peer, "") if ratio is None else cell.shown(ratio) for peer, ratio in ratios.items()),
        AT_ONE_PACE if cell.is_at_one_pace else AS_MEASURED,
        "" if otherwise is None else _with_noise(otherwise, cell.other_noise),
    )


def _with_noise(ratio: float, noise: float | None) -> str:
    """`1.18, noise 6%`."""
    return f"{ratio:.2f}" if noise is None else f"{ratio:.2f}, noise {noise:.0%}"


def plans_table(cells: Sequence[CellResult]) -> Report:
    """Our plan beside the other planners' on our own runtime."""
    planners = list(dict.fromkeys(name for cell in cells for name in (*cell.plans, *cell.same_plan_as)))
    planners = [name for name in planners if name != OURS]
    report = Report(
        title="Plans of other planners on the same runtime",
        how="The speed of edgeswarm's plan by that of each planner's. `same`: the planner gave the same plan.",
        columns=("cell", *planners),
    )
    ratios: dict[str, list[float]] = {}
    for cell in cells:
        shown = []
        for planner in planners:
            trained = cell.same_plan_as.get(planner, planner)
            ratio = cell.speed_up(trained)
            if trained == OURS:
                shown.append("same")
            elif ratio is None:
                shown.append(cell.problems.get(trained, ""))
            else:
                shown.append(cell.shown(ratio))
            if ratio is not None:
                ratios.setdefault(planner, []).append(ratio)
                report.expect(f"{cell.cell}: not slower than {planner}'s plan", ratio >= 1 - (cell.noise or 0.0))
        report.rows.append((cell.cell, *shown))
    means = {planner: math.exp(statistics.fmean(map(math.log, found))) for planner, found in ratios.items()}
    report.rows.append(("geometric mean", *(f"{means[name]:.2f}" if name in means else "" for name in planners)))
    report.data = {"geometric_mean": means}
    return report
