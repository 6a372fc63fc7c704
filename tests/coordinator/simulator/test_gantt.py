"""A round as characters, compared with one drawn by hand."""

from __future__ import annotations

from edgeswarm.profile import DataSource
from edgeswarm.schedule.policies import ZERO_BUBBLE
from edgeswarm_coordinator.simulator.gantt import gantt
from edgeswarm_coordinator.simulator.simulate import simulate

from .plans import make_instance, make_plan


def test_two_stages_with_a_link_that_takes_time() -> None:
    """A cell is half a second."""
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, bandwidth=10.0, cut_bytes=10)
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 1), micro_batches=4)
    lines = gantt(simulate(instance, plan, timeline=True), width=len("a compute |") + 34 + 1)
    assert lines == [
        "a compute |F0F1F2......B0==F3B1==..B2==..B3==|",
        "    sends |  >>>>>>          >>              |",
        "b compute |....F0B0==F1B1==F2B2==F3B3==......|",
        "    sends |          <<    <<    <<    <<    |",
        "           0                           17.0 s",
    ]


def test_what_begins_a_round_early_is_at_its_end() -> None:
    """a's first forward of the next round, while b is still at its last weights; a cell is a third of a second."""
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, mini_batch=3, apart=(0.5, 0.5))
    plan = make_plan((1, {"a": 1}, 3), (1, {"b": 1}, 3), micro_batches=3, schedule=ZERO_BUBBLE)
    lines = gantt(simulate(instance, plan, timeline=True), width=len("a compute |") + 27 + 1)
    assert lines[0] == "a compute |F1-F2-B0=W0+B1=W1+B2=W2+F0-|"
    assert lines[2] == "b compute |F0-B0=F1-B1=F2-B2=W0+W1+W2+|"


def test_weights_have_a_letter_of_their_own() -> None:
    instance = make_instance([(1.0, 2.0)] * 2, devices=2, mini_batch=2, apart=(0.5, 0.5))
    plan = make_plan((1, {"a": 1}, 2), (1, {"b": 1}, 2), micro_batches=2, schedule=ZERO_BUBBLE)
    lines = gantt(simulate(instance, plan, timeline=True), width=len("a compute |") + 24 + 1)
    (second,) = (line for line in lines if line.startswith("b compute"))
    assert "B1=W0++W1+" in second


def test_an_all_reduce_that_is_waited_for_and_a_step() -> None:
    instance = make_instance(
        [(2.0, 2.0)], devices=2, mini_batch=2, bandwidth=10.0, gradient_bytes=40, update_seconds=(2.0,)
    )
    plan = make_plan((1, {"a": 1, "b": 1}, 1), micro_batches=1)
    lines = gantt(simulate(instance, plan, timeline=True), width=len("a compute |") + 20 + 1)
    assert lines[0] == "a compute |F0--B0==AAAAAAAASSSS|"
    assert lines[1] == "    sends |        ~~~~~~~~    |"


def test_the_data_source_has_a_row_and_narrow_terminals_their_cells() -> None:
    instance = make_instance([(0.5, 0.5)], mini_batch=8, input_bytes=100, data_source=DataSource((100.0,), 100.0))
    result = simulate(instance, make_plan((1, {"a": 1}, 1), micro_batches=8), timeline=True)
    lines = gantt(result, width=5)
    assert lines[-2].startswith("data source   sends |s")
    assert len({len(line) for line in lines[:-1]}) == 1
    assert lines[0].count("|") == 2
    assert len(lines[0].split("|")[1]) == 20
