"""What is said when a worker's rehearsal held more memory than its plan expects."""

from __future__ import annotations

from dataclasses import replace

from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.rehearsal_checks import rehearsal_warnings
from tests.coordinator.planner.instances import make_instance


def test_only_a_device_that_held_clearly_more_is_told_of() -> None:
    plan = make_plan(make_instance(), "pipeline")
    assert plan.predicted is not None
    expected = plan.predicted.memory_bytes
    a, b = plan.devices
    fine = {a: expected[a] // 2, b: round(expected[b] * 1.02)}
    assert rehearsal_warnings(plan, fine) == []
    (warning,) = rehearsal_warnings(plan, {a: 2 * expected[a], b: 0})
    assert warning.startswith(f"{a} held ")
    assert "100% more than the plan expects" in warning
    assert "--micro-batch" in warning


def test_a_plan_without_a_prediction_expects_nothing() -> None:
    plan = replace(make_plan(make_instance(), "pipeline"), predicted=None)
    assert rehearsal_warnings(plan, dict.fromkeys(plan.devices, 1 << 40)) == []
