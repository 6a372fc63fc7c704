"""What each idea of the planners brings, by the simulator: planning between stages, within them, and micro-batches in flight.

    python -m bench.ablations INSTANCE.json ...
    python -m bench.ablations INSTANCE.json --json

Asteroid's own table (its section 5.4): its plan, without planning within stages (equal shares), without planning between
stages (stages and groups as if all devices were alike), without either; beside them edgeswarm's planner. Then the plan of
Asteroid with other rules for K_p, the micro-batches in flight: seconds of a round and the largest peak of a device.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.ablated_plans import IN_FLIGHT_RULES, ablated_plans, fits, plan_or_none, with_in_flight
from bench.measuring import Report, arguments, say
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.planner.planners import PLANNERS
from edgeswarm_coordinator.planner.units import readable_bytes
from edgeswarm_coordinator.simulator.simulate import round_seconds

# Of the memory-unlimited plans a simulation may still be made: what it says is how fast they would be if they fitted.
OURS = "edgeswarm"
COLUMNS = ("instance", "plan", "seconds a round", "speed beside asteroid", "devices", "largest peak", "fits memory")


def add_rows(report: Report, instance: PlanningInstance, plans: dict[str, Plan | None]) -> None:
    """A row for each plan; the first one is what the others are compared with."""
    first: float | None = None
    for name, plan in plans.items():
        if plan is None:
            report.rows.append((instance.name, name, "no plan fits", "", "", "", ""))
            continue
        seconds = round_seconds(instance, plan)
        first = seconds if first is None else first
        memory = plan_memory_bytes(instance, plan)
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


def variants(instance: PlanningInstance) -> dict[str, Plan | None]:
    """All rows of an instance, in their order."""
    plans = ablated_plans(instance)
    asteroid = plans["asteroid"]
    if OURS in PLANNERS:
        plans[OURS] = plan_or_none(instance, OURS)
    if asteroid is not None and len(asteroid.stages) > 1:
        plans.update({name: with_in_flight(asteroid, rule) for name, rule in IN_FLIGHT_RULES.items()})
    return plans


def main() -> int:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument(
        "instances", nargs="+", type=Path, metavar="INSTANCE", help="edgeswarm-planning-instance/1 files"
    )
    given = parser.parse_args()
    report = Report(
        title="What each idea brings, simulated",
        how=(
            "Seconds of a round by the simulator. Plans that are blind for memory may not fit; their speed is what it would be "
            "if they did. The largest peak is of the device that holds most, by the memory model."
        ),
        columns=COLUMNS,
    )
    for path in given.instances:
        instance = instance_from_json(json.loads(path.read_text()))
        say(instance.name)
        add_rows(report, instance, variants(instance))
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
