"""From the cells' documents to what they say: rates, ratios beside the noise, the table. Pure.

A method's rate in a repeat is that of its median round. What ratios of them say is in estimate.py.

A machine that is shared changes its pace between two runs, which the testbed writes down. So there are two estimates of each
ratio: of rates at one pace (each round's seconds by the machine's slowness in it), and of those as measured. The first one counts
in every cell all of whose runs tell their slowness. That is a rule, and nobody looks for it at what is compared. The other one
stands beside it, and a ratio must exceed the difference of the two: seconds in which a round waits for a link don't follow the
machine's pace, so that the first is too kind to what waited in slow moments.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.estimate import OURS, RUN_AGAIN, Estimate
from bench.measuring import Report, Spread
from bench.origin import remark, remarks
from bench.testbed.speed import at_best_pace, told_too_low

FORMAT = "edgeswarm-matrix/3"  # of cells' documents; those of another one were measured by other rules
SERVED = "edgeswarm, first epoch served"
AT_ONE_PACE, AS_MEASURED = "at one pace", "as measured"


@dataclass(frozen=True)
class Compared:
    """A ratio of ours, the same by the estimate that doesn't count, where that is of all runs, too, and the one that does."""

    ratio: Spread
    otherwise: Spread | None
    counting: Estimate

    @property
    def must_exceed(self) -> float:
        return self.counting.must_exceed(self.ratio, self.otherwise)

    @property
    def is_equal(self) -> bool:
        return self.counting.is_equal(self.ratio, self.otherwise)

    @property
    def shown(self) -> str:
        return self.counting.shown(self.ratio, self.otherwise)

    def to_json(self) -> dict[str, Any]:
        """must_exceed: null where nobody knows the noise."""
        return {
            **self.ratio.to_json(),
            "must_exceed": self.must_exceed if math.isfinite(self.must_exceed) else None,
            "is_equal": self.is_equal,
            "otherwise": None if self.otherwise is None else self.otherwise.to_json(),
        }


@dataclass(frozen=True)
class CellResult:
    """What one cell's document says.

    measured: with rates of the median round, as they were. paced: likewise, as if the machine had been at its best pace, where
    its slowness is known. problems: by method, why. failures: by method, how many of its runs failed. worst_rounds: by method,
    both runs of ours, its slowest round by the median one of its run, at one pace where that is known. ideal: samples per second,
    what the devices do alone in all. paced_ideal: likewise, as if the machine had been at its best pace; None where that isn't
    known of all. ideal_beside: as ideal, each measured while the others compute, since they share a machine here; None where one
    has no memory for that. remark: on what made its runs.
    """

    cell: str
    measured: Estimate
    paced: Estimate
    problems: dict[str, str]
    failures: dict[str, int]
    worst_rounds: dict[str, float]
    ideal: float
    paced_ideal: float | None
    ideal_beside: float | None
    peers: tuple[str, ...]
    plans: tuple[str, ...]
    same_plan_as: dict[str, str]
    remark: str

    @property
    def is_at_one_pace(self) -> bool:
        """Whether ratios are those of rates at one pace: where all runs tell their slowness."""
        with_slowness = {method: set(found) for method, found in self.paced.rates.items()}
        return with_slowness == {method: set(found) for method, found in self.measured.rates.items()}

    @property
    def counting(self) -> Estimate:
        return self.paced if self.is_at_one_pace else self.measured

    @property
    def other(self) -> Estimate:
        """The estimate that doesn't count."""
        return self.measured if self.is_at_one_pace else self.paced

    def rate(self, method: str) -> float | None:
        """As measured: median over the repeats."""
        found = list(self.measured.own(method).values())
        return statistics.median(found) if found else None

    def of_ideal(self, method: str = OURS) -> Spread:
        """Of the repeats of a method that has some: at one pace where that estimate counts and the ideal is known so."""
        if self.is_at_one_pace and self.paced_ideal is not None:
            rates, ideal = self.paced.own(method), self.paced_ideal
        else:
            rates, ideal = self.measured.own(method), self.ideal
        return Spread.of([rate / ideal for rate in rates.values()])

    def of_ideal_beside(self, rate: float) -> str:
        """`0.97`; nothing where it isn't known."""
        return "" if self.ideal_beside is None else f"{rate / self.ideal_beside:.2f}"

    def speed_up(self, other: str, *, of: str = OURS) -> Compared | None:
        """Our method by another one, by the estimate that counts; None where they have no repeat in common."""
        ratio = self.counting.speed_up(other, of=of)
        if ratio is None:
            return None
        # Where not all runs tell their slowness the other estimate is of some of them.
        otherwise = self.other.speed_up(other, of=of) if self.is_at_one_pace else None
        return Compared(ratio, otherwise, self.counting)

    @property
    def best_peer(self) -> str | None:
        """The peer against which we do worst."""
        found = {peer: ratio.median for peer in self.peers if (ratio := self.counting.speed_up(peer)) is not None}
        return min(found, key=lambda peer: found[peer]) if found else None


