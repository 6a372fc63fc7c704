"""Random instances and the measurements made with them: repeatable, resumable, and their tables."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import optimum_gap
from bench.pages import markdown_table, put_into
from bench.planner_table import Cell, markdown, measure
from bench.random_instances import random_instance
from edgeswarm.profile_json import instance_from_json, instance_to_json

from ..instances import make_instance


@settings(max_examples=60)
@given(seed=st.integers(0, 5), number=st.integers(0, 10**6))
def test_an_instance_is_what_it_says(seed: int, number: int) -> None:
    instance = random_instance(seed, number)
    assert random_instance(seed, number) == instance
    assert 2 <= instance.model.layer_count <= 8
    assert 2 <= len(instance.devices) <= 4
    assert instance_from_json(json.loads(json.dumps(instance_to_json(instance)))) == instance


def test_all_kinds_of_instances_come() -> None:
    every = [random_instance(0, number) for number in range(200)]
    for word in ("slow", "medium", "fast", "alike", "uneven", "plenty", "just", "tight"):
        assert sum(word in instance.name for instance in every) > 30
    assert 30 < sum(instance.data_source is not None for instance in every) < 100
    assert {len(instance.devices) for instance in every} == {2, 3, 4}


def test_gaps_are_worked_out_once_and_a_planner_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = functools.partial(random_instance, most_layers=4, most_devices=3, most_mini_batch=8)
    monkeypatch.setattr(optimum_gap, "random_instance", small)
    path = tmp_path / "gaps.jsonl"
    first = optimum_gap.complete(path, seed=3, count=4, planners=["single"])
    assert len(path.read_text().splitlines()) == 4
    monkeypatch.setattr(optimum_gap, "solve", lambda *_: pytest.fail("the optimum is known"))
    assert optimum_gap.complete(path, seed=3, count=4, planners=["single"]) == first
    more = optimum_gap.complete(path, seed=3, count=4, planners=["single", "asteroid"])
    assert all(set(case.planners) == {"single", "asteroid"} for case in more)
    assert [case.optimum_seconds for case in more] == [case.optimum_seconds for case in first]
    assert optimum_gap.read_cases(path, 3) == {case.number: case for case in more}
    report = optimum_gap.make_report(more, ["single", "asteroid"])
    assert all(holds for _, holds in report.verdicts)
    assert all(gap >= -1e-6 for case in more if (gap := case.gap("single")) is not None)


def test_histogram_counts_each_gap_once() -> None:
    assert optimum_gap.histogram([0.0, 0.001, 0.002, 0.3, 7.0]) == [2, 1, 0, 0, 0, 1, 0, 1]


def test_the_table_of_planners() -> None:
    instance = make_instance((1.0, 2.0), (1.0, 2.0))
    cell = measure(instance, "single")
    assert (cell.devices, cell.stages) == (1, 1)
    assert measure(make_instance((1.0,) * 2, (1.0,), [1]), "single").seconds is None
    cells = {"name": {"single": Cell(2.0, 0.5, 1), "asteroid": Cell(4.0, 0.001, 2), "gpipe": Cell(None, 0.1)}}
    assert markdown(cells, ["single", "asteroid", "gpipe"]).splitlines()[2] == (
        "| name | **2.00 (1 dev., 0.50 s)** | 4.00 (2 dev., 0.00 s) | fits no memory (0.10 s) |"
    )


def test_a_table_is_put_between_its_marks() -> None:
    table = markdown_table(["a", "b"], [["x", "1"]])
    assert table == "| a | b |\n| --- | ---: |\n| x | 1 |"
    page = "before\n<!-- gaps: begin -->\nold\n<!-- gaps: end -->\nafter\n"
    assert put_into(page, "gaps", "new") == "before\n<!-- gaps: begin -->\nnew\n<!-- gaps: end -->\nafter\n"
    with pytest.raises(ValueError, match="the page has no"):
        put_into(page, "table", "new")
