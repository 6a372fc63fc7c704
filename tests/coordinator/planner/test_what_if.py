"""Instances after a change, and words for changes that can't be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.profile import UNKNOWN_BANDWIDTH, DataSource, Network, PlanningInstance
from edgeswarm_coordinator.planner.what_if import check_changes
from edgeswarm_coordinator.planner.what_if import what_if as changed_instance

from .instances import make_instance


def three() -> PlanningInstance:
    """a, b, c with links of 12.5 MB/s (100 Mbit/s) and a data source of the same."""
    plain = make_instance(slower=(1.0, 2.0, 3.0), bandwidth=12.5e6)
    return replace(plain, data_source=DataSource((12.5e6,) * 3, egress=125e6))


def what_if(instance: PlanningInstance, changes: str) -> PlanningInstance:
    return changed_instance(instance, changes).instance


def with_boards(instance: PlanningInstance, *boards: str, classes: str) -> PlanningInstance:
    """classes: one letter for each device, hashes of 64 digits made of them."""
    return replace(
        instance,
        profiles={letter * 64: profile for letter, profile in zip(classes, instance.profiles.values(), strict=True)},
        devices=tuple(
            replace(device, board=board, profile=letter * 64)
            for device, board, letter in zip(instance.devices, boards, classes, strict=True)
        ),
    )


def test_without_a_device() -> None:
    assert what_if(three(), "-b") == three().only(["a", "c"])


def test_a_faster_card_alone_changes_nothing_between_it_and_slow_ones() -> None:
    changed = what_if(three(), "a.mbps=1000")
    assert changed.network == three().network
    assert changed.data_source == DataSource((125e6, 12.5e6, 12.5e6), egress=125e6)


def test_two_faster_cards_are_a_faster_link() -> None:
    rows = what_if(three(), "a.mbps=1000,b.mbps=500").network.bandwidth
    assert [rows[0][1], rows[1][0]] == [62.5e6] * 2
    assert [rows[0][2], rows[2][1]] == [12.5e6] * 2


def test_of_two_devices_nothing_holds_the_faster_one_up() -> None:
    rows = what_if(make_instance(bandwidth=12.5e6), "a.mbps=1000").network.bandwidth
    assert [rows[0][1], rows[1][0]] == [125e6] * 2


def test_several_changes_one_after_the_other() -> None:
    changed = what_if(three(), "-a, +b, b+2.memory=1GiB")
    assert changed.device_names == ("b", "c", "b+2")
    assert changed.devices[2].memory_bytes == 2**30


def test_a_slower_card_slows_all_its_links_both_ways() -> None:
    rows = what_if(three(), "b.mbps=10").network.bandwidth
    assert [rows[a][b] for a, b in ((0, 1), (1, 0), (1, 2), (2, 1), (0, 2))] == [1.25e6] * 4 + [12.5e6]


def linked(rows: list[list[float]]) -> PlanningInstance:
    """Devices a, b, ... with links of so many bytes per second."""
    plain = make_instance(slower=(1.0,) * len(rows))
    return replace(plain, network=Network(0.0, tuple(map(tuple, rows))))


def test_latencies_are_those_of_the_devices_that_are_there() -> None:
    latencies = ((0.0, 0.001, 0.005), (0.001, 0.0, 0.005), (0.004, 0.004, 0.0))
    radio = replace(three(), network=Network.of_pairs(latencies, three().network.bandwidth))
    assert what_if(radio, "-c").network.latency_seconds == 0.001
    assert what_if(radio, "a.mbps=10").network.latencies == latencies
    more = what_if(radio, "+c").network
    assert [more.latency(3, place) for place in range(3)] == [0.004, 0.004, 0.004]
    assert [more.latency(place, 3) for place in range(3)] == [0.005, 0.005, 0.004]


def two_rooms() -> PlanningInstance:
    """a and b, c and d: 125 MB/s (1000 Mbit/s) inside, 5 MB/s between; a data source in the room of a and b."""
    rows = [[125e6 if (a < 2) == (b < 2) else 5e6 for b in range(4)] for a in range(4)]
    return replace(linked(rows), data_source=DataSource((125e6, 125e6, 5e6, 5e6), egress=125e6))


def test_faster_cards_make_no_slow_path_between_rooms_faster() -> None:
    changed = what_if(two_rooms(), "a.mbps=10000,b.mbps=10000,c.mbps=10000")
    rows = changed.network.bandwidth
    assert [rows[0][1], rows[1][0]] == [1.25e9] * 2
    assert [rows[a][b] for a, b in ((0, 2), (2, 0), (1, 2), (0, 3), (3, 1))] == [5e6] * 5
    assert [rows[2][3], rows[3][2]] == [125e6] * 2
    assert changed.data_source == two_rooms().data_source


def test_a_card_that_is_slower_than_the_path_is_what_limits() -> None:
    changed = what_if(two_rooms(), "c.mbps=8")
    rows = changed.network.bandwidth
    assert [rows[2][a] for a in (0, 1, 3)] == [1e6] * 3
    assert [rows[0][3], rows[3][0]] == [5e6] * 2
    assert changed.data_source == DataSource((125e6, 125e6, 1e6, 5e6), egress=125e6)


@pytest.mark.parametrize("change", ["a.mbps=1000", "c.mbps=1000", "a.mbps=1000,d.mbps=1000"])
def test_a_card_as_fast_as_it_is_changes_nothing(change: str) -> None:
    assert what_if(two_rooms(), change) == two_rooms()


def test_nor_does_it_beside_a_device_with_a_slow_card() -> None:
    """The only one that b has a fast link to is a itself."""
    slow_c = linked([[0.0, 125e6, 12.5e6], [125e6, 0.0, 12.5e6], [12.5e6, 12.5e6, 0.0]])
    assert what_if(slow_c, "a.mbps=1000") == slow_c
    assert what_if(slow_c, "c.mbps=100") == slow_c
    assert what_if(three(), "b.mbps=100") == three()


def test_links_that_differ_by_some_percent_have_no_slow_path() -> None:
    uneven = linked([[0.0, 110e6, 120e6], [112e6, 0.0, 118e6], [118e6, 116e6, 0.0]])
    rows = what_if(uneven, "a.mbps=10000,b.mbps=10000").network.bandwidth
    assert [rows[0][1], rows[1][0]] == [1.25e9] * 2
    # Of the pairs with c its own card is the slower one, as it was.
    assert [rows[0][2], rows[2][0]] == [120e6, 118e6]
    # A card that is a little slower than the fastest link makes no slower link faster.
    assert what_if(uneven, "a.mbps=952").network.bandwidth[0][1] == 110e6


def test_more_memory() -> None:
    assert what_if(three(), "c.memory=8GiB").devices[2].memory_bytes == 8 * 2**30


@pytest.mark.parametrize("change", ["+b", "+class-b"])
def test_one_more(change: str) -> None:
    changed = what_if(three(), change)
    assert changed.device_names == ("a", "b", "c", "b+2")
    assert changed.profile_of("b+2") is changed.profile_of("b")
    assert changed.network.bandwidth[3][:3] == (12.5e6,) * 3
    assert [row[3] for row in changed.network.bandwidth[:3]] == [12.5e6] * 3
    assert changed.data_source == DataSource((12.5e6,) * 4, egress=125e6)
    assert what_if(changed, "+b").device_names[-1] == "b+3"


def test_a_device_by_the_beginning_of_its_name() -> None:
    long_names = replace(
        three(), devices=tuple(replace(device, name=device.name + "-7f3a") for device in three().devices)
    )
    assert what_if(long_names, "-b").device_names == ("a-7f3a", "c-7f3a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("b", "none of -DEVICE"),
        ("b.price=3", "none of -DEVICE"),
        ("b.mbps=fast", "'fast' is no number of Mbit/s"),
        ("b.mbps=0", "no number of Mbit/s"),
        ("b.memory=much", "'much' is not a size"),
        ("-z", "'z': there is no such device"),
        ("+z", "'z': there is no such device"),
    ],
)
def test_what_cannot_be(change: str, words: str) -> None:
    with pytest.raises(EdgeswarmError, match=words) as caught:
        what_if(three(), change)
    assert caught.value.code is ErrorCode.CONFIG
    assert caught.value.remedy


@pytest.mark.parametrize("change", ["b", "-a,b", "a.mbps=fast", "a.mbps=inf", "-a, a.memory=abc", "a.memory=0"])
def test_a_form_that_is_wrong_is_known_before_the_devices_are(change: str) -> None:
    check_changes("-anyone, anyone.mbps=10, anyone.memory=1.5 GiB")
    with pytest.raises(EdgeswarmError) as caught:
        check_changes(change)
    assert caught.value.code is ErrorCode.CONFIG


@pytest.mark.parametrize("name", ["Jetson Nano", "Jetson Na", "b"])
def test_a_class_goes_by_its_board_or_the_beginning_of_that(name: str) -> None:
    boxes = with_boards(three(), "LENOVO", "Jetson Nano", "Jetson NX", classes="xby")
    changed = changed_instance(boxes, f"+{name}")
    assert changed.instance.devices[-1] == replace(boxes.devices[1], name="b+2")
    assert bool(changed.assumptions) == (name != "b")


def test_one_more_of_a_class_is_like_its_first_device_and_says_so() -> None:
    plain = three()
    devices = tuple(replace(device, profile="class-b", memory_bytes=2**30) for device in plain.devices)
    changed = changed_instance(replace(plain, devices=devices), "+class-b")
    assert changed.instance.devices[-1] == replace(devices[0], name="a+2")
    assert changed.assumptions == ("One more like a: its links, and 1.0 GiB of memory for training.",)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Jetson N", "more than one class"),
        ("Jetson Xavier", "no such device or class"),
        ("xxxx", "no such device or class"),  # of a hash that nobody sees the beginning is a hit by chance
    ],
)
def test_where_no_class_is_meant_for_sure_they_are_listed(name: str, words: str) -> None:
    boxes = with_boards(three(), "LENOVO", "Jetson Nano", "Jetson NX", classes="xyz")
    with pytest.raises(EdgeswarmError, match=words) as caught:
        what_if(boxes, f"+{name}")
    assert caught.value.remedy.endswith("the classes are LENOVO (a); Jetson Nano (b); Jetson NX (c).")


def test_of_one_device_alone_another_is_the_advice_and_can_be_had() -> None:
    alone = make_instance(slower=(1.0,), latency=0.001)
    with pytest.raises(EdgeswarmError, match="the only device") as caught:
        what_if(alone, "-a")
    assert "--what-if +a" in caught.value.remedy
    changed = changed_instance(alone, "+a")
    assert changed.instance.device_names == ("a", "a+2")
    rows = changed.instance.network.bandwidth
    assert [rows[0][1], rows[1][0]] == [125e6] * 2
    (assumed,) = changed.assumptions
    assert "1000 Mbit/s each way" in assumed
    assert "1.0 ms of latency" in assumed


def test_a_link_that_is_given_is_not_assumed() -> None:
    rows = what_if(make_instance(slower=(1.0,)), "+a,a.mbps=100").network.bandwidth
    assert [rows[0][1], rows[1][0]] == [12.5e6] * 2


def test_a_device_alone_is_linked_as_with_its_data_source() -> None:
    alone = replace(make_instance(slower=(1.0,)), data_source=DataSource((12.5e6,), egress=125e6))
    changed = what_if(alone, "+a")
    assert changed.network.bandwidth[0][1] == 12.5e6
    assert changed.data_source == DataSource((12.5e6,) * 2, egress=125e6)


def test_another_card_of_a_device_on_the_sources_machine_is_the_sources() -> None:
    """Of three devices with cards of 12.5e6 the first is on the source's machine, which it reaches without one."""
    source = DataSource((1e9, 12.5e6, 12.5e6), 12.5e6, on_its_machine=(True, False, False))
    before = replace(three(), data_source=source)
    faster = what_if(before, "a.mbps=1000").data_source
    assert faster == DataSource((1e9, 12.5e6, 12.5e6), 125e6, on_its_machine=(True, False, False))
    slower = what_if(before, "a.mbps=10").data_source
    assert slower == DataSource((1e9, 1.25e6, 1.25e6), 1.25e6, on_its_machine=(True, False, False))
    its_own = what_if(before, "b.mbps=10").data_source
    assert its_own == DataSource((1e9, 1.25e6, 12.5e6), 12.5e6, on_its_machine=(True, False, False))


