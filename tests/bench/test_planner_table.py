"""The table of planners: what a cell says, and that what can't be trained with is never among the fastest."""

from __future__ import annotations

from bench.planner_table import HETPIPE, OURS, Cell, at_best_pace, make_report, markdown, measure, planned_again

from ..coordinator.planner.instances import make_instance


def test_a_planner_and_hetpipe_on_one_instance() -> None:
    instance = make_instance((1.0,) * 4, (1.0, 1.0))
    plan = measure(instance, "pipeline")
    assert (plan.devices, plan.stages, plan.workers) == (2, 2, 0)
    hetpipe = measure(instance, HETPIPE)
    # No bubble: 16 samples of 12 s over two devices, whatever the pipelines.
    assert hetpipe.seconds is not None
    assert abs(hetpipe.seconds - 96.0) < 1e-3
    assert hetpipe.devices == 2
    assert f" in {hetpipe.workers} pipelines" in hetpipe.text or hetpipe.workers == 1


def test_what_fits_no_memory_says_so() -> None:
    instance = make_instance((1.0,) * 2, (1.0, 1.0), [10, 10])
    for planner in ("single", HETPIPE):
        assert measure(instance, planner).text.startswith("fits no memory")


def test_the_fastest_is_one_that_can_be_trained_with() -> None:
    cells = {
        "one": {"single": Cell(2.0, 0.1, 1), "pipeline": Cell(None, 0.1), HETPIPE: Cell(1.0, 0.1, 2, 1, workers=2)}
    }
    row = markdown(cells, ("single", "pipeline", HETPIPE)).splitlines()[-1]
    assert row == "| one | **2.00 (1 dev., 0.10 s)** | fits no memory (0.10 s) | 1.00 (2 dev. in 2 pipelines, 0.10 s) |"
    assert make_report(cells, ("single", "pipeline", HETPIPE)).rows == [
        ("one", "2.00 (1 dev., 0.10 s)*", "fits no memory (0.10 s)", "1.00 (2 dev. in 2 pipelines, 0.10 s)")
    ]


def test_planning_seconds_are_the_median_of_repeats_at_the_best_pace() -> None:
    def cell(seconds: float, reference: float = 1.0) -> Cell:
        return Cell(96.0, seconds, 2, looks=(reference,) * 2)

    taken = {"one": iter([cell(1.0), cell(9.0)]), "other": iter([cell(10.0, 2.0), cell(2.0)])}
    cells = {name: {OURS: cell(3.0), "single": cell(7.0, 3.5)} for name in ("one", "other")}
    ours = planned_again(cells, lambda name: next(taken[name]), repeats=3)
    assert at_best_pace(cells, ours) == 1.75  # on average of all eight that were measured
    assert [cells[name][OURS].planning_seconds for name in cells] == [3.0, 3.0]  # of 3, 1, 9 and of 3, 5, 2
    assert cells["one"][OURS].seconds == 96.0
    assert cells["one"]["single"].planning_seconds == 2.0
