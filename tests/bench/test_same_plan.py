"""Which plans are measured once for several."""

from __future__ import annotations

from dataclasses import replace

from bench.same_plan import first_alike
from edgeswarm.plan import IdleDevice, Plan, Stage
from edgeswarm.schedule.policies import ZERO_BUBBLE


def test_who_made_a_plan_makes_no_difference_and_its_schedule_does() -> None:
    stages = (Stage(0, 2, {"a": 4}, in_flight=2), Stage(2, 3, {"b": 4}, in_flight=1))
    ours = Plan("edgeswarm", micro_batch=4, micro_batches=2, stages=stages)
    plans = {
        "edgeswarm": ours,
        "asteroid": replace(ours, planner="asteroid", idle=(IdleDevice("c", "slow"),), backup={0: "b"}),
        "pipedream": replace(ours, planner="pipedream", schedule=ZERO_BUBBLE),
        "dapple": replace(ours, planner="dapple", schedule=ZERO_BUBBLE),
        "gpipe": replace(ours, planner="gpipe", micro_batches=3),
    }
    assert first_alike(plans) == {
        "edgeswarm": "edgeswarm",
        "asteroid": "edgeswarm",
        "pipedream": "pipedream",
        "dapple": "pipedream",
        "gpipe": "gpipe",
    }