def read_cell(document: dict[str, Any]) -> CellResult:
    """Of a document that has its peers' settings; runs may be missing."""
    rates: dict[str, dict[int, float]] = {}
    paced: dict[str, dict[int, float]] = {}
    problems: dict[str, str] = {}
    failures: dict[str, int] = {}
    worst: dict[str, list[float]] = {}
    kinds = list(dict.fromkeys(document["device_classes"]))
    told_alone = [{"boot": document.get("boot"), **document["alone"][kind]} for kind in kinds]
    too_lows = told_too_low([*told_alone, *document["runs"]])
    for run, too_low in zip(document["runs"], too_lows[len(kinds) :], strict=True):
        if "problem" in run:
            problems[run["method"]] = run["problem"]
            failures[run["method"]] = failures.get(run["method"], 0) + 1
            continue
        median = statistics.median(run["round_seconds"])
        rates.setdefault(run["method"], {})[run["repeat"]] = document["mini_batch"] / median
        slownesses = [
            too_low * each if each else None for each in run.get("slowness") or [None] * len(run["round_seconds"])
        ]
        if at_best := at_best_pace(run["round_seconds"], slownesses):
            paced.setdefault(run["method"], {})[run["repeat"]] = document["mini_batch"] / statistics.median(at_best)
        seconds = at_best or run["round_seconds"]
        worst.setdefault(run["method"].removesuffix(RUN_AGAIN), []).append(max(seconds) / statistics.median(seconds))
    alone = [document["alone"][kind] for kind in document["device_classes"]]
    paced_by_kind = {
        kind: too_low * rate
        for kind, told, too_low in zip(kinds, told_alone, too_lows, strict=False)
        if (rate := _at_best_pace(told)) is not None
    }
    paced_alone = [paced_by_kind[kind] for kind in document["device_classes"] if kind in paced_by_kind]
    beside = [told["beside_others"] for told in alone]
    return CellResult(
        cell=document["cell"],
        measured=Estimate(rates),
        paced=Estimate(paced),
        problems=problems,
        failures=failures,
        worst_rounds={method: max(found) for method, found in worst.items()},
        ideal=sum(told["samples_per_second"] for told in alone),
        paced_ideal=sum(paced_alone) if len(paced_alone) == len(alone) else None,
        ideal_beside=sum(beside) if all(beside) else None,
        peers=tuple(document["peers"]),
        plans=tuple(document["plans"]),
        same_plan_as=document["same_plan_as"],
        remark="; ".join(told for told in (_of_other_rules(document), remark(document["runs"])) if told),
    )


def _of_other_rules(document: Mapping[str, Any]) -> str:
    """Nothing where it was measured as cells are now."""
    found = document.get("format", FORMAT)
    return "" if found == FORMAT else f"measured by other rules ({found})"


def _at_best_pace(alone: Mapping[str, Any]) -> float | None:
    """Samples per second of a device by itself, had the machine been at its best; None where nobody knows. Cells of before
    2026-11-29 have the rate as measured and its slowness.
    """
    if "at_best_pace" in alone:
        return float(alone["at_best_pace"])
    slow = alone.get("slowness")
    return alone["samples_per_second"] * slow if slow else None


def peers_table(cells: Sequence[CellResult]) -> Report:
    """Each cell beside every peer and the ideal."""
    peers = list(dict.fromkeys(peer for cell in cells for peer in cell.peers))
    report = Report(
        title="edgeswarm and its peers",
        how=(
            "Samples per second of the median round, and edgeswarm's by each peer's: medians over interleaved repeats (least to "
            "most); edgeswarm's in a repeat is the geometric mean of its two runs. Ideal: the sum of what the devices do alone, "
            "both at one pace where ratios are and that is known of the devices, too; "
            "at once: each measured while the others compute, since devices on one machine take of each other's caches. Noise: "
            "the same setting against itself, in the worst repeat. `equal`: the median is no further from 1 than that noise, "
            "than one of the ratio's own repeats is from the median, or than the ratio is otherwise. By: ratios are of rates at "
            "one pace, each round's seconds by the machine's slowness in it, in every cell whose runs all tell it, whatever "
            "comes out; else as measured. Worst round: the slowest of all by the median one of its run, at one pace where that "
            "is known, in brackets the peers', least to most. Otherwise: the best peer by the other one, and the noise of that."
        ),
        columns=(
            *("cell", "samples/s", "of the ideal", "of the ideal at once", "noise", "worst round"),
            *(f"x {peer}" for peer in peers),
            "by",
            "otherwise",
        ),
    )
    for cell in cells:
        for method, problem in cell.problems.items():
            if method.startswith(OURS):
                report.expect(f"{cell.cell}: {method} runs ({problem})", False)
        ours = cell.rate(OURS)
        if ours is None:
            report.rows.append((cell.cell, cell.problems.get(OURS, "not yet"), *[""] * (len(report.columns) - 2)))
            continue
        report.rows.append(_beside_peers(cell, OURS, peers))
        if SERVED in cell.measured.rates:
            report.rows.append(_beside_peers(cell, SERVED, peers))
        best = cell.best_peer
        if best is not None and (compared := cell.speed_up(best)) is not None:
            noise = compared.must_exceed
            is_faster = compared.ratio.median > 1 and not compared.is_equal
            beside = "no noise is known" if math.isinf(noise) else f"beside a noise of {noise:.0%}"
            report.expect(f"{cell.cell}: {compared.ratio.shown()} times {best}, {beside}", is_faster)
        elif cell.peers and all(peer in cell.problems and peer not in cell.measured.rates for peer in cell.peers):
            report.expect(f"{cell.cell}: one of the peers runs", False)
        report.data[cell.cell] = _in_numbers(cell)
    report.remarks += remarks({cell.cell: cell.remark for cell in cells})
    report.remarks += [
        f"{cell.cell}: {method} failed in {times} of its runs ({cell.problems[method]})"
        for cell in cells
        for method, times in cell.failures.items()
        if method in cell.measured.rates and not method.startswith(OURS)
    ]
    return report


