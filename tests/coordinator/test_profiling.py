from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

import pytest

from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.agents import AgentLink
from edgeswarm_coordinator.deployment import Place
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.model_facts import ModelFacts
from edgeswarm_coordinator.process_costs import ProcessCosts
from edgeswarm_coordinator.profile_cache import DATA_SOURCE, Curve, Link, Profiles
from edgeswarm_coordinator.profiling import (
    LayerWork,
    TimedPart,
    batch_sizes_to_profile,
    distinct_layers,
    doubtful_links,
    link_hosts,
    measure_layers,
    missing_links,
    missing_parts,
    missing_source_links,
    parts_to_time,
)

from .small_graphs import small_graph

GRAPH = small_graph([["a"], ["b"], ["c"], ["d"]], signatures=["stem", "block", "block", "head"])
FACTS = ModelFacts(GRAPH, "float32", batch_size=8, optimizer_state_factor=1.0)
NANO_1 = Device("nano-1", "10.0.0.1:7600", hardware_key="nano", memory_budget_bytes=2**30)
NANO_2 = Device("nano-2", "10.0.0.2:7600", hardware_key="nano", memory_budget_bytes=2**30)
NX = Device("nx-1", "10.0.0.3:7600", hardware_key="nx", memory_budget_bytes=2**31)


PARTS = parts_to_time(FACTS)
PLACES = {"a": Place("10.0.0.1", "10.0.0.9"), "b": Place("10.0.0.2", "10.0.0.9")}


