"""Measuring what the planner must know and the cache doesn't: layers on each kind of hardware, links between devices.

Only distinct layers are timed (equal signature, equal cost), on one device of each kind of hardware; all kinds at once:

    layers of the model     conv1  block  block  block  head      signatures  a b b b c
    asked of a nano, an nx                                        a b c   at a few of 1, 2, 4, ... samples
    and, to check their sums, stages in one go                    a b b b c   a b   b b c

Which stages is asked once for a kind of hardware: what it has timed is what checks its sums, however its memory changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.signature import signature as signature_of
from edgeswarm.security.identity import Identity
from edgeswarm.wire.link_probe import measure_link as probe_link
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .curve_ends import LONGEST_SECONDS, continued, is_outgrown
from .deployment import Place, hosts_between
from .device import Device
from .model_facts import ModelFacts, model_costs
from .process_costs import ProcessCosts
from .profile_cache import DATA_SOURCE, Curve, Link, Profiles
from .stage_checks import CheckedStage, least_memory_bytes, stages_to_check

LARGEST_PROFILED_BATCH = 256
LINK_SECONDS = 0.3
PROFILE_CALL_SECONDS = 1800.0
_PROBE_LINK_CALL_SECONDS = 40.0
# By which one direction of a link is faster than the other one only where something came between.
DOUBTFUL_TIMES = 3.0


def batch_sizes_to_profile(largest_batch: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to the job's batch size, and no further than 256."""
    largest = min(largest_batch, LARGEST_PROFILED_BATCH)
    return tuple(2**power for power in range(largest.bit_length()) if 2**power <= largest)


def distinct_layers(layer_graph: LayerGraph) -> dict[str, int]:
    """The first layer of each signature, in the order of the layers."""
    first: dict[str, int] = {}
    for layer in layer_graph.layers:
        first.setdefault(layer.signature, layer.index)
    return first


@dataclass(frozen=True)
class LayerWork:
    """device: which times the layers of these signatures for all devices of its kind.

    too_large: signatures of stages for which none of them has the memory; that is noted. begun: by signature, what was measured
    before with fewer samples than are wanted now, of layers; they are timed from where that ends.
    """

    device: str
    hardware_key: str
    signatures: tuple[str, ...]
    too_large: tuple[str, ...] = ()
    begun: Mapping[str, Curve] = field(default_factory=dict)

    def sizes_of(self, part: TimedPart) -> tuple[int, ...]:
        """With which a part is timed. The smallest is always among them: by its memory larger ones are judged."""
        before = self.begun.get(part.signature)
        if before is None:
            return part.batch_sizes
        least = part.batch_sizes[0]
        return tuple(size for size in part.batch_sizes if size == least or size >= before.batch_sizes[-1])


@dataclass(frozen=True)
class TimedPart:
    """Layers that are timed in one go: one of them, or a stage that checks their sums. batch_sizes: rising, in samples.

    is_check: whether it is such a stage. least_memory_bytes: where a device has less, it isn't tried.
    """

    signature: str
    first_layer: int
    end_layer: int
    batch_sizes: tuple[int, ...]
    is_check: bool = False
    least_memory_bytes: int = 0

    @property
    def largest_batch(self) -> int:
        return self.batch_sizes[-1]


def parts_to_time(facts: ModelFacts) -> dict[str, TimedPart]:
    """Each distinct layer, then the stages that check them, by signature."""
    graph = facts.layer_graph
    sizes = batch_sizes_to_profile(facts.batch_size)
    parts = {
        signature: TimedPart(signature, layer, layer + 1, sizes) for signature, layer in distinct_layers(graph).items()
    }
    costs = model_costs(graph, wire_dtype=None)
    for stage, mark in checked_stages(facts).items():
        part = TimedPart(
            mark,
            stage.first_layer,
            stage.end_layer,
            stage.batch_sizes,
            is_check=True,
            least_memory_bytes=least_memory_bytes(costs, stage),
        )
        parts.setdefault(mark, part)
    return parts


