"""Seconds that the faithful Asteroid planner takes where the paper's took 480: EfficientNet-B1, 213 layers, 6 devices.

    python -m bench.asteroid_time
    python -m bench.asteroid_time --repeats 5 --write     and put the table into docs/planners.md

Processor seconds of `make_plan` on one core; every size of micro-batch is planned with, and where nothing fits with the
paper's K smaller ones too. The paper's planner ran on a Xavier NX. What the instance is made of: bench/efficientnet_layers.py.
"""

from __future__ import annotations

import statistics
import sys
import time

from bench.efficientnet_layers import efficientnet_instance
from bench.measuring import Report, Spread, arguments, say
from bench.pages import PLANNERS_PAGE, markdown_table, write_into
from edgeswarm_coordinator.planner.planners import make_plan

MINI_BATCHES = (256, 2048)
MBPS = (100.0, 1000.0)
MOST_SECONDS = 5.0
PAPER_SECONDS = 480
COLUMNS = ("mini-batch", "Mbps", "stages", "devices", "micro-batch", "seconds of a round", "seconds of planning")


def measure(mini_batch: int, mbps: float, *, repeats: int) -> tuple[list[str], Spread]:
    """A row of the table, and the seconds of planning."""
    # A new instance each time: a profile remembers what it added up.
    seconds = []
    for _ in range(repeats):
        instance = efficientnet_instance(mini_batch=mini_batch, mbps=mbps)
        begun = time.process_time()
        plan = make_plan(instance, "asteroid")
        seconds.append(time.process_time() - begun)
    spread = Spread.of(seconds)
    assert plan.predicted is not None
    sizes = (len(plan.stages), len(plan.devices), plan.micro_batch)
    row = [str(mini_batch), f"{mbps:.0f}", *map(str, sizes), f"{plan.predicted.round_seconds:.2f}", spread.shown()]
    return row, spread


def main() -> int:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--write", action="store_true", help="put the table into docs/planners.md")
    options = parser.parse_args()
    layers = efficientnet_instance().model.layer_count
    report = Report(
        f"Asteroid's planner on EfficientNet-B1 as {layers} layers, 6 devices; the paper's took {PAPER_SECONDS} s",
        "Processor seconds on one core, the median with the least and the most.",
        COLUMNS,
    )
    medians = []
    for mini_batch in MINI_BATCHES:
        for mbps in MBPS:
            say(f"mini-batch {mini_batch}, {mbps:.0f} Mbps")
            row, spread = measure(mini_batch, mbps, repeats=options.repeats)
            report.rows.append(row)
            report.data[f"{mini_batch}/{mbps:.0f}"] = spread.to_json()
            medians.append(spread.median)
    report.expect(
        f"at most {MOST_SECONDS:.0f} s, median {statistics.median(medians):.2f} s", max(medians) <= MOST_SECONDS
    )
    if options.write:
        table = markdown_table(COLUMNS, report.rows)
        write_into(PLANNERS_PAGE, "asteroid time", table)
    return report.show(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
