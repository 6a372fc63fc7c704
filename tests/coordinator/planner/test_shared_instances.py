"""All planners on instances made from public measurements, where that folder lies beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.profile_json import instance_from_json, instance_to_json
from edgeswarm_coordinator.planner.explain import explain
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan

from .test_planners import check_whole

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "instances"
FILES = sorted(FOLDER.glob("*.json"))

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not FILES, reason="the folder of public profiles is not beside the checkout"),
]

# The whole model with its activations for one sample is larger than any device of these.
TOO_LARGE_FOR_ONE_DEVICE = {"bertlarge512-C-1000", "vgg416-C-1000"}
# Its optimizer counts no memory for the last stage.
WITHOUT_A_PLAN = {("vgg416-C-1000", "pipedream")}


@pytest.mark.parametrize("planner", sorted(set(PLANNERS) - {"exhaustive"}))
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_instance_is_planned(path: Path, planner: str) -> None:
    instance = instance_from_json(json.loads(path.read_text()))
    # The one with 417 layers takes seconds at all sizes; memory leaves it no other than 1 anyway.
    micro_batch = 1 if path.stem == "vgg416-C-1000" else None
    one_stage = path.stem in TOO_LARGE_FOR_ONE_DEVICE and PLANNERS[planner].one_stage
    if one_stage or (path.stem, planner) in WITHOUT_A_PLAN:
        with pytest.raises(EdgeswarmError, match="too little") as caught:
            make_plan(instance, planner, micro_batch)
        assert caught.value.code is ErrorCode.NO_PLAN_FITS
        return
    plan = make_plan(instance, planner, micro_batch)
    check_whole(plan, instance)
    text = explain(plan, instance).text
    assert all(name in text for name in instance.device_names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_instance_survives_json(path: Path) -> None:
    instance = instance_from_json(json.loads(path.read_text()))
    assert instance_from_json(json.loads(json.dumps(instance_to_json(instance)))) == instance
