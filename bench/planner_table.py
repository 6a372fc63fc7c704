"""All planners on instances made from public measurements: seconds of a round by the simulator, and of planning.

    python -m bench.planner_table                    print the table
    python -m bench.planner_table --write            and put it into docs/planners.md
    python -m bench.planner_table --instance NAME    one instance; may be repeated

The folder (--data) holds planning instances as `edgeswarm plan --instance` takes them, one JSON file each. Planning seconds
are those of the process's processor time, on one core, at the machine's best pace in the whole run (bench/planning_pace.py);
edgeswarm's are the median of --repeats plannings, all instances once and then all once more. HetPipe's column is simulated
alone: no runtime here trains that way, with weights that are a wave old, so that it isn't counted among the fastest.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bench.measuring import Report, arguments, say
from bench.pages import PLANNERS_PAGE, markdown_table, write_into
from bench.planning_pace import slowness, timed
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan
from edgeswarm_coordinator.simulator.hetpipe import best_hetpipe
from edgeswarm_coordinator.simulator.simulate import round_seconds

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "instances"
# Small instances only; bench/optimum_gap.py has it.
WITHOUT = ("exhaustive",)
HETPIPE = "hetpipe"
OURS = "edgeswarm"
REPEATS = 5

Found = TypeVar("Found")


@dataclass(frozen=True)
class Cell:
    """One planner on one instance. seconds: of a round, None where no plan fits memory; devices, stages: that it uses.

    planning_seconds: as measured. looks: seconds of the piece of work that tells the machine's pace, meanwhile.
    micro_batch: 0 where there are several. workers: of HetPipe, each a pipeline; stages is then those of the longest.
    """

    seconds: float | None
    planning_seconds: float
    devices: int = 0
    stages: int = 0
    micro_batch: int = 0
    workers: int = 0
    looks: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        if self.seconds is None:
            return f"fits no memory ({self.planning_seconds:.2f} s)"
        pipelines = f" in {self.workers} pipelines" if self.workers > 1 else ""
        return f"{_digits(self.seconds)} ({self.devices} dev.{pipelines}, {self.planning_seconds:.2f} s)"


def measure(instance: PlanningInstance, planner: str) -> Cell:
    """Plan, and simulate the plan."""
    if planner == HETPIPE:
        return _measure_hetpipe(instance)
    plan, planning, looks = timed(lambda: _where_any_fits(lambda: make_plan(instance, planner)))
    if plan is None:
        return Cell(None, planning, looks=looks)
    seconds = round_seconds(instance, plan)
    return Cell(seconds, planning, len(plan.devices), len(plan.stages), plan.micro_batch, looks=looks)


def planned_again(
    cells: Mapping[str, dict[str, Cell]], again: Callable[[str], Cell], *, repeats: int
) -> dict[str, list[Cell]]:
    """edgeswarm's cells of each instance, `repeats` of them, of which the first is there already.

    again: measures edgeswarm on the instance of that name once more.
    """
    ours = {name: [row[OURS]] for name, row in cells.items()}
    for _ in range(repeats - 1):
        for name, measured in ours.items():
            measured.append(again(name))
    return ours


def at_best_pace(cells: Mapping[str, dict[str, Cell]], ours: Mapping[str, Sequence[Cell]]) -> float:
    """Planning seconds of all cells become those at the best pace of all that were measured; edgeswarm's the median of several.

    ours: of `planned_again`; empty where edgeswarm didn't plan. Returns by how much the machine was slower, on average.
    """
    measured = [cell for row in cells.values() for cell in row.values()]
    measured += [cell for of_instance in ours.values() for cell in of_instance[1:]]
    of_all = [look for cell in measured for look in cell.looks]

    def paced(cell: Cell) -> float:
        return cell.planning_seconds / slowness(cell.looks, of_all=of_all)

    for name, row in cells.items():
        for planner, cell in row.items():
            seconds = [paced(each) for each in ours[name]] if planner == OURS and name in ours else [paced(cell)]
            row[planner] = replace(cell, planning_seconds=statistics.median(seconds))
    return slowness(of_all, of_all=of_all)


def _measure_hetpipe(instance: PlanningInstance) -> Cell:
    """Its workers' pipelines are those of `pipeline`: one device for each stage, cut for their speeds."""
    found, planning, looks = timed(
        lambda: _where_any_fits(lambda: best_hetpipe(instance, lambda part: make_plan(part, "pipeline")))
    )
    if found is None:
        return Cell(None, planning, looks=looks)
    plans = found.workers
    return Cell(
        found.round_seconds,
        planning,
        devices=sum(len(plan.devices) for plan in plans),
        stages=max(len(plan.stages) for plan in plans),
        workers=len(plans),
        looks=looks,
    )


def _where_any_fits(work: Callable[[], Found]) -> Found | None:
    """What it finds; None where nothing fits memory."""
    try:
        return work()
    except EdgeswarmError as error:
        if error.code is not ErrorCode.NO_PLAN_FITS:
            raise
        return None


