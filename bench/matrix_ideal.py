"""How near edgeswarm comes to what the devices could do if nothing ever waited, and what the rest of each round is. Pure.

the ideal: the sum of what the devices do alone  |--------------------------------------------------|
the best plan that the simulator knows           |----------------------------------------|  links, bubbles
measured                                         |-------------------------------------|  what was not foreseen
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.cell import Cell
from bench.estimate import OURS
from bench.matrix_report import CellResult, read_cell
from bench.measuring import Report, Spread
from edgeswarm.plan import Plan
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.planner.bound import round_bound_seconds
from edgeswarm_coordinator.planner.prediction import describe_limits
from edgeswarm_coordinator.simulator.simulate import simulate
from edgeswarm_coordinator.simulator.simulation import DeviceUse

# Of the ideal, by the links' Mbit/s and the model; of other models by the rate alone.
WANTED = {(1000.0, "mobilenet_v2"): 0.80, (1000.0, "bert_small"): 0.85}
WANTED_OF_ANY_MODEL = {100.0: 0.70}
# Where it is less at a rate of WANTED_OF_ANY_MODEL: so much slower, at most, than the best plan that the simulator knows.
MOST_BEHIND_THE_BEST_PLAN = 0.07


@dataclass(frozen=True)
class Nearness:
    """Of one cell.

    plain: samples per second, what the devices do alone in all with images as PyTorch has them if nobody asks for anything else.
    own: samples per second if nothing ever waited, each device at its best with edgeswarm's kernels, by the profiles.
    best_rate: samples per second of the best plan of all planners, as the simulator has it. limits: what a round of our plan is
    made of. use: fractions of a round, by device. wanted: part of the ideal; None where nothing is asked.
    """

    result: CellResult
    rate: float
    plain: float
    own: float
    best_rate: float
    limits: str
    use: Mapping[str, DeviceUse]
    wanted: float | None
    or_near_the_best_plan: bool

    @property
    def of_ideal(self) -> Spread:
        return self.result.of_ideal()

    @property
    def behind_the_best_plan(self) -> float:
        """0.05: a round takes 5 % longer."""
        return self.best_rate / self.rate - 1

    @property
    def is_reached(self) -> bool:
        if self.wanted is None or self.of_ideal.median >= self.wanted:
            return True
        return self.or_near_the_best_plan and self.behind_the_best_plan <= MOST_BEHIND_THE_BEST_PLAN


def read_nearness(document: Mapping[str, Any]) -> Nearness | None:
    """None where our plan has not run yet."""
    result = read_cell(dict(document))
    rate = result.rate(OURS)
    if rate is None:
        return None
    cell = Cell.named(document["cell"])
    plans = {name: Plan.from_json(told) for name, told in document["plans"].items()}
    own = plans[OURS]
    instance = instance_from_json(document["profilings"][0]["instance"])
    simulated = simulate(instance, own)
    wanted = WANTED.get((cell.mbps, cell.model), WANTED_OF_ANY_MODEL.get(cell.mbps))
    return Nearness(
        result=result,
        rate=rate,
        plain=sum(document["alone"][kind]["plain_samples_per_second"] for kind in document["device_classes"]),
        own=instance.training.mini_batch / round_bound_seconds(instance),
        best_rate=max(plan.predicted.samples_per_second for plan in plans.values() if plan.predicted is not None),
        limits=describe_limits(own, simulated.limits),
        use=simulated.devices,
        wanted=wanted,
        or_near_the_best_plan=cell.mbps in WANTED_OF_ANY_MODEL,
    )


def ideal_table(found: Sequence[Nearness]) -> Report:
    """A row a cell."""
    report = Report(
        title="Beside the ideal",
        how=(
            "Ideal: the sum of what the devices do alone, images channels last where that is faster. edgeswarm's rate as a part "
            "of it: median over repeats (least to most), both at one pace in cells whose runs and devices tell their slowness. "
            "All else is as measured. Plain: images as PyTorch has them if nobody asks for anything else; at once: each measured "
            "while the others compute; own: if nothing ever waited with edgeswarm's own kernels, each layer where it is fastest "
            "at its best number of samples, by the profiles. Best plan: the samples/s of the best plan of all planners, as the "
            "simulator has it, as a part of the ideal; behind it: how much longer the measured round takes. Waits: the part of a "
            "round, as simulated, in which a device neither computes nor reduces; reduces: in which it waits for its group after "
            "its last backward."
        ),
        columns=(
            *("cell", "of the ideal", "noise", "as measured", "at once", "plain", "own"),
            *("wanted", "best plan", "behind it"),
            *("a round is", "waits", "reduces"),
        ),
    )
    for cell in found:
        behind = cell.behind_the_best_plan
        report.rows.append((
            *(cell.result.cell, cell.of_ideal.shown(), cell.result.counting.shown_noise),
            *(f"{cell.rate / cell.result.ideal:.2f}", cell.result.of_ideal_beside(cell.rate)),
            *(f"{cell.rate / cell.plain:.2f}", f"{cell.rate / cell.own:.2f}"),
            "" if cell.wanted is None else f"{cell.wanted:.2f}",
            *(f"{cell.best_rate / cell.result.ideal:.2f}", f"{behind:+.1%}", cell.limits),
            ", ".join(f"{name} {use.waiting:.0%}" for name, use in cell.use.items()),
            ", ".join(f"{name} {use.all_reduce:.0%}" for name, use in cell.use.items() if use.all_reduce >= 0.005),
        ))  # fmt: skip
        if cell.wanted is not None:
            alternative = f", {behind:+.1%} behind the best plan known" if cell.or_near_the_best_plan else ""
            report.expect(
                f"{cell.result.cell}: {cell.of_ideal.shown()} of the ideal ({cell.wanted:.2f} wanted){alternative}",
                cell.is_reached,
            )
        report.data[cell.result.cell] = {"of_ideal": cell.of_ideal.to_json(), "behind_the_best_plan": behind}
    return report
