"""A simulated round as a person reads it, and as one document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..planner.units import readable_bytes, readable_seconds
from ..simulator.gantt import LEGEND, gantt

if TYPE_CHECKING:
    from rich.console import Console

    from edgeswarm.plan import Plan
    from edgeswarm.profile import PlanningInstance

    from ..simulator.simulation import Simulation

SIMULATION_FORMAT = "edgeswarm-simulation/1"
MOST_COLUMNS = 160
LIMITS_TOLD = 3


def print_simulation(console: Console, simulation: Simulation, plan: Plan, instance: PlanningInstance) -> None:
    """Seconds, what the round waits for, a table of the devices, and the round drawn as characters."""
    from rich.table import Table

    last = "" if plan.last_micro_batch is None else f", the last one of {plan.last_micro_batch},"
    console.print(
        f"A round of {plan.mini_batch} samples in {plan.micro_batches} micro-batches of {plan.micro_batch}{last} takes "
        f"{readable_seconds(simulation.round_seconds)}: {simulation.samples_per_second:.1f} samples/s.",
        soft_wrap=True,
    )
    if simulation.limits:
        told = ", ".join(f"{limit.text} {limit.fraction:.0%}" for limit in simulation.limits[:LIMITS_TOLD])
        console.print(f"Its critical path is: {told}.", soft_wrap=True)
    else:
        console.print("Nothing in it takes any time, by these profiles.")
    table = Table()
    for heading in ("stage", "device", "computes", "all-reduce", "waits", "sends", "receives", "sent", "memory"):
        table.add_column(heading, justify="left" if heading == "device" else "right", overflow="fold")
    for index, stage in enumerate(plan.stages):
        for device in stage.shares:
            use = simulation.devices[device]
            parts = (use.busy, use.all_reduce, use.waiting, use.sending, use.receiving)
            budget = instance.devices[instance.index_of[device]].memory_bytes
            peak = simulation.memory[device].expected_bytes
            table.add_row(
                str(index),
                device,
                *(f"{part:.0%}" for part in parts),
                readable_bytes(simulation.sent_bytes[device]),
                f"{readable_bytes(peak)} of {readable_bytes(budget)}" + (", too much" if peak > budget else ""),
                end_section=device == stage.devices[-1],
            )
    console.print(table)
    for line in gantt(simulation, width=min(console.width, MOST_COLUMNS)):
        console.print(line, soft_wrap=True)
    console.print(LEGEND)


def simulation_document(simulation: Simulation, plan: Plan) -> dict[str, Any]:
    """One JSON object: all of the simulation, with the plan."""
    return {
        "format": SIMULATION_FORMAT,
        "round_seconds": simulation.round_seconds,
        "samples_per_second": simulation.samples_per_second if math.isfinite(simulation.samples_per_second) else None,
        "limits": [
            {
                "kind": limit.kind,
                "stage": limit.stage,
                "seconds": limit.seconds,
                "fraction": limit.fraction,
                "text": limit.text,
            }
            for limit in simulation.limits
        ],
        "devices": {name: _device(simulation, name) for name in simulation.devices},
        "events": [
            _without_defaults(
                {
                    "device": event.device,
                    "track": event.track,
                    "kind": event.kind,
                    "micro_batch": event.micro_batch,
                    "start_seconds": event.start_seconds,
                    "end_seconds": event.end_seconds,
                    "peer": event.peer,
                    "bytes": event.size_bytes,
                },
                {"micro_batch": -1, "peer": "", "bytes": 0.0},
            )
            for event in simulation.events
        ],
        "plan": plan.to_json(),
    }


def _device(simulation: Simulation, name: str) -> dict[str, Any]:
    use, memory = simulation.devices[name], simulation.memory[name]
    return {
        "busy": use.busy,
        "waiting": use.waiting,
        "all_reduce": use.all_reduce,
        "sending": use.sending,
        "receiving": use.receiving,
        "sent_bytes": simulation.sent_bytes[name],
        "peak_memory_bytes": memory.expected_bytes,
        "memory_over_time": [[seconds, level] for seconds, level in memory.over_time],
    }


def _without_defaults(fields: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in defaults or value != defaults[name]}