def _in_numbers(cell: CellResult) -> dict[str, Any]:
    methods = [method for method in (OURS, SERVED, *cell.peers, *cell.plans) if method in cell.measured.rates]
    return {
        "estimate": AT_ONE_PACE if cell.is_at_one_pace else AS_MEASURED,
        "noise": cell.counting.noise,
        "ideal": cell.ideal,
        "paced_ideal": cell.paced_ideal,
        "samples_per_second": {method: cell.rate(method) for method in methods},
        "of_ideal": {method: cell.of_ideal(method).to_json() for method in methods},
        "worst_round_by_median": cell.worst_rounds,
        "times": {
            method: compared.to_json()
            for method in methods
            if method not in (OURS, SERVED) and (compared := cell.speed_up(method)) is not None
        },
    }


def _beside_peers(cell: CellResult, method: str, peers: Sequence[str]) -> tuple[str, ...]:
    """A row for one of our own methods. Peers that failed say why."""
    rate = cell.rate(method)
    assert rate is not None
    ratios = {peer: cell.speed_up(peer, of=method) for peer in peers}
    otherwise = None if cell.best_peer is None else cell.other.speed_up(cell.best_peer, of=method)
    return (
        cell.cell if method == OURS else method.replace(OURS, cell.cell),
        *(f"{rate:.1f}", f"{cell.of_ideal(method).median:.2f}", cell.of_ideal_beside(rate)),
        *(cell.counting.shown_noise, _worst_round(cell, method)),
        *(cell.problems.get(peer, "") if found is None else found.shown for peer, found in ratios.items()),
        AT_ONE_PACE if cell.is_at_one_pace else AS_MEASURED,
        ""
        if otherwise is None
        else f"{otherwise.shown()}, noise {cell.other.must_exceed(otherwise):.0%}".removesuffix(", noise inf%"),
    )


def _worst_round(cell: CellResult, method: str) -> str:
    """`1.12 (1.05 to 1.31)`: ours, and the peers'."""
    of_peers = [cell.worst_rounds[peer] for peer in cell.peers if peer in cell.worst_rounds]
    peers = f" ({min(of_peers):.2f} to {max(of_peers):.2f})" if of_peers else ""
    return f"{cell.worst_rounds[method]:.2f}{peers}"


def plans_table(cells: Sequence[CellResult]) -> Report:
    """Our plan beside the other planners' on our own runtime."""
    planners = list(dict.fromkeys(name for cell in cells for name in (*cell.plans, *cell.same_plan_as)))
    planners = [name for name in planners if name != OURS]
    report = Report(
        title="Plans of other planners on the same runtime",
        how=(
            "The speed of edgeswarm's plan by that of each planner's: medians over repeats (least to most), `equal` as beside "
            "the peers. `same`: the planner gave the same plan. Not slower: faster, or equal. Shares of edgeswarm's plan move "
            "while it trains, as in any long training; those of the others don't. The mean is of the medians, equal or not."
        ),
        columns=("cell", "noise", *planners),
    )
    medians: dict[str, list[float]] = {}
    for cell in cells:
        shown = []
        for planner in planners:
            trained = cell.same_plan_as.get(planner, planner)
            compared = cell.speed_up(trained)
            what = f"{cell.cell}: not slower than {planner}'s plan"
            if trained == OURS:
                shown.append("same")
                medians.setdefault(planner, []).append(1.0)
                report.expect(f"{what}, which is the same", True)
            elif compared is None:
                shown.append(cell.problems.get(trained, ""))
            else:
                shown.append(compared.shown)
                medians.setdefault(planner, []).append(compared.ratio.median)
                is_known = math.isfinite(compared.must_exceed)
                within = compared.is_equal and is_known
                beside = ", within the noise" if within else "" if is_known else ", but no noise is known"
                report.expect(f"{what}{beside}", within or compared.ratio.median > 1)
        report.rows.append((cell.cell, cell.counting.shown_noise, *shown))
    means = {planner: math.exp(statistics.fmean(map(math.log, found))) for planner, found in medians.items()}
    report.rows.append(("geometric mean", "", *(f"{means[name]:.2f}" if name in means else "" for name in planners)))
    report.data = {"geometric_mean": means}
    return report
