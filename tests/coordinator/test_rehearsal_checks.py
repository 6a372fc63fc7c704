"""What is said when a worker's rehearsal held more memory than its plan expects."""

from __future__ import annotations

from dataclasses import replace

from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.planner.units import readable_bytes
from edgeswarm_coordinator.rehearsal_checks import rehearsal_warnings
from tests.coordinator.planner.instances import make_instance


def test_only_a_device_that_held_clearly_more_and_nearly_all_is_told_of() -> None:
    plan = make_plan(make_instance(), "pipeline")
    assert plan.predicted is not None
    expected = plan.predicted.memory_bytes
    a, b = plan.devices
    budgets = {a: round(2.1 * expected[a]), b: round(1.1 * expected[b])}
    fine = {a: round(1.5 * expected[a]), b: round(1.02 * expected[b])}
    assert rehearsal_warnings(plan, fine, budget_bytes=budgets) == []
    (warning,) = rehearsal_warnings(plan, {a: 2 * expected[a], b: 0}, budget_bytes=budgets)
    assert warning.startswith(f"{a} held ")
    assert "100% more than the plan expects" in warning
    assert readable_bytes(budgets[a]) in warning
    assert "--micro-batch" in warning


def test_a_plan_without_a_prediction_expects_nothing() -> None:
    plan = replace(make_plan(make_instance(), "pipeline"), predicted=None)
    held = dict.fromkeys(plan.devices, 1 << 40)
    assert rehearsal_warnings(plan, held, budget_bytes=held) == []