@pytest.mark.parametrize("change", ["a.mbps=1000", "b.mbps=1000", "a.mbps=1000,b.mbps=1000"])
def test_of_a_device_and_one_on_the_sources_machine_nothing_says_which_card_held_them_up(change: str) -> None:
    source = DataSource((1e9, 12.5e6), 12.5e6, on_its_machine=(True, False))
    changed = what_if(replace(make_instance(bandwidth=12.5e6), data_source=source), change)
    assert changed.network.bandwidth[0][1] == 125e6
    assert changed.data_source == DataSource((1e9, 125e6), 125e6, on_its_machine=(True, False))


def test_one_more_is_on_a_machine_of_its_own() -> None:
    source = DataSource((1e9, 12.5e6, 12.5e6), 12.5e6, on_its_machine=(True, False, False))
    changed = what_if(replace(three(), data_source=source), "+a").data_source
    assert changed == DataSource((1e9, *[12.5e6] * 3), 12.5e6, on_its_machine=(True, False, False, False))


def test_one_more_than_a_device_on_the_sources_machine_has_a_link_that_nobody_knows() -> None:
    source = DataSource((4e9,), egress=4e9, on_its_machine=(True,))
    changed = what_if(replace(make_instance(slower=(1.0,)), data_source=source), "+a")
    assert changed.network.bandwidth[0][1] == UNKNOWN_BANDWIDTH
    assert changed.data_source == DataSource((4e9, UNKNOWN_BANDWIDTH), egress=4e9, on_its_machine=(True, False))
