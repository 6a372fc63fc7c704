"""Planning and simulating with many devices: rooms of unequal boxes, fast links inside, slow ones between.

    python -m bench.many_devices
    python -m bench.many_devices --devices 40 --devices 100 --write       and put the table into docs/planners.md

    room 1: nx tx2 tx2 nano nano ... --+-- room 2: nx tx2 tx2 nano nano ...       1000 Mbit/s inside, 100 between

The model is EfficientNet-B1 as 213 layers (bench/efficientnet_layers.py). Processor seconds, on one core.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import replace

from bench.efficientnet_layers import efficientnet_instance
from bench.measuring import Report, arguments, say
from bench.pages import PLANNERS_PAGE, markdown_table, write_into
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import Network, PlanningInstance
from edgeswarm_coordinator.planner.bound import round_bound_seconds
from edgeswarm_coordinator.planner.comparison.equal_shares import share_evenly
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.simulator.simulate import simulate

COUNTS = (20, 50, 100)
ROOM = 10
KINDS = ("nx", "tx2", "tx2", "nano", "nano")  # of every five devices
INSIDE_MBPS, BETWEEN_MBPS = 1000.0, 100.0
MICRO_BATCHES = 64
MOST_PLANNING_SECONDS, MOST_SIMULATING_SECONDS = 60.0, 5.0
COLUMNS = (
    *("devices", "seconds of planning", "stages", "devices used", "seconds of a round", "beside all at full speed"),
    f"seconds of simulating {MICRO_BATCHES} micro-batches",
)


def rooms(count: int) -> PlanningInstance:
    """So many devices in rooms of ROOM."""
    plain = efficientnet_instance()
    by_kind = {device.profile: device for device in plain.devices}
    kinds = itertools.islice(itertools.cycle(KINDS), count)
    devices = tuple(replace(by_kind[kind], name=f"{kind}-{place}") for place, kind in enumerate(kinds))
    rates = tuple(
        tuple((INSIDE_MBPS if a // ROOM == b // ROOM else BETWEEN_MBPS) * 125_000 for b in range(count))
        for a in range(count)
    )
    return replace(plain, devices=devices, network=Network(plain.network.latency_seconds, rates))


def pipeline_of_all(instance: PlanningInstance) -> Plan:
    """A stage for every room, all devices in it, 64 micro-batches: what the simulator is timed with, no plan to wish for."""
    layers, names = instance.model.layer_count, instance.device_names
    groups = [names[begin : begin + ROOM] for begin in range(0, len(names), ROOM)]
    micro_batch = instance.training.mini_batch // MICRO_BATCHES
    stages = []
    for place, group in enumerate(groups):
        shares = share_evenly(micro_batch, [micro_batch] * len(group))
        assert shares is not None
        edges = (layers * place // len(groups), layers * (place + 1) // len(groups))
        stages.append(Stage(*edges, dict(zip(group, shares, strict=True)), 2 * (len(groups) - place) - 1))
    return Plan("by hand", micro_batch, MICRO_BATCHES, tuple(stages))


def main() -> int:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--devices", type=int, action="append", metavar="N", help=f"how many  [default: {COUNTS}]")
    parser.add_argument("--write", action="store_true", help="put the table into docs/planners.md")
    options = parser.parse_args()
    report = Report(
        "Many devices",
        f"EfficientNet-B1 as 213 layers, a mini-batch of 2048; rooms of {ROOM} devices, {INSIDE_MBPS:.0f} Mbit/s inside and "
        f"{BETWEEN_MBPS:.0f} between. Simulated: a stage for every room, {MICRO_BATCHES} micro-batches.",
        COLUMNS,
    )
    for count in options.devices or COUNTS:
        say(f"{count} devices")
        instance = rooms(count)
        begun = time.process_time()
        plan = make_plan(instance)
        planned = time.process_time() - begun
        by_rooms = pipeline_of_all(instance)
        begun = time.process_time()
        simulate(instance, by_rooms)
        simulated = time.process_time() - begun
        assert plan.predicted is not None
        seconds = plan.predicted.round_seconds
        row = (
            *(str(count), f"{planned:.1f}", str(len(plan.stages)), str(len(plan.devices)), f"{seconds:.3f}"),
            *(f"{round_bound_seconds(instance) / seconds:.2f}", f"{simulated:.1f}"),
        )
        report.rows.append(row)
        report.data[str(count)] = dict(zip(COLUMNS, row, strict=True))
        report.expect(
            f"{count} devices: planned within {MOST_PLANNING_SECONDS:.0f} s", planned <= MOST_PLANNING_SECONDS
        )
        report.expect(
            f"{count} devices: simulated within {MOST_SIMULATING_SECONDS:.0f} s", simulated <= MOST_SIMULATING_SECONDS
        )
    if options.write:
        write_into(PLANNERS_PAGE, "many devices", markdown_table(COLUMNS, report.rows))
    return report.show(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
