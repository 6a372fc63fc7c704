"""How much slower than the fastest plan there is are the planners' plans? On random small instances, judged by the simulator.

    python -m bench.optimum_gap --count 300 --seed 0 --out gaps.jsonl
    python -m bench.optimum_gap --count 300 --seed 0 --out gaps.jsonl --planner asteroid --planner dapple
    python -m bench.optimum_gap --count 300 --seed 0 --out gaps.jsonl --write      and put the table into docs/planners.md

FILE has one JSON object a line: an instance by its number, the optimum's seconds, and each planner's, null where its plan
fits no memory. What is in FILE isn't measured again: a command that was stopped goes on, and one with another planner
adds that one. The instances are those of bench/random_instances.py.

A gap of 0.05 is a round that takes 5 % longer than the optimum. Counted are instances in which the planner has a plan;
those in which only the exhaustive search has one are counted apart.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measuring import Report, arguments, cpu_seconds, say
from bench.pages import PLANNERS_PAGE, markdown_table, write_into
from bench.random_instances import random_instance
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.comparison.exhaustive import every_micro_batch, find_optimum
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan
from edgeswarm_coordinator.simulator.simulate import round_seconds

OURS = "edgeswarm"
MOST_MEAN_GAP, MOST_GAP = 0.01, 0.05
OPTIMUM = "exhaustive"
# Upper edges of the histogram; the last column has all above.
EDGES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass
class Case:
    """One instance. optimum_seconds: None where no plan fits. planners: seconds of a round by name, None for no plan.

    cpu_seconds: of the exhaustive search.
    """

    seed: int
    number: int
    name: str
    optimum_seconds: float | None
    candidates: int
    simulated: int
    cpu_seconds: float
    planners: dict[str, float | None] = field(default_factory=dict)

    def gap(self, planner: str) -> float | None:
        """By which part the planner's round is longer; None where it, or the optimum, has no plan."""
        seconds = self.planners.get(planner)
        if seconds is None or self.optimum_seconds is None:
            return None
        return seconds / self.optimum_seconds - 1


def solve(seed: int, number: int, instance: PlanningInstance) -> Case:
    """The optimum of an instance, with no planner compared yet."""
    begun = cpu_seconds()
    optimum = find_optimum(instance, every_micro_batch(instance))
    return Case(
        seed,
        number,
        instance.name,
        None if optimum.plan is None else optimum.seconds,
        optimum.candidates,
        optimum.simulated,
        cpu_seconds() - begun,
    )


def planned_seconds(instance: PlanningInstance, planner: str) -> float | None:
    """A round of a planner's plan by the simulator; None where it finds none that fits memory."""
    try:
        return round_seconds(instance, make_plan(instance, planner))
    except EdgeswarmError as error:
        if error.code is not ErrorCode.NO_PLAN_FITS:
            raise
        return None


def read_cases(path: Path, seed: int) -> dict[int, Case]:
    """The cases of a file by number; of two with one number the later counts."""
    if not path.exists():
        return {}
    cases = (Case(**json.loads(line)) for line in path.read_text().splitlines())
    return {case.number: case for case in cases if case.seed == seed}


def complete(path: Path, *, seed: int, count: int, planners: Sequence[str]) -> list[Case]:
    """The first `count` cases with all these planners; what the file lacks is worked out and appended."""
    cases = read_cases(path, seed)
    with path.open("a") as lines:
        for number in range(count):
            case = cases.get(number)
            missing = [planner for planner in planners if case is None or planner not in case.planners]
            if case is not None and not missing:
                continue
            instance = random_instance(seed, number)
            if case is None:
                case = cases[number] = solve(seed, number, instance)
            for planner in missing:
                case.planners[planner] = planned_seconds(instance, planner)
            lines.write(json.dumps(vars(case)) + "\n")
            lines.flush()
            if (number + 1) % 50 == 0:
                say(f"{number + 1} of {count} instances")
    return [cases[number] for number in range(count)]


def histogram(gaps: Iterable[float]) -> list[int]:
    """How many are at most as large as each edge and larger than the one before; the last: all above."""
    counts = [0] * (len(EDGES) + 1)
    for gap in gaps:
        counts[sum(gap > edge for edge in EDGES)] += 1
    return counts


def make_report(cases: Sequence[Case], planners: Sequence[str]) -> Report:
    solved = [case for case in cases if case.optimum_seconds is not None]
    cpu = [case.cpu_seconds for case in cases]
    edges = [f"<= {edge * 100:g} %" for edge in EDGES]
    report = Report(
        "How much longer rounds take than those of the fastest plan",
        f"{len(solved)} random instances of which some plan fits memory, of {len(cases)}; seed {cases[0].seed}. The "
        f"exhaustive search takes {statistics.mean(cpu):.2f} s of a core on average, {max(cpu):.1f} s at most, and has "
        f"{statistics.mean(case.simulated for case in cases):.0f} plans simulated of "
        f"{statistics.mean(case.candidates for case in cases):.0f} on average, whose K come on top.",
        ("planner", "no plan", "mean gap", "worst", *edges, "more"),
    )
    for planner in planners:
        gaps = {case.number: gap for case in solved if (gap := case.gap(planner)) is not None}
        if gaps:
            report.rows.append(_row(planner, len(solved) - len(gaps), list(gaps.values())))
            report.data[planner] = _figures(gaps)
    fastest = [gap for case in solved for planner in planners if (gap := case.gap(planner)) is not None]
    report.expect("no plan is faster than the optimum", min(fastest, default=0.0) >= -1e-5)
    if OURS in report.data:
        mean, worst = report.data[OURS]["mean"], report.data[OURS]["worst"]
        report.expect(f"edgeswarm's mean gap is at most {100 * MOST_MEAN_GAP:g} %", mean <= MOST_MEAN_GAP)
        report.expect(f"edgeswarm's worst gap is at most {100 * MOST_GAP:g} %", worst <= MOST_GAP)
    return report


def _row(planner: str, without: int, gaps: Sequence[float]) -> tuple[str, ...]:
    counts = (str(count) for count in histogram(gaps))
    return (planner, str(without), f"{100 * statistics.mean(gaps):.2f} %", f"{100 * max(gaps):.1f} %", *counts)


def _figures(gaps: Mapping[int, float]) -> dict[str, Any]:
    worst = sorted(gaps, key=lambda number: -gaps[number])[:10]
    return {
        "count": len(gaps),
        "mean": statistics.mean(gaps.values()),
        "worst": max(gaps.values()),
        "worst_instances": worst,
        "histogram": dict(zip([*map(str, EDGES), "more"], histogram(gaps.values()), strict=True)),
    }


def main() -> int:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--count", type=int, default=310, metavar="N", help="how many instances  [default: 310]")
    parser.add_argument("--seed", type=int, default=0, metavar="NUMBER", help="which instances  [default: 0]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="results, one JSON object a line")
    others = [name for name in PLANNERS if name != OPTIMUM]
    parser.add_argument("--planner", action="append", choices=others, help="compare just this one; may be repeated")
    parser.add_argument("--write", action="store_true", help="put the table into docs/planners.md")
    options = parser.parse_args()
    planners = options.planner or others
    cases = complete(options.out, seed=options.seed, count=options.count, planners=planners)
    report = make_report(cases, planners)
    if options.write:
        table = markdown_table(report.columns, report.rows)
        write_into(PLANNERS_PAGE, "gaps", table)
    return report.show(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
