"""Nothing here looks at how quick the machine is: only at what is made of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_agent.profiler import reference_work
from edgeswarm_agent.profiler.profile import at_pace
from edgeswarm_agent.profiler.reference_work import STEADY, Pace, Paces, ReferenceWork, steady

seconds = st.floats(1e-6, 1e3)


def test_a_look_is_at_each_kind_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ReferenceWork()
    pace = work.look(0.0)
    assert pace.cpu_seconds > 0
    assert pace.wall_seconds > 0
    took: dict[Callable[[], None], tuple[float, float]] = {work._multiply: (2.0, 1.0), work._walk: (9.0, 7.0)}
    monkeypatch.setattr(reference_work, "_timed", took.__getitem__)
    assert work.look(0.0) == Pace.of(products=[(2.0, 1.0)], walks=[(9.0, 7.0)])


@pytest.mark.parametrize(("computed_seconds", "repeats"), [(0.0, 3), (0.063, 10), (1000.0, 30)])
def test_after_long_work_a_look_is_longer(computed_seconds: float, repeats: int) -> None:
    work = ReferenceWork()
    before = work._numbers.clone()
    work._product.zero_()
    work.look(computed_seconds)
    assert torch.equal(work._numbers, before + repeats)
    assert torch.equal(work._product, torch.mm(work._matrix, work._matrix))


def test_an_interrupted_repeat_does_not_count() -> None:
    calm = [(1.0, 0.5), (1.0, 0.5), (1.0, 0.5)]
    disturbed = [(1.0, 0.5), (1.0, 0.5), (9.0, 0.5)]
    assert Pace.of(products=calm, walks=disturbed) == Pace.of(products=disturbed, walks=calm)
    assert Pace.of(products=disturbed, walks=calm) == Pace.of(products=calm, walks=calm)


def test_products_count_more_than_walks_by_what_they_became_slower() -> None:
    usual = Pace.of(products=[(1.0, 1.0)], walks=[(100.0, 100.0)])
    slow_products = Pace.of(products=[(4.0, 4.0)], walks=[(100.0, 100.0)]).slower_than(usual)
    slow_walks = Pace.of(products=[(1.0, 1.0)], walks=[(400.0, 400.0)]).slower_than(usual)
    assert 1.0 < slow_walks.wall_seconds < slow_products.wall_seconds < 4.0
    assert slow_products.cpu_seconds == slow_products.wall_seconds


def test_what_was_computed_at_a_pace_weighs() -> None:
    looks = iter([Pace(2.0, 1.0)])
    paces = Paces(lambda _: next(looks))
    assert paces.usual() == STEADY, "nothing was computed"
    paces.add(Pace(2.0, 1.0), cpu_seconds=3.0)
    paces.add(Pace(4.0, 3.0), cpu_seconds=1.0)
    assert paces.usual().wall_seconds == pytest.approx(4.0 / (3.0 / 2.0 + 1.0 / 4.0) / 2.0)
    at_base_pace = 3.0 / 1.0 + 1.0 / 3.0
    assert at_base_pace * paces.usual().cpu_seconds == pytest.approx(4.0), "what it took in all"


def test_an_accelerator_is_always_as_quick() -> None:
    paces = Paces(steady)
    paces.add(paces.look(1.0), cpu_seconds=1.0)
    assert paces.usual() == STEADY


@given(before=st.tuples(seconds, seconds), after=st.tuples(seconds, seconds))
def test_half_way_lies_between(before: tuple[float, float], after: tuple[float, float]) -> None:
    middle = Pace.between(Pace(*before), Pace(*after))
    for found, (low, high) in (
        (middle.wall_seconds, sorted((before[0], after[0]))),
        (middle.cpu_seconds, sorted((before[1], after[1]))),
    ):
        assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)


def test_a_curve_at_another_pace_has_other_seconds_and_nothing_else() -> None:
    curve = agent_pb2.LayerCurve(
        signature="a", batch_sizes=[1, 2], forward_seconds=[1.0, 2.0], backward_seconds=[2.0, 4.0], peak_bytes=[5, 6]
    )
    assert at_pace(curve, 1.5) == agent_pb2.LayerCurve(
        signature="a", batch_sizes=[1, 2], forward_seconds=[1.5, 3.0], backward_seconds=[3.0, 6.0], peak_bytes=[5, 6]
    )
    assert at_pace(curve, 1.0) == curve
