"""A plan as a person reads it: a table of who gets what, and a few sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..planner.explain import HEADINGS, backup_sentence, explain
from ..planner.units import readable_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from edgeswarm.plan import Plan
    from edgeswarm.profile import PlanningInstance

    from ..events import PlanMade
    from ..planner.alternatives import Alternative

_NUMERIC = ("samples", "memory", "in flight", "seconds a round", "samples/s", "speed beside this plan", "devices")


def print_plan(console: Console, plan: Plan, instance: PlanningInstance) -> None:
    """Who gets which layers and how many samples, memory against budget, expected seconds, what limits the round."""
    explanation = explain(plan, instance)
    console.print(explanation.headline, soft_wrap=True)
    table = _table(HEADINGS)
    for number, row in enumerate(explanation.rows):
        last_of_stage = number + 1 == len(explanation.rows) or explanation.rows[number + 1].stage != row.stage
        table.add_row(*row.cells(), end_section=last_of_stage)
    console.print(table)
    for sentence in explanation.sentences:
        console.print(sentence, soft_wrap=True)


def print_bound(console: Console, plan: Plan, bound_seconds: float) -> None:
    """What no plan for these devices can beat."""
    if plan.predicted is None or not bound_seconds > 0:
        return
    console.print(
        f"No plan can be faster than {readable_seconds(bound_seconds)} a round ({plan.mini_batch / bound_seconds:.1f} "
        f"samples/s): every device at its best speed, no waiting. This one: {bound_seconds / plan.predicted.round_seconds:.0%} "
        "of that speed.",
        soft_wrap=True,
    )


def print_alternatives(console: Console, what: str, plan: Plan | None, alternatives: Sequence[Alternative]) -> None:
    """Other plans beside this one: seconds, speed, devices. what: heading of their names. plan: None where none fits."""
    compared = () if plan is None else ("speed beside this plan",)
    table = _table((what, "seconds a round", "samples/s", *compared, "devices"))
    remarks: list[str] = []
    for other in alternatives:
        remarks.extend(f"{other.name}: {assumption}" for assumption in other.assumptions)
        if other.plan is None or other.predicted is None:
            table.add_row(other.name, "left out" if other.left_out else "no plan")
            remarks.append(f"{other.name}: {other.problem}")
            continue
        beside: tuple[str, ...] = ()
        if plan is not None:
            assert plan.predicted is not None
            beside = (f"{other.predicted.samples_per_second / plan.predicted.samples_per_second:.2f}",)
        table.add_row(
            other.name,
            readable_seconds(other.predicted.round_seconds),
            f"{other.predicted.samples_per_second:.1f}",
            *beside,
            str(len(other.plan.devices)),
        )
    console.print(table)
    for remark in remarks:
        console.print(remark, soft_wrap=True)


def show_plan_made(console: Console, event: PlanMade) -> None:
    """The plan of a training; of one written by hand nothing is known but what stands in it."""
    if event.instance is not None:
        print_plan(console, event.plan, event.instance)
        return
    plan = event.plan
    console.print(
        f"Plan as given: {plan.mini_batch} samples a round in {plan.micro_batches} micro-batches of {plan.micro_batch}.",
        soft_wrap=True,
    )
    table = _table(("stage", "layers", "device", "samples", "in flight"))
    for index, stage in enumerate(plan.stages):
        names = event.layer_names[stage.first_layer : stage.end_layer]
        layers = f"{stage.first_layer}-{stage.end_layer - 1} ({names[0]} ... {names[-1]})" if names else ""
        for device, share in stage.shares.items():
            table.add_row(
                str(index), layers, device, str(share), str(stage.in_flight), end_section=device == stage.devices[-1]
            )
    console.print(table)
    console.print(backup_sentence(plan), soft_wrap=True)


def _table(headings: tuple[str, ...]) -> Table:
    """Where the terminal is narrow, cells fold and nothing is cut; names of devices last: a person types them again."""
    from rich.table import Table

    table = Table()
    for heading in headings:
        numeric = heading in _NUMERIC or heading.startswith("compute")
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(heading, justify=justify, no_wrap=heading == "device", overflow="fold")
    return table
