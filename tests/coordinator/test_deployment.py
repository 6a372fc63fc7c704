from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.plan import Plan, Stage
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.deployment import (
    Deployment,
    Holder,
    Place,
    host_seen_from,
    is_loopback,
    place_of,
    tied_tensors,
)
from edgeswarm_coordinator.own_address import own_host_towards

from .small_graphs import small_graph

GRAPH = small_graph([["embedding"], ["w1", "frozen"], ["w2", "frozen"], ["embedding", "head"]])
PLAN = Plan(
    planner="by hand",
    micro_batch=4,
    micro_batches=2,
    stages=(Stage(0, 2, {"a": 4}, 3), Stage(2, 4, {"b": 3, "c": 1}, 1)),
)
HERE = Place("127.0.0.1", "127.0.0.1")
NANO = Place("192.168.1.20", "192.168.1.5")


def deployment(places: dict[str, Place]) -> Deployment:
    return Deployment(
        job=agent_pb2.JobReference(job_id="job", term=7, epoch=1),
        plan=PLAN,
        layer_graph=GRAPH,
        places=places,
        worker_ports={"a": 7601, "b": 7602, "c": 7603},
        holder=Holder("operator-1", layers_port=9000, samples_port=9001),
        training=agent_pb2.TrainingSettings(batch_size=8, epochs=2, seed=3),
    )


def test_each_device_gets_its_own_stage_and_its_own_layers() -> None:
    requests = deployment({"a": HERE, "b": HERE, "c": HERE}).requests()
    assert {device: request.stage for device, request in requests.items()} == {"a": 0, "b": 1, "c": 1}
    assert [source.layer for source in requests["c"].sources] == [2, 3]
    graph = json.loads(requests["a"].stage_graph_json)
    assert [tensor["name"] for tensor in graph["tensors"]] == ["embedding", "w1", "frozen"]
    assert Plan.from_json(json.loads(requests["b"].plan_json)) == PLAN
    assert {peer.node_id for peer in requests["a"].peers} == {"a", "b", "c"}
    assert requests["a"].training.seed == 3
    assert requests["a"].training.data_service.address == "127.0.0.1:9001"


def test_the_data_service_is_where_alone_it_listens() -> None:
    everywhere = deployment({"a": HERE, "b": NANO, "c": NANO})
    assert everywhere.requests()["b"].training.data_service.address == "192.168.1.5:9001"
    there = dataclasses.replace(everywhere, holder=dataclasses.replace(everywhere.holder, host="192.168.1.9"))
    for request in there.requests().values():
        assert request.training.data_service.address == "192.168.1.9:9001"
        assert {source.address for source in request.sources} == {"192.168.1.9:9000"}


def test_workers_that_keep_their_layers_are_told_so_and_fetch_none() -> None:
    fetching = deployment({"a": HERE, "b": HERE, "c": HERE})
    assert not any(request.keeps_layers for request in fetching.requests().values())
    keeping = dataclasses.replace(fetching, keeps_layers=True).requests().values()
    assert all(request.keeps_layers and not request.sources for request in keeping)


def test_only_trained_tensors_of_several_stages_are_tied() -> None:
    assert tied_tensors(PLAN, GRAPH) == {"embedding": (0, 1)}
    one_stage = Plan(planner="by hand", micro_batch=4, micro_batches=1, stages=(Stage(0, 4, {"a": 4}, 1),))
    assert tied_tensors(one_stage, GRAPH) == {}


def test_a_box_elsewhere_reaches_our_own_agent_at_our_address() -> None:
    requests = deployment({"a": HERE, "b": NANO, "c": Place("192.168.1.21", "192.168.1.5")}).requests()
    peers = {device: {p.node_id: p.address for p in request.peers} for device, request in requests.items()}
    assert peers["b"]["a"] == "192.168.1.5:7601"
    assert peers["a"]["a"] == "127.0.0.1:7601"
    assert peers["a"]["b"] == "192.168.1.20:7602"
    assert peers["c"]["b"] == "192.168.1.20:7602"
    assert requests["a"].training.data_service.address == "127.0.0.1:9001"
    assert requests["b"].training.data_service.address == "192.168.1.5:9001"
    assert requests["b"].sources[0].address == "192.168.1.5:9000"


# Our own agent, found by mDNS at this machine's address in the network.
HERE_BY_NETWORK = Place("192.168.1.5", "192.168.1.5")
places = st.sampled_from([HERE, HERE_BY_NETWORK, NANO, Place("192.168.1.21", "192.168.1.5"), Place("::1", "::1")])


@given(viewer=places, target=places)
def test_nobody_elsewhere_is_ever_told_a_loopback_address(viewer: Place, target: Place) -> None:
    assert viewer.by_loopback or not is_loopback(host_seen_from(viewer, target))


def test_loopback_by_name_and_by_address() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.5", "::1", "192.168.1.4", "nano.local")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_our_own_agent_at_this_machines_address_is_on_this_machine() -> None:
    assert HERE_BY_NETWORK.on_this_machine
    assert Place("desk", "127.0.0.1").on_this_machine
    assert not NANO.on_this_machine
    # It may be in a container, from where loopback leads nowhere.
    assert host_seen_from(HERE_BY_NETWORK, HERE) == "192.168.1.5"
    assert host_seen_from(HERE, HERE_BY_NETWORK) == "192.168.1.5"
    assert host_seen_from(NANO, Place("desk", "127.0.0.1")) == "192.168.1.5"


def test_who_is_in_one_of_this_machines_networks_reaches_our_own_agent_there() -> None:
    by_radio, by_cable = Place("10.1.2.3", "10.1.2.3"), Place("192.168.5.20", "192.168.5.1")
    assert host_seen_from(by_cable, by_radio) == "192.168.5.1"
    assert host_seen_from(by_radio, by_cable) == "192.168.5.20"
    assert host_seen_from(by_radio, Place("192.168.5.1", "192.168.5.1")) == "192.168.5.1"


def test_our_own_address_towards_ourselves_is_loopback() -> None:
    assert place_of("127.0.0.1:7600", own_host=own_host_towards("127.0.0.1:7600")) == HERE


def test_ports_and_six_are_written_as_addresses() -> None:
    places_of_six = {"a": Place("fd00::1", "fd00::9"), "b": NANO, "c": NANO}
    assert deployment(places_of_six).worker_address("a", seen_from="b") == "[fd00::1]:7601"