def _fastest(row: Mapping[str, Cell]) -> float:
    """Seconds of the fastest plan that can be trained with."""
    return min((cell.seconds for name, cell in row.items() if cell.seconds and name != HETPIPE), default=math.nan)


def markdown(cells: Mapping[str, Mapping[str, Cell]], planners: Sequence[str]) -> str:
    """The table: a row for each instance, a column for each planner, the fastest in bold."""
    rows = []
    for name, row in cells.items():
        best = _fastest(row)
        texts = []
        for planner in planners:
            cell = row[planner]
            fastest = planner != HETPIPE and cell.seconds is not None and cell.seconds <= best * (1 + 1e-6)
            texts.append(f"**{cell.text}**" if fastest else cell.text)
        rows.append((name, *texts))
    return markdown_table(("instance", *planners), rows)


def most_planning_seconds(instance: PlanningInstance) -> float:
    """What edgeswarm's planner may take, on one core."""
    return 1.0 if instance.model.layer_count <= 180 and len(instance.devices) <= 6 else 3.0


def make_report(
    cells: Mapping[str, Mapping[str, Cell]], planners: Sequence[str], *, limits: Mapping[str, float] | None = None
) -> Report:
    """limits: by instance, seconds that edgeswarm's planner may take."""
    report = Report(
        "Seconds of a round by the simulator",
        "In brackets: devices used, and seconds of processor time that planning took, on one core, at the machine's best pace "
        "(edgeswarm's: the median of --repeats). The best is marked *.",
        ("instance", *planners),
    )
    for name, row in cells.items():
        best = _fastest(row)
        marks = [
            row[p].text + ("*" if p != HETPIPE and (row[p].seconds or math.inf) <= best * (1 + 1e-6) else "")
            for p in planners
        ]
        report.rows.append((name, *marks))
        report.data[name] = {planner: {**vars(cell), "looks": len(cell.looks)} for planner, cell in row.items()}
    ours = {name: row[OURS] for name, row in cells.items() if OURS in row}
    if ours:
        slower = [
            name for name, cell in ours.items() if not (cell.seconds or math.inf) <= _fastest(cells[name]) * (1 + 1e-6)
        ]
        report.expect(f"no planner's plan is faster than edgeswarm's{_named(slower)}", not slower)
    if ours and limits:
        late = [name for name, cell in ours.items() if cell.planning_seconds > limits[name]]
        report.expect(f"planning takes edgeswarm no longer than it may{_named(late)}", not late)
    return report


def _named(instances: Sequence[str]) -> str:
    return f": {', '.join(instances)}" if instances else ""


def _digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def main() -> int:
    parser = arguments(__doc__, repeats=REPEATS)
    parser.add_argument("--data", type=Path, default=FOLDER, metavar="FOLDER", help="the instances")
    parser.add_argument("--instance", action="append", metavar="NAME", help="just this one; may be repeated")
    others = [*(name for name in PLANNERS if name not in WITHOUT), HETPIPE]
    parser.add_argument("--planner", action="append", choices=others, help="just this one; may be repeated")
    parser.add_argument("--write", action="store_true", help="put the table into docs/planners.md")
    options = parser.parse_args()
    planners = options.planner or others
    paths = [path for path in sorted(options.data.glob("*.json")) if path.stem in (options.instance or [path.stem])]
    if not paths:
        parser.error(f"{options.data} holds no such instance; --data FOLDER names the folder")
    documents = {path.stem: json.loads(path.read_text()) for path in paths}

    def read(name: str) -> PlanningInstance:
        """Anew each time: an instance keeps what was worked out of its curves."""
        return instance_from_json(documents[name])

    cells, limits = {}, {}
    for name in documents:
        instance = read(name)
        limits[name] = most_planning_seconds(instance)
        say(f"{name}: {instance.model.layer_count} layers, {len(instance.devices)} devices")
        cells[name] = {planner: measure(instance, planner) for planner in planners}
    ours: dict[str, list[Cell]] = {}
    if OURS in planners:
        ours = planned_again(cells, lambda name: measure(read(name), OURS), repeats=options.repeats)
    slow = at_best_pace(cells, ours)
    if options.write:
        write_into(PLANNERS_PAGE, "table", markdown(cells, planners))
    report = make_report(cells, planners, limits=limits)
    report.remarks += [
        f"the machine was slower than at its best by {slow:.2f} on average",
        *_as_measured(ours, limits),
    ]
    return report.show(as_json=options.json)


def _as_measured(ours: Mapping[str, Sequence[Cell]], limits: Mapping[str, float]) -> list[str]:
    """What took longer than it may by the clock of the processor alone."""
    medians = {name: statistics.median(cell.planning_seconds for cell in cells) for name, cells in ours.items()}
    late = [f"{name} {seconds:.2f} s" for name, seconds in medians.items() if seconds > limits[name]]
    return [f"as measured, planning took longer than it may: {', '.join(late)}"] if late else []


if __name__ == "__main__":
    sys.exit(main())
