"""From a plan to the orders for each device. Pure: numbers and addresses in, messages out.

Whose address somebody dials depends on where he stands. The coordinator may have reached an agent of its own machine through
loopback; to a box elsewhere that agent is at the coordinator's own address on the network between them:

    coordinator's machine                   nano-1
      agent at 127.0.0.1:7600  <---+        reached at 192.168.1.20; from there we are 192.168.1.5
                                   +------- dials 192.168.1.5
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass

from edgeswarm.config import host_and_port, join_host_and_port
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.plan import Plan, Stage
from edgeswarm.wire.v1 import agent_pb2


@dataclass(frozen=True)
class Place:
    """Where a device is. host: as the coordinator reached it. own_host: the coordinator's address as seen from there, the same
    as the host where that is an address of the coordinator's own machine.
    """

    host: str
    own_host: str

    @property
    def by_loopback(self) -> bool:
        return is_loopback(self.host) or is_loopback(self.own_host)

    @property
    def on_this_machine(self) -> bool:
        """At an address of the coordinator's machine, whichever."""
        return self.by_loopback or self.host == self.own_host


@dataclass(frozen=True)
class Holder:
    """The data service, on the coordinator's machine: who has layers and, where they are served, samples, and at which ports.

    host: the only address of that machine where it listens; None for all of them.
    """

    node_id: str
    layers_port: int
    samples_port: int
    host: str | None = None


@dataclass(frozen=True)
class Deployment:
    """Everything that turns a plan into orders.

    places, worker_ports: by node id. training: the settings, but for the data service's address.
    evaluation_graph: the same layers in evaluation mode, where there is an evaluation set.
    keeps_layers: the workers hold their stages' layers already, from the epoch before.
    """

    job: agent_pb2.JobReference
    plan: Plan
    layer_graph: LayerGraph
    places: Mapping[str, Place]
    worker_ports: Mapping[str, int]
    holder: Holder
    training: agent_pb2.TrainingSettings
    first_round: int = 0
    evaluation_graph: LayerGraph | None = None
    keeps_layers: bool = False

    def requests(self) -> dict[str, agent_pb2.PrepareRequest]:
        """One order for each device of the plan."""
        plan_json = json.dumps(self.plan.to_json()).encode()
        tied = tied_tensors(self.plan, self.layer_graph)
        requests: dict[str, agent_pb2.PrepareRequest] = {}
        for index, stage in enumerate(self.plan.stages):
            graph_json = _stage_json(self.layer_graph, stage)
            evaluation_json = _stage_json(self.evaluation_graph, stage) if self.evaluation_graph is not None else b""
            for device in stage.devices:
                holder_host = self.holder.host or self.places[device].own_host
                training = agent_pb2.TrainingSettings()
                training.CopyFrom(self.training)
                training.data_service.node_id = self.holder.node_id
                training.data_service.address = join_host_and_port(holder_host, self.holder.samples_port)
                fetched = () if self.keeps_layers else range(stage.first_layer, stage.end_layer)
                requests[device] = agent_pb2.PrepareRequest(
                    job=self.job,
                    plan_json=plan_json,
                    stage=index,
                    stage_graph_json=graph_json,
                    evaluation_graph_json=evaluation_json,
                    tied=[agent_pb2.TiedTensor(name=name, stages=stages) for name, stages in tied.items()],
                    peers=[
                        agent_pb2.Peer(node_id=peer, address=self.worker_address(peer, seen_from=device))
                        for peer in self.plan.devices
                    ],
                    sources=[
                        agent_pb2.LayerSource(
                            layer=layer,
                            node_id=self.holder.node_id,
                            address=join_host_and_port(holder_host, self.holder.layers_port),
                        )
                        for layer in fetched
                    ],
                    keeps_layers=self.keeps_layers,
                    first_round=self.first_round,
                    training=training,
                )
        return requests

    def worker_address(self, device: str, *, seen_from: str) -> str:
        """host:port of a device's worker, as another device dials it."""
        host = host_seen_from(self.places[seen_from], self.places[device])
        return join_host_and_port(host, self.worker_ports[device])


def _stage_json(graph: LayerGraph, stage: Stage) -> bytes:
    return json.dumps(graph.stage(stage.first_layer, stage.end_layer).to_json()).encode()


def tied_tensors(plan: Plan, layer_graph: LayerGraph) -> dict[str, tuple[int, ...]]:
    """Trained parameters that more than one stage holds, with those stages, ascending. In the order of their names."""
    stage_of_layer = {
        layer: index for index, stage in enumerate(plan.stages) for layer in range(stage.first_layer, stage.end_layer)
    }
    tied: dict[str, tuple[int, ...]] = {}
    for name, layers in sorted(layer_graph.holders.items()):
        stages = tuple(sorted({stage_of_layer[layer] for layer in layers}))
        if len(stages) > 1 and layer_graph.tensors[name].trainable:
            tied[name] = stages
    return tied


def place_of(address: str, *, own_host: str) -> Place:
    """The place of the agent at `address` ("host:port")."""
    return Place(host_and_port(address)[0], own_host)


def host_seen_from(viewer: Place, target: Place) -> str:
    """The host by which a device at `viewer` reaches the device at `target`.

    One on the coordinator's machine is where the viewer sees that machine: of its networks the viewer may be in one alone.
    """
    elsewhere = not viewer.on_this_machine or (target.by_loopback and not viewer.by_loopback)
    return viewer.own_host if target.on_this_machine and elsewhere else target.host


def hosts_between(sender: Place, receiver: Place) -> tuple[str, str]:
    """The hosts of two devices as they see each other: which way their packets take. Another one has other hosts."""
    return host_seen_from(receiver, sender), host_seen_from(sender, receiver)


def is_loopback(host: str) -> bool:
    """Whether a host, by name or by address, means the machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
