"""What each idea of the planners brings, by the simulator: planning between stages, within them, and micro-batches in flight.

    python -m bench.ablations INSTANCE.json ...                           simulated; efficientnet_b1 is an instance too
    python -m bench.ablations --measure --folder DIR --model mobilenet_v2   trained on the testbed: one file a model
    python -m bench.ablations --report --folder DIR                         the table of what was measured

Asteroid's own table (its section 5.4): its plan, without planning within stages (equal shares), without planning between
stages (stages and groups as if all devices were alike), without either; beside them edgeswarm's planner. Then the plan of
Asteroid with other rules for K_p, the micro-batches in flight: seconds of a round and the largest peak of a device.
How it is measured: bench/measured_ablations.py. A measurement that was broken off goes on where it was.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench.ablated_plans import fits, variants
from bench.efficientnet_layers import efficientnet_instance
from bench.measured_ablations import MODELS, cell_of, measure, measured_report
from bench.measuring import Report, arguments, run_as_command, say
from bench.pages import PLANNERS_PAGE, markdown_table, write_into
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.planner.prediction import predict
from edgeswarm_coordinator.planner.units import readable_bytes

# What Asteroid's paper took, on the same six devices; made up in bench/efficientnet_layers.py.
EFFICIENTNET = "efficientnet_b1"
COLUMNS = ("instance", "plan", "seconds a round", "speed beside asteroid", "devices", "largest peak", "fits memory")


def add_rows(report: Report, instance: PlanningInstance, plans: dict[str, Plan | None]) -> None:
    """A row for each plan; the first one is what the others are compared with."""
    first: float | None = None
    for name, plan in plans.items():
        if plan is None:
            report.rows.append((instance.name, name, "no plan fits", "", "", "", ""))
            continue
        predicted = predict(instance, plan)
        seconds, memory = predicted.round_seconds, predicted.memory_bytes
        first = seconds if first is None else first
        fitting = fits(instance, memory)
        report.rows.append((
            *(instance.name, name, f"{seconds:.3f}", f"{first / seconds:.2f}", str(len(plan.devices))),
            *(readable_bytes(max(memory.values())), "yes" if fitting else "no"),
        ))  # fmt: skip
        report.data.setdefault(instance.name, {})[name] = {
            "round_seconds": seconds,
            "devices": len(plan.devices),
            "largest_peak_bytes": max(memory.values()),
            "fits": fitting,
        }


def simulated_report(instances: list[PlanningInstance]) -> Report:
    """Of the plans that are blind for memory a simulation is made too: so fast would they be if they fitted."""
    report = Report(
        title="What each idea brings, simulated",
        how=(
            "Seconds of a round by the simulator. Plans that are blind for memory may not fit; their speed is what it would be "
            "if they did. The largest peak is of the device that holds most, by the memory model."
        ),
        columns=COLUMNS,
    )
    for instance in instances:
        say(instance.name)
        add_rows(report, instance, variants(instance))
    return report


def main() -> int:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument(
        "instances", nargs="*", metavar="INSTANCE", help=f"edgeswarm-planning-instance/1 files, or {EFFICIENTNET}"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/planners.md")
    parser.add_argument("--measure", action="store_true", help="train the plans on the testbed, as root")
    parser.add_argument("--report", action="store_true", help="the table of what was measured")
    parser.add_argument("--folder", type=Path, help="where the measurements are")
    parser.add_argument("--model", action="append", choices=MODELS, help="to measure; may be repeated  [default: all]")
    given = parser.parse_args()
    if given.measure or given.report:
        if given.folder is None:
            parser.error("--measure and --report need --folder")
        if given.measure:
            given.folder.mkdir(parents=True, exist_ok=True)
            for model in given.model or MODELS:
                measure(cell_of(model), given.folder)
        report = measured_report(given.folder)
        if given.write:
            write_into(PLANNERS_PAGE, "measured ablations", markdown_table(report.columns, report.rows))
        return report.show(as_json=given.json)
    if not given.instances:
        parser.error("give instances, or --measure, or --report")
    report = simulated_report([_instance(name) for name in given.instances])
    if given.write:
        table = markdown_table(COLUMNS, report.rows)
        write_into(PLANNERS_PAGE, "ablations", table)
    return report.show(as_json=given.json)


def _instance(name: str) -> PlanningInstance:
    if name == EFFICIENTNET:
        return efficientnet_instance()
    return instance_from_json(json.loads(Path(name).read_text()))


if __name__ == "__main__":
    run_as_command(main)
