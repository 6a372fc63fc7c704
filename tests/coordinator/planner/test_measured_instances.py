"""Plans for what real agents measured (bench/results/matrix), which models by hand and by hypothesis are smaller than."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError
from edgeswarm.profile import DataSource, PlanningInstance
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.simulator.simulate import round_seconds

CELLS = sorted(Path(__file__).parents[3].glob("bench/results/matrix/*.json"))
# Of a round, by which the choice among all sizes may be slower than the best of a few that are looked at by themselves.
WITHIN = 1.03
# Few large micro-batches, many stages, little memory; the others are in `make soak`.
IN_CI = ("A-100-mobilenet_v2", "C-100-efficientnet_b1", "C-1000-bert_small")
SOME_CELLS = [pytest.param(path, marks=[] if path.stem in IN_CI else [pytest.mark.soak]) for path in CELLS]

pytestmark = pytest.mark.thorough


def seconds(instance: PlanningInstance, micro_batch: int | None = None) -> float:
    return round_seconds(instance, make_plan(instance, micro_batch=micro_batch))


def least_of_single_sizes(instance: PlanningInstance) -> float:
    found = []
    for part in (4, 8, 16):
        try:
            found.append(seconds(instance, instance.training.mini_batch // part))
        except EdgeswarmError:
            continue
    return min(found)


@pytest.mark.parametrize("path", SOME_CELLS, ids=lambda path: path.stem)
def test_the_choice_among_all_micro_batch_sizes_is_no_worse_than_one_of_them(path: Path) -> None:
    instance = instance_from_json(json.loads(path.read_text())["profilings"][0]["instance"])
    assert seconds(instance) <= WITHIN * least_of_single_sizes(instance)


@pytest.mark.soak
@pytest.mark.parametrize("path", SOME_CELLS, ids=lambda path: path.stem)
def test_nor_where_samples_are_served_which_leaves_less_to_be_simulated(path: Path) -> None:
    instance = instance_from_json(json.loads(path.read_text())["profilings"][0]["instance"])
    rate = max(max(row[:place] + row[place + 1 :]) for place, row in enumerate(instance.network.bandwidth))
    source = DataSource((rate,) * len(instance.devices), egress=rate, label_bytes=8)
    served = replace(instance, data_source=source)
    assert seconds(served) <= WITHIN * least_of_single_sizes(served)