def checked_stages(facts: ModelFacts) -> dict[CheckedStage, str]:
    """The stages that are timed in one go, each with its signature; on devices that have the memory."""
    graph = facts.layer_graph
    costs = model_costs(graph, wire_dtype=None)
    largest = batch_sizes_to_profile(facts.batch_size)[-1]
    return {
        stage: signature_of(graph.stage(stage.first_layer, stage.end_layer))
        for stage in stages_to_check(costs, largest_batch=largest)
    }


def missing_parts(
    profiles: Profiles, devices: Sequence[Device], *, parts: Mapping[str, TimedPart], dtype: str
) -> list[LayerWork]:
    """What has to be timed on which device: of each kind the one that has the most memory. Pure."""
    work = []
    for device in _roomiest_of_each_kind(devices):
        key, memory = device.hardware_key, device.memory_budget_bytes
        curves = {mark: profiles.curve(key, dtype, mark, largest_batch=parts[mark].largest_batch) for mark in parts}
        is_checked = any(curve and curve.batch_sizes and parts[mark].is_check for mark, curve in curves.items())
        # Models have stages in common, two with other last layers say: each model's own are chosen once.
        chosen = {
            mark for mark in parts if is_checked and parts[mark].is_check and (key, dtype, mark) in profiles.curves
        }
        unknown = [
            mark
            for mark, curve in curves.items()
            if curve is None or is_outgrown(curve, memory_bytes=memory, wanted=parts[mark].largest_batch)
            if mark not in chosen
        ]
        missing = [mark for mark in unknown if memory >= parts[mark].least_memory_bytes]
        if key not in profiles.processes and not missing:
            missing = list(parts)[:1]  # the reply brings the worker's own costs, too
        if missing:
            too_large = tuple(mark for mark in unknown if mark not in missing)
            before = {mark: profiles.curves.get((key, dtype, mark)) for mark in missing if curves[mark] is None}
            begun = {
                mark: curve
                for mark, curve in before.items()
                if curve and curve.batch_sizes and not parts[mark].is_check
            }
            work.append(LayerWork(device.node_id, key, tuple(missing), too_large, begun))
    return work


def _roomiest_of_each_kind(devices: Sequence[Device]) -> list[Device]:
    found: dict[str, Device] = {}
    for device in devices:
        before = found.get(device.hardware_key)
        if before is None or device.memory_budget_bytes > before.memory_budget_bytes:
            found[device.hardware_key] = device
    return list(found.values())


def missing_links(profiles: Profiles, places: Mapping[str, Place], *, now: float) -> list[tuple[str, str]]:
    """The ordered pairs (from, to) of these devices that have to be measured. Pure. places: by node id."""
    pairs = [(sender, receiver) for sender in places for receiver in places if sender != receiver]
    return [pair for pair in pairs if profiles.link(*pair, hosts=link_hosts(places, *pair), now=now) is None]


