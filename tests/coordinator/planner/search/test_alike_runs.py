"""Runs of layers that cost the same: which are, and that what is worked out for one holds for the others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.model_costs import LayerCosts, TiedCosts
from edgeswarm.profile import DeviceProfile, PlanningInstance
from edgeswarm_coordinator.planner.search import alike_runs
from edgeswarm_coordinator.planner.search.alike_runs import AlikeRuns, kinds_of_layers
from edgeswarm_coordinator.planner.search.candidate import CandidateStage
from edgeswarm_coordinator.planner.search.group_costs import GroupCostTables
from edgeswarm_coordinator.planner.search.grouping import make_units
from edgeswarm_coordinator.planner.search.pipeline_estimate import PipelineEstimator
from edgeswarm_coordinator.planner.search.problem import SearchProblem
from edgeswarm_coordinator.planner.search.sample_shares import SampleSharing

from ..instances import instances, make_instance

# An embedding, three blocks of two layers each, and a head.
BLOCKS = make_instance((5.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 3.0), (1.0, 2.0))


def with_layer(instance: PlanningInstance, place: int, layer: LayerCosts) -> PlanningInstance:
    layers = (*instance.model.layers[:place], layer, *instance.model.layers[place + 1 :])
    return replace(instance, model=replace(instance.model, layers=layers))


def test_blocks_stand_for_each_other_wherever_they_are() -> None:
    alike = AlikeRuns(BLOCKS)
    assert [alike.representative(first, first + 2) for first in (1, 3, 5)] == [(1, 3)] * 3
    assert alike.representative(4, 7) == (4, 7) == alike.representative(2, 5) != alike.representative(3, 6)
    # The embedding is at the front, and behind the last layer nothing is sent.
    assert alike.representative(0, 3) == (0, 3)
    assert alike.representative(6, 8) == (6, 8)


def test_the_bytes_of_the_cut_before_count() -> None:
    wider = replace(BLOCKS.model.layers[2], output_bytes=20)
    alike = AlikeRuns(with_layer(BLOCKS, 2, wider))
    assert alike.representative(1, 2) == alike.representative(5, 6) == (1, 2)
    assert alike.representative(3, 4) == (3, 4)


@pytest.mark.parametrize("off", [1e-13, 0.01])
def test_the_last_digits_of_seconds_do_not_count(off: float) -> None:
    kinds = kinds_of_layers(make_instance((5.0, 1.0, 1.0 + off, 3.0)))
    assert (kinds[1] == kinds[2]) == (off < 1e-9)


def test_one_class_of_device_that_tells_two_layers_apart_is_enough() -> None:
    slower = BLOCKS.profiles["class-b"]
    rows = [list(row) for row in slower.forward_seconds]
    rows[0][3] *= 1.5
    profiles = {**BLOCKS.profiles, "class-b": replace(slower, forward_seconds=tuple(map(tuple, rows)))}
    assert kinds_of_layers(replace(BLOCKS, profiles=profiles))[1:7] == (1, 2, 3, 2, 1, 2)


def test_a_layer_with_a_tied_parameter_is_like_no_other() -> None:
    tied = replace(BLOCKS, model=replace(BLOCKS.model, tied=(TiedCosts((1, 7), 50, 50),)))
    assert kinds_of_layers(tied)[1:7] == (1, 2, 3, 2, 3, 2)


@st.composite
def with_repeated_layers(draw: st.DrawFn) -> PlanningInstance:
    """The layers but the first and the last, again and again."""
    plain = draw(instances(most_layers=4, most_devices=3, uniform_links=False))
    count = plain.model.layer_count
    order = [0, *list(range(1, count - 1)) * draw(st.integers(2, 3)), count - 1] if count > 2 else [0] * 4

    def again(rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(row[place] for place in order) for row in rows)

    def longer(profile: DeviceProfile) -> DeviceProfile:
        return replace(
            profile,
            forward_seconds=again(profile.forward_seconds),
            backward_seconds=again(profile.backward_seconds),
        )

    return replace(
        plain,
        model=replace(plain.model, layers=tuple(plain.model.layers[place] for place in order)),
        profiles={kind: longer(profile) for kind, profile in plain.profiles.items()},
    )


def stages_of(problem: SearchProblem) -> dict[tuple[int, int], CandidateStage | None]:
    sharing, devices = SampleSharing(problem), tuple(range(problem.device_count))
    runs = itertools.combinations(range(problem.layer_count + 1), 2)
    return {run: sharing.stage(*run, devices, problem.mini_batch, 3) for run in runs}


@settings(max_examples=30)
@given(with_repeated_layers())
def test_what_is_worked_out_is_as_if_no_run_were_like_another(instance: PlanningInstance) -> None:
    def figures(problem: SearchProblem) -> dict[tuple[int, int], tuple[float, ...]]:
        estimator = PipelineEstimator(problem)
        found: dict[tuple[int, int], tuple[float, ...]] = {}
        for run, stage in stages_of(problem).items():
            if stage is not None:
                of_stage = estimator._stage_figures(stage)
                found[run] = (of_stage.forward, of_stage.backward, sum(stage.shares), stage.in_flight)
        return found

    def tables(problem: SearchProblem) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        made = GroupCostTables(problem, make_units(problem), list(range(problem.layer_count + 1)))
        costs = made.costs(problem.mini_batch, (1, 3))
        # Not how it ends: what the layers before left in a bucket of gradients is elsewhere not the same.
        return np.concatenate([costs.seconds, costs.largest_share, costs.backward[None]])

    alike = SearchProblem(instance)
    with mock.patch.object(alike_runs, "kinds_of_layers", lambda instance: tuple(range(instance.model.layer_count))):
        apart = SearchProblem(instance)
    got, wanted = figures(alike), figures(apart)
    assert got.keys() == wanted.keys()
    for run, numbers in wanted.items():
        assert got[run] == pytest.approx(numbers, rel=1e-9)
    np.testing.assert_allclose(tables(alike), tables(apart), rtol=1e-9)


def test_a_block_is_worked_out_once() -> None:
    problem = SearchProblem(BLOCKS)
    estimator, sharing = PipelineEstimator(problem), SampleSharing(problem)
    with (
        mock.patch.object(sharing, "_share", wraps=sharing._share) as shared,
        mock.patch.object(estimator, "_work_out_stage", wraps=estimator._work_out_stage) as worked_out,
    ):
        stages = [sharing.stage(first, first + 2, (0, 1), 16, 2) for first in (1, 3, 5)]
        figures = [estimator._stage_figures(stage) for stage in stages if stage is not None]
    assert len(figures) == 3 == figures.count(figures[0])
    assert shared.call_count == 1 == worked_out.call_count
