from __future__ import annotations

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.profile_cache import Curve, Link, Profiles
from edgeswarm_coordinator.profiling import (
    ModelFacts,
    batch_sizes_to_profile,
    device_profile,
    distinct_layers,
    missing_layers,
    missing_links,
    model_costs,
    planning_instance,
)

from .small_graphs import small_graph

GRAPH = small_graph([["a"], ["b"], ["c"], ["d"]], signatures=["stem", "block", "block", "head"])
FACTS = ModelFacts(GRAPH, "float32", batch_size=8, optimizer_state_factor=1.0)
NANO_1 = Device("nano-1", "10.0.0.1:7600", hardware_key="nano", memory_budget_bytes=2**30)
NANO_2 = Device("nano-2", "10.0.0.2:7600", hardware_key="nano", memory_budget_bytes=2**30)
NX = Device("nx-1", "10.0.0.3:7600", hardware_key="nx", memory_budget_bytes=2**31)


def curve(seconds: float, *, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> Curve:
    times = tuple(seconds * size for size in sizes)
    return Curve(sizes, times, times, asked=8)


def measured(*keys: str) -> Profiles:
    found = Profiles(base_bytes=dict.fromkeys(keys, 1000))
    for key in keys:
        for number, signature in enumerate(("stem", "block", "head"), start=1):
            found.curves[key, "float32", signature] = curve(number * (1e-3 if key == "nano" else 5e-4))
    return found


@pytest.mark.parametrize(("wire_dtype", "factor"), [(None, 1.0), ("float32", 1.0), ("bfloat16", 0.5), ("float16", 0.5)])
def test_a_narrow_wire_halves_what_travels_and_no_memory(wire_dtype: str | None, factor: float) -> None:
    costs, wide = model_costs(GRAPH, wire_dtype=wire_dtype), model_costs(GRAPH, wire_dtype=None)
    assert [layer.output_bytes for layer in costs.layers] == [factor * layer.output_bytes for layer in wide.layers]
    assert costs.gradient_bytes(0, 4) == factor * wide.gradient_bytes(0, 4) > 0
    assert costs.param_bytes(0, 4) == wide.param_bytes(0, 4)
    assert costs.input_bytes == wide.input_bytes


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [(1, (1,)), (3, (1, 2)), (64, (1, 2, 4, 8, 16, 32, 64)), (10_000, (1, 2, 4, 8, 16, 32, 64, 128, 256))],
)
def test_batch_sizes_double_up_to_the_jobs_own(batch: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes_to_profile(batch) == sizes


def test_repeated_layers_are_timed_once_on_one_device_of_a_kind() -> None:
    assert distinct_layers(GRAPH) == {"stem": 0, "block": 1, "head": 3}
    work = missing_layers(
        Profiles(), [NANO_1, NANO_2, NX], signatures=("stem", "block", "head"), dtype="float32", largest_batch=8
    )
    assert [(item.device, item.signatures) for item in work] == [
        ("nano-1", ("stem", "block", "head")),
        ("nx-1", ("stem", "block", "head")),
    ]


def test_only_what_is_missing_is_timed() -> None:
    found = measured("nano", "nx")
    names = {"signatures": ("stem", "block", "head"), "dtype": "float32", "largest_batch": 8}
    assert missing_layers(found, [NANO_1, NX], **names) == []  # type: ignore[arg-type]
    del found.curves["nx", "float32", "block"]
    (work,) = missing_layers(found, [NANO_1, NX], **names)  # type: ignore[arg-type]
    assert (work.device, work.signatures) == ("nx-1", ("block",))
    del found.base_bytes["nano"]
    assert {w.device: w.signatures for w in missing_layers(found, [NANO_1, NX], **names)} == {  # type: ignore[arg-type]
        "nano-1": ("stem",),
        "nx-1": ("block",),
    }


def test_links_are_measured_in_both_directions() -> None:
    found = Profiles(links={("a", "b"): Link(1e8, 1e-4, 100.0)})
    assert missing_links(found, ["a", "b"], now=200.0) == [("b", "a")]
    assert missing_links(found, ["a"], now=200.0) == []


def test_an_instance_is_something_the_planner_plans() -> None:
    found = measured("nano", "nx")
    ids = ("nano-1", "nano-2", "nx-1")
    found.links = {(a, b): Link(1e7 if a == "nx-1" else 2e7, 1e-4, 0.0) for a in ids for b in ids if a != b}
    instance, warnings = planning_instance(FACTS, devices=[NANO_1, NANO_2, NX], profiles=found, name="job")
    assert warnings == []
    assert instance.network.bandwidth[2][0] == 1e7
    assert instance.network.bandwidth[0][2] == 2e7
    assert instance.devices[0].base_bytes == 1000
    assert instance.profile_of("nano-2").forward(4, 0, 4) == pytest.approx(4 * 8e-3)
    plan = make_plan(instance)
    assert plan.layer_count == 4
    assert plan.mini_batch == 8


def test_a_curve_that_ended_early_goes_on_with_its_slope() -> None:
    profile = device_profile([curve(1.0), curve(2.0, sizes=(1, 2))])
    assert profile.batch_sizes == (1, 2, 4, 8)
    assert [profile.forward(size, 1, 2) for size in (1, 2, 4, 8)] == [2.0, 4.0, 8.0, 16.0]


def test_a_device_that_cannot_hold_one_layer_is_left_out() -> None:
    found = measured("nano", "nx")
    found.curves["nano", "float32", "block"] = Curve((), (), (), asked=8)
    instance, warnings = planning_instance(FACTS, devices=[NANO_1, NX], profiles=found, name="job")
    assert instance.device_names == ("nx-1",)
    assert "Left out: nano-1: the layer part1" in warnings[0]
    with pytest.raises(EdgeswarmError) as caught:
        planning_instance(FACTS, devices=[NANO_1], profiles=found, name="job")
    assert caught.value.code is ErrorCode.NO_PLAN_FITS
    assert "nano-1: the layer part1 doesn't fit its" in caught.value.message