def doubtful_links(profiles: Profiles, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of these, which are measured: those whose way back is several times as fast. Pure.

    A link is measured for a third of a second, in which a radio may have looked for other networks; a plan goes by it for a day.
    """
    found = []
    for sender, receiver in pairs:
        back = profiles.links.get((receiver, sender))
        there = profiles.links[sender, receiver].bandwidth_bytes_per_second
        if back is not None and back.bandwidth_bytes_per_second > DOUBTFUL_TIMES * there:
            found.append((sender, receiver))
    return found


def missing_source_links(profiles: Profiles, places: Mapping[str, Place], *, now: float) -> list[tuple[str, str]]:
    """The same of the links from the operator's machine to these devices. Pure."""
    pairs = [(DATA_SOURCE, device) for device in places]
    return [pair for pair in pairs if profiles.link(*pair, hosts=link_hosts(places, *pair), now=now) is None]


def link_hosts(places: Mapping[str, Place], sender: str, receiver: str) -> tuple[str, str]:
    """Of a link's ends. sender: a device, or DATA_SOURCE."""
    there = places[receiver]
    return (there.own_host, there.host) if sender == DATA_SOURCE else hosts_between(places[sender], there)


def measure_layers(
    link: AgentLink,
    work: LayerWork,
    *,
    job: agent_pb2.JobReference,
    layer_graph: LayerGraph,
    dtype: str,
    parts: Mapping[str, TimedPart],
    measured: Callable[[str], None],
    known_costs: ProcessCosts | None = None,
) -> Profiles:
    """The curves that one device measures. measured: told the name of each layer as it is done. known_costs: of its worker.

    A worker tells its own memory after the first part: where that is a stage, it has the kernels of many layers by then, and
    what is known stays.
    """
    request = agent_pb2.ProfileRequest(
        job=job,
        layers=[
            agent_pb2.ProfileLayer(
                signature=part.signature,
                stage_graph_json=json.dumps(layer_graph.stage(part.first_layer, part.end_layer).to_json()).encode(),
                batch_sizes=work.sizes_of(part),
                in_flight=part.is_check,
            )
            for part in (parts[signature] for signature in work.signatures)
        ],
        longest_seconds=LONGEST_SECONDS,
    )
    memory_bytes = link.device.memory_budget_bytes
    profiles = Profiles()
    for mark in work.too_large:
        profiles.curves[work.hardware_key, dtype, mark] = Curve(
            (), (), (), asked=parts[mark].largest_batch, memory_bytes=memory_bytes
        )
    replies = link.stream("Profile", request, timeout_seconds=PROFILE_CALL_SECONDS, doing="profile the model's layers")
    for reply in replies:
        if reply.WhichOneof("reply") == "process":
            costs = ProcessCosts.from_message(reply.process)
            if known_costs is not None and parts[work.signatures[0]].is_check:
                costs = replace(costs, base_bytes=known_costs.base_bytes)
            profiles.processes[work.hardware_key] = costs
            continue
        curve = reply.curve
        part = parts[curve.signature]
        is_first = (work.hardware_key, dtype, curve.signature) not in profiles.curves
        found = Curve(
            batch_sizes=tuple(curve.batch_sizes),
            forward_seconds=tuple(curve.forward_seconds),
            backward_seconds=tuple(curve.backward_seconds),
            asked=part.largest_batch,
            relative_errors=tuple(curve.relative_errors),
            peak_bytes=tuple(curve.peak_bytes),
            held_sample_bytes=curve.held_sample_bytes,
            rest_part=curve.rest_part or 1.0,
            weights_part=curve.weights_part,
            memory_bytes=memory_bytes,
        )
        before = work.begun.get(curve.signature)
        profiles.curves[work.hardware_key, dtype, curve.signature] = (
            found if before is None else continued(before, found)
        )
        if is_first:  # each comes once more in the end
            measured(_name_of(layer_graph, part))
    silent = [s for s in work.signatures if (work.hardware_key, dtype, s) not in profiles.curves]
    if silent:
        raise EdgeswarmError(
            ErrorCode.WORKER_FAILED,
            f"The worker on {link.node_id} did not time the layer {_name_of(layer_graph, parts[silent[0]])}.",
            "Look at the agent's log there.",
        )
    return profiles


def _name_of(layer_graph: LayerGraph, part: TimedPart) -> str:
    names = [layer.name for layer in layer_graph.layers[part.first_layer : part.end_layer]]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def measure_link(link: AgentLink, receiver: str, *, address: str) -> Link:
    """One direction, from the agent of `link` to the agent `receiver` at `address`, as the first one dials it."""
    request = agent_pb2.ProbeLinkRequest(node_id=receiver, address=address, seconds=LINK_SECONDS)
    measurement = link.call(
        "ProbeLink", request, timeout_seconds=_PROBE_LINK_CALL_SECONDS, doing=f"measure its link to {receiver}"
    )
    return _link_of(measurement)


def measure_source_link(link: AgentLink, *, identity: Identity) -> Link:
    """From this machine, which serves the samples, to the agent of `link`."""
    return _link_of(probe_link(identity=identity, node_id=link.node_id, address=link.address, seconds=LINK_SECONDS))


def _link_of(measurement: agent_pb2.LinkMeasurement) -> Link:
    return Link(
        bandwidth_bytes_per_second=max(measurement.bandwidth_bytes_per_second, 1.0),
        latency_seconds=measurement.latency_seconds,
        measured_at=time.time(),
        send_byte_cpu_seconds=measurement.send_byte_cpu_seconds,
        receive_byte_cpu_seconds=measurement.receive_byte_cpu_seconds,
    )