def curve(seconds: float, *, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> Curve:
    times = tuple(seconds * size for size in sizes)
    return Curve(sizes, times, times, asked=8)


def measured(*keys: str) -> Profiles:
    found = Profiles(processes=dict.fromkeys(keys, ProcessCosts(1000)))
    for key in keys:
        for number, signature in enumerate(("stem", "block", "head"), start=1):
            found.curves[key, "float32", signature] = curve(number * (1e-3 if key == "nano" else 5e-4))
        for signature in tuple(PARTS)[3:]:
            found.curves[key, "float32", signature] = curve(1e-2, sizes=(4, 8))
    return found


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [(1, (1,)), (3, (1, 2)), (64, (1, 2, 4, 8, 16, 32, 64)), (10_000, (1, 2, 4, 8, 16, 32, 64, 128, 256))],
)
def test_batch_sizes_double_up_to_the_jobs_own(batch: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes_to_profile(batch) == sizes


def test_repeated_layers_are_timed_once_on_one_device_of_a_kind() -> None:
    assert distinct_layers(GRAPH) == {"stem": 0, "block": 1, "head": 3}
    work = missing_parts(Profiles(), [NANO_1, NANO_2, NX], parts=PARTS, dtype="float32")
    assert [(item.device, item.signatures) for item in work] == [("nano-1", tuple(PARTS)), ("nx-1", tuple(PARTS))]


def test_whole_stages_are_timed_behind_the_layers() -> None:
    assert tuple(PARTS)[:3] == ("stem", "block", "head")
    assert len(PARTS) > 3
    assert {part.batch_sizes for part in tuple(PARTS.values())[3:]} == {(1, 4, 8)}


def test_only_what_is_missing_is_timed_and_nothing_twice() -> None:
    found = measured("nano", "nx")
    assert missing_parts(found, [NANO_1, NANO_2, NX], parts=PARTS, dtype="float32") == []
    del found.curves["nx", "float32", "block"]
    (work,) = missing_parts(found, [NANO_1, NX], parts=PARTS, dtype="float32")
    assert (work.device, work.signatures) == ("nx-1", ("block",))
    del found.processes["nano"]
    assert {w.device: w.signatures for w in missing_parts(found, [NANO_1, NX], parts=PARTS, dtype="float32")} == {
        "nano-1": ("stem",),
        "nx-1": ("block",),
    }


def signatures(
    found: Profiles, *devices: Device, parts: Mapping[str, TimedPart] = PARTS
) -> list[tuple[str, tuple[str, ...]]]:
    return [(work.device, work.signatures) for work in missing_parts(found, devices, parts=parts, dtype="float32")]


def test_what_ended_for_memory_is_measured_further_where_there_is_clearly_more() -> None:
    found = measured("nano")
    found.curves["nano", "float32", "stem"] = replace(curve(1e-3, sizes=(1, 2)), memory_bytes=2**30)
    found.curves["nano", "float32", "head"] = Curve((), (), (), asked=8, memory_bytes=2**30)
    for memory, wanted in ((2**30, ()), (5 * 2**28, ()), (5 * 2**28 + 1, ("stem", "head"))):
        work = signatures(found, replace(NANO_1, memory_budget_bytes=memory))
        assert work == ([("nano-1", wanted)] if wanted else [])
    # It is the device with the most memory that decides, and measures.
    assert signatures(found, NANO_1, replace(NANO_2, memory_budget_bytes=2**31)) == [("nano-2", ("stem", "head"))]


def test_a_larger_batch_goes_on_where_a_curve_ends() -> None:
    larger = parts_to_time(replace(FACTS, batch_size=32))
    found = measured("nano")
    (work,) = missing_parts(found, [NANO_1], parts=larger, dtype="float32")
    layers = [part for part in larger.values() if not part.is_check]
    assert [work.sizes_of(part) for part in layers] == [(1, 8, 16, 32)] * 3
    assert all(work.sizes_of(part) == part.batch_sizes for part in larger.values() if part.is_check)
    # Of one that ended for want of memory there is nothing to go on from.
    found.curves["nano", "float32", "stem"] = Curve((), (), (), asked=8)
    (work,) = missing_parts(found, [NANO_1], parts=larger, dtype="float32")
    assert work.sizes_of(larger["stem"]) == larger["stem"].batch_sizes


def test_what_ended_for_time_is_not_measured_again() -> None:
    found = measured("nano")
    found.curves["nano", "float32", "stem"] = replace(curve(0.3, sizes=(1, 2)), memory_bytes=1)
    assert signatures(found, NANO_1) == []


WITH_STAGES = {
    **{mark: part for mark, part in PARTS.items() if not part.is_check},
    "half": TimedPart("half", 0, 2, (4, 8), is_check=True, least_memory_bytes=1000),
    "whole": TimedPart("whole", 0, 4, (4, 8), is_check=True, least_memory_bytes=2000),
}


def with_stages(*marks: str, memory_bytes: int = 0, sizes: tuple[int, ...] = (4, 8)) -> Profiles:
    found = measured("nano")
    found.curves |= {
        ("nano", "float32", mark): replace(curve(1e-2, sizes=sizes), memory_bytes=memory_bytes) for mark in marks
    }
    return found


def test_stages_that_check_sums_are_chosen_once() -> None:
    little, plenty = (replace(NANO_1, memory_budget_bytes=memory) for memory in (1999, 2000))
    assert signatures(with_stages(), plenty, parts=WITH_STAGES) == [("nano-1", ("half", "whole"))]
    (work,) = missing_parts(with_stages(), [little], parts=WITH_STAGES, dtype="float32")
    assert (work.signatures, work.too_large) == (("half",), ("whole",))
    # A kind that has timed any keeps to what it has, whatever its memory is now.
    one_was_too_large = with_stages("half")
    one_was_too_large.update(with_stages("whole", memory_bytes=999, sizes=()))
    for device in (little, plenty, NANO_1):
        assert signatures(one_was_too_large, device, parts=WITH_STAGES) == []
        assert signatures(with_stages("half", "whole"), device, parts=WITH_STAGES) == []


def test_a_stage_that_another_model_has_too_decides_nothing_for_this_one() -> None:
    """The same model with another number of classes: its last stage and the whole are others."""
    assert signatures(with_stages("half"), NANO_1, parts=WITH_STAGES) == [("nano-1", ("whole",))]
    assert signatures(with_stages("half"), replace(NANO_1, memory_budget_bytes=1999), parts=WITH_STAGES) == []


def test_no_stage_is_timed_for_a_drift_of_memory_where_none_had_room() -> None:
    found = with_stages("half", "whole", memory_bytes=999, sizes=())
    assert signatures(found, replace(NANO_1, memory_budget_bytes=1000), parts=WITH_STAGES) == []
    assert signatures(found, NANO_1, parts=WITH_STAGES) == [("nano-1", ("half", "whole"))]


class Agent:
    """Times two layers, of which the second has no room even for one sample."""

    node_id, device = NANO_1.node_id, NANO_1

    def stream(self, method: str, request: agent_pb2.ProfileRequest, **_: object) -> Iterator[agent_pb2.ProfileReply]:
        assert method == "Profile"
        for layer in request.layers:
            curve = agent_pb2.LayerCurve(signature=layer.signature)
            if layer.signature == "stem":
                curve.batch_sizes.extend([1, 2])
                curve.forward_seconds.extend([0.1, 0.2])
                curve.backward_seconds.extend([0.1, 0.2])
            yield agent_pb2.ProfileReply(curve=curve)
        yield agent_pb2.ProfileReply(process=agent_pb2.ProcessCost(base_bytes=7))


def test_curves_remember_what_memory_there_was_and_so_do_stages_that_had_no_room() -> None:
    found = measure_layers(
        cast(AgentLink, Agent()),
        LayerWork("nano-1", "nano", ("stem", "block"), too_large=("whole",)),
        job=agent_pb2.JobReference(),
        layer_graph=GRAPH,
        dtype="float32",
        parts=WITH_STAGES,
        measured=lambda _: None,
    )
    budget = NANO_1.memory_budget_bytes
    assert found.processes["nano"].base_bytes == 7
    assert found.curves == {
        ("nano", "float32", "stem"): Curve((1, 2), (0.1, 0.2), (0.1, 0.2), asked=8, memory_bytes=budget),
        ("nano", "float32", "block"): Curve((), (), (), asked=8, memory_bytes=budget),
        ("nano", "float32", "whole"): Curve((), (), (), asked=8, memory_bytes=budget),
    }


def test_a_worker_that_began_with_a_stage_says_nothing_new_of_its_memory() -> None:
    known = ProcessCosts(base_bytes=5)
    found = [
        measure_layers(
            cast(AgentLink, Agent()),
            LayerWork("nano-1", "nano", marks),
            job=agent_pb2.JobReference(),
            layer_graph=GRAPH,
            dtype="float32",
            parts=WITH_STAGES,
            measured=lambda _: None,
            known_costs=known,
        ).processes["nano"]
        for marks in (("half", "whole"), ("stem", "half"))
    ]
    assert [costs.base_bytes for costs in found] == [5, 7]


def test_stages_are_timed_anew_for_larger_batches() -> None:
    parts = parts_to_time(replace(FACTS, batch_size=64))
    (work,) = missing_parts(measured("nano"), [NANO_1], parts=parts, dtype="float32")
    assert work.signatures == tuple(parts)


def test_links_are_measured_in_both_directions() -> None:
    found = Profiles(links={("a", "b"): Link(1e8, 1e-4, 100.0, hosts=("10.0.0.1", "10.0.0.2"))})
    assert missing_links(found, PLACES, now=200.0) == [("b", "a")]
    assert missing_links(found, {"a": PLACES["a"]}, now=200.0) == []


def test_a_direction_that_is_much_slower_than_the_way_back_is_doubtful() -> None:
    found = Profiles(
        links={
            pair: Link(speed, 1e-4, 100.0, hosts=("", ""))
            for pair, speed in {
                ("a", "b"): 2e6,
                ("b", "a"): 1e7,
                ("a", "c"): 4e6,
                ("c", "a"): 1e7,
                (DATA_SOURCE, "a"): 1e5,
            }.items()
        }
    )
    assert doubtful_links(found, list(found.links)) == [("a", "b")]
    assert doubtful_links(found, [("b", "a"), ("a", "c")]) == []


def test_links_of_a_device_that_has_another_address_now_are_measured_again() -> None:
    first = ("10.0.0.1", "10.0.0.2")
    found = Profiles(
        links={
            ("a", "b"): Link(1e8, 1e-4, 100.0, hosts=first),
            ("b", "a"): Link(1e8, 1e-4, 100.0, hosts=first[::-1]),
            (DATA_SOURCE, "a"): Link(1e7, 1e-4, 100.0, hosts=("10.0.0.9", "10.0.0.1")),
        }
    )
    by_cable = PLACES | {"a": Place("10.0.7.1", "10.0.7.9")}
    assert missing_links(found, PLACES, now=200.0) == []
    assert missing_links(found, by_cable, now=200.0) == [("a", "b"), ("b", "a")]
    assert missing_source_links(found, {"a": by_cable["a"]}, now=200.0) == [(DATA_SOURCE, "a")]


def test_a_device_on_this_machine_is_where_others_see_it() -> None:
    places = PLACES | {"a": Place("127.0.0.1", "127.0.0.1")}
    assert link_hosts(places, "a", "b") == ("10.0.0.9", "10.0.0.2")
    assert link_hosts(places, "b", "a") == ("10.0.0.2", "10.0.0.9")


def test_links_from_the_machine_that_serves_samples_are_measured_once() -> None:
    found = Profiles(links={(DATA_SOURCE, "a"): Link(1e7, 1e-4, measured_at=100.0, hosts=("10.0.0.9", "10.0.0.1"))})
    assert missing_source_links(found, PLACES, now=200.0) == [(DATA_SOURCE, "b")]
