"""A group's all-reduce on the network: for each replica one flow out of its card, to all of the group, and one into it.

    a's egress  ====>  ( the group )  ====>  a's ingress        what goes to each of the others, taken together
    b's egress  ====>                 ====>  b's ingress

What comes in stands still while the first member, from which each of the others gets most, has something urgent to send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edgeswarm.plan import Stage
from edgeswarm.profile import PlanningInstance

from .network import Card, Network, Stream

# In place of a replica's index.
THE_GROUP = -2


def connect_group(
    network: Network,
    instance: PlanningInstance,
    stage: Stage,
    *,
    members: Mapping[str, int],
    egress: Mapping[int, Card],
    ingress: Mapping[int, Card],
    latency: float,
) -> list[tuple[Stream, Stream]]:
    """The flow out of each member's card, and the one into it. members: the index of its replica, by device; owners first.

    egress, ingress: cards by replica. latency: in seconds, a frame's handling at both ends included.
    """
    flows = []
    first, second = list(members.values())[:2]
    for name, replica in members.items():
        outward, inward = group_paces(instance, stage, name)
        flows.append(
            (
                network.connect(
                    replica,
                    THE_GROUP,
                    egress=egress[replica],
                    ingress=Card(egress[replica].capacity),
                    bandwidth=outward,
                    latency=latency,
                ),
                network.connect(
                    THE_GROUP,
                    replica,
                    egress=Card(ingress[replica].capacity),
                    ingress=ingress[replica],
                    holder=egress[second if replica == first else first],
                    bandwidth=inward,
                    latency=latency,
                ),
            )
        )
    return flows


def group_paces(instance: PlanningInstance, stage: Stage, device: str) -> tuple[float, float]:
    """Bytes per second at which a replica sends to its group, and receives, as far as the links to the single ones let it.

    Its bytes go to them side by side; they all take as long as those over the slowest link for what it carries.
    """
    bandwidth, index_of = instance.network.bandwidth, instance.index_of
    place = index_of[device]
    carried = [(index_of[peer], chunks) for peer, chunks in _chunks(stage, device)]
    chunks = sum(part for _, part in carried)
    outward = min(bandwidth[place][peer] * chunks / part for peer, part in carried)
    inward = min(bandwidth[peer][place] * chunks / part for peer, part in carried)
    return outward, inward


def _chunks(stage: Stage, device: str) -> Iterator[tuple[str, int]]:
    """The replicas that a device exchanges chunks with, and how many each way: one for each owner of the two."""
    owners: Sequence[str] = stage.chunk_owners
    for peer in stage.all_reduce_peers(device):
        yield peer, max(1, (peer in owners) + (device in owners))
