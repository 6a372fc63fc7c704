"""Measuring what the planner must know and the cache doesn't: layers on each kind of hardware, links between devices.

Only distinct layers are timed (equal signature, equal cost), on one device of each kind of hardware; all kinds at once:

    layers of the model     conv1  block  block  block  head      signatures  a b b b c
    asked of a nano, an nx                                        a b c   at 1, 2, 4, ... samples
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import Layer, LayerGraph
from edgeswarm.model.values import BYTES_PER_ELEMENT
from edgeswarm.profile import (
    DeviceDescription,
    DeviceProfile,
    LayerCosts,
    ModelCosts,
    Network,
    PlanningInstance,
    TrainingSettings,
)
from edgeswarm.wire.frames import NARROWINGS
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .device import Device
from .planner.units import readable_bytes
from .profile_cache import Curve, Link, Profiles

LARGEST_PROFILED_BATCH = 256
LONGEST_SECONDS = 1.0  # of one forward and backward; a curve ends there and is extrapolated
LINK_SECONDS = 0.3
PROFILE_CALL_SECONDS = 1800.0
_PROBE_LINK_CALL_SECONDS = 40.0


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
    """device: which times the layers of these signatures for all devices of its kind."""

    device: str
    hardware_key: str
    signatures: tuple[str, ...]


def missing_layers(
    profiles: Profiles, devices: Sequence[Device], *, signatures: Sequence[str], dtype: str, largest_batch: int
) -> list[LayerWork]:
    """What has to be timed on which device. Pure."""
    work: dict[str, LayerWork] = {}
    for device in devices:
        key = device.hardware_key
        missing = tuple(s for s in signatures if profiles.curve(key, dtype, s, largest_batch=largest_batch) is None)
        if key not in profiles.base_bytes and not missing:
            missing = tuple(signatures[:1])  # the reply brings the worker's own memory, too
        if missing:
            work.setdefault(key, LayerWork(device.node_id, key, missing))
    return list(work.values())


def missing_links(profiles: Profiles, devices: Sequence[str], *, now: float) -> list[tuple[str, str]]:
    """The ordered pairs (from, to) that have to be measured. Pure."""
    pairs = [(sender, receiver) for sender in devices for receiver in devices if sender != receiver]
    return [pair for pair in pairs if profiles.link(*pair, now=now) is None]


def measure_layers(
    link: AgentLink,
    work: LayerWork,
    *,
    job: agent_pb2.JobReference,
    layer_graph: LayerGraph,
    dtype: str,
    batch_sizes: Sequence[int],
    measured: Callable[[str], None],
) -> Profiles:
    """The curves that one device measures. measured: told the name of each layer as it is done."""
    first = distinct_layers(layer_graph)
    request = agent_pb2.ProfileRequest(
        job=job,
        layers=[
            agent_pb2.ProfileLayer(
                signature=signature,
                stage_graph_json=json.dumps(
                    layer_graph.stage(first[signature], first[signature] + 1).to_json()
                ).encode(),
            )
            for signature in work.signatures
        ],
        batch_sizes=batch_sizes,
        longest_seconds=LONGEST_SECONDS,
    )
    profiles = Profiles()
    replies = link.stream("Profile", request, timeout_seconds=PROFILE_CALL_SECONDS, doing="profile the model's layers")
    for reply in replies:
        if reply.WhichOneof("reply") == "process":
            profiles.base_bytes[work.hardware_key] = reply.process.base_bytes
            continue
        curve = reply.curve
        profiles.curves[work.hardware_key, dtype, curve.signature] = Curve(
            batch_sizes=tuple(curve.batch_sizes),
            forward_seconds=tuple(curve.forward_seconds),
            backward_seconds=tuple(curve.backward_seconds),
            asked=batch_sizes[-1],
        )
        if curve.signature in first:
            measured(layer_graph.layers[first[curve.signature]].name)
    silent = [s for s in work.signatures if (work.hardware_key, dtype, s) not in profiles.curves]
    if silent:
        raise EdgeswarmError(
            ErrorCode.WORKER_FAILED,
            f"The worker on {link.node_id} did not time the layer {layer_graph.layers[first[silent[0]]].name}.",
            "Look at the agent's log there.",
        )
    return profiles


def measure_link(link: AgentLink, receiver: str, *, address: str) -> Link:
    """One direction, from the agent of `link` to the agent `receiver` at `address`, as the first one dials it."""
    request = agent_pb2.ProbeLinkRequest(node_id=receiver, address=address, seconds=LINK_SECONDS)
    measurement = link.call(
        "ProbeLink", request, timeout_seconds=_PROBE_LINK_CALL_SECONDS, doing=f"measure its link to {receiver}"
    )
    return Link(
        bandwidth_bytes_per_second=max(measurement.bandwidth_bytes_per_second, 1.0),
        latency_seconds=measurement.latency_seconds,
        measured_at=time.time(),
    )


@dataclass(frozen=True)
class ModelFacts:
    """What the planner is told of the model beside its graph. optimizer_state_factor: bytes of state per byte of parameters.

    wire_dtype: how float32 travels between devices; None for as it is.
    """

    layer_graph: LayerGraph
    dtype: str
    batch_size: int
    optimizer_state_factor: float
    wire_dtype: str | None = None


def planning_instance(
    facts: ModelFacts, *, devices: Sequence[Device], profiles: Profiles, name: str
) -> tuple[PlanningInstance, list[str]]:
    """The planner's input, and warnings about devices that are left out since not even one sample fits some layer. Pure.

    All curves and links must have been measured. Raises EdgeswarmError (NO_PLAN_FITS) when no device is left.
    """
    largest = batch_sizes_to_profile(facts.batch_size)[-1]
    classes: dict[str, DeviceProfile] = {}
    usable: list[Device] = []
    misfits: list[str] = []
    for device in devices:
        curves = []
        for layer in facts.layer_graph.layers:
            curve = profiles.curve(device.hardware_key, facts.dtype, layer.signature, largest_batch=largest)
            assert curve is not None, f"layer {layer.name} was measured on {device.node_id} or its like"
            curves.append(curve)
        misfit = next((i for i, curve in enumerate(curves) if not curve.batch_sizes), None)
        if misfit is not None:
            memory = f"its {readable_bytes(device.memory_budget_bytes)} of memory"
            misfits.append(f"{device.node_id}: the layer {facts.layer_graph.layers[misfit].name} doesn't fit {memory}")
            continue
        usable.append(device)
        classes.setdefault(device.hardware_key, device_profile(curves))
    if not usable:
        raise EdgeswarmError(
            ErrorCode.NO_PLAN_FITS,
            f"No device can hold each single layer of the model, even for one sample. {'; '.join(misfits)}.",
            "Free memory on the devices, give an agent more with --memory, add a larger device, or use a smaller model.",
        )
    names = [device.node_id for device in usable]
    network = _network(profiles, names)
    instance = PlanningInstance(
        model=model_costs(facts.layer_graph, wire_dtype=facts.wire_dtype),
        profiles=classes,
        devices=tuple(
            DeviceDescription(
                name=device.node_id,
                profile=device.hardware_key,
                memory_bytes=device.memory_budget_bytes,
                base_bytes=profiles.base_bytes.get(device.hardware_key, 0),
            )
            for device in usable
        ),
        network=network,
        training=TrainingSettings(
            mini_batch=facts.batch_size,
            optimizer_state_bytes_per_parameter_byte=facts.optimizer_state_factor,
        ),
        name=name,
    )
    return instance, [f"Left out: {misfit}." for misfit in misfits]


def model_costs(layer_graph: LayerGraph, *, wire_dtype: str | None) -> ModelCosts:
    """The layers' costs as the planner takes them; bytes of activations and gradients as they travel."""

    def travelling(size_bytes: int, dtype: str) -> int:
        if wire_dtype is None or (dtype, wire_dtype) not in NARROWINGS:
            return size_bytes
        return size_bytes * BYTES_PER_ELEMENT[wire_dtype] // BYTES_PER_ELEMENT[dtype]

    def gradient_bytes(layer: Layer) -> int:
        specs = (layer_graph.tensors[name] for name in layer.parameters)
        return sum(travelling(spec.bytes, spec.dtype) for spec in specs if spec.trainable)

    return ModelCosts(
        input_bytes=sum(value.bytes_per_sample for value in layer_graph.cuts[0]),
        layers=tuple(
            LayerCosts(
                name=layer.name,
                param_bytes=layer.param_bytes,
                output_bytes=sum(travelling(value.bytes_per_sample, value.dtype) for value in cut_after),
                saved_bytes=layer.saved_bytes,
                flops_forward=float(layer.flops_forward),
                flops_backward=float(layer.flops_backward),
                least_batch=layer.least_batch,
                gradient_bytes=gradient_bytes(layer),
            )
            for layer, cut_after in zip(layer_graph.layers, layer_graph.cuts[1:], strict=True)
        ),
    )


def device_profile(curves: Sequence[Curve]) -> DeviceProfile:
    """The layers' curves, one each, on common batch sizes. Where a curve ended early its line goes on."""
    sizes = sorted({size for curve in curves for size in curve.batch_sizes})
    single = [
        DeviceProfile(
            batch_sizes=curve.batch_sizes,
            forward_seconds=tuple((seconds,) for seconds in curve.forward_seconds),
            backward_seconds=tuple((seconds,) for seconds in curve.backward_seconds),
        )
        for curve in curves
    ]
    return DeviceProfile(
        batch_sizes=tuple(sizes),
        forward_seconds=tuple(tuple(layer.forward(size, 0, 1) for layer in single) for size in sizes),
        backward_seconds=tuple(tuple(layer.backward(size, 0, 1) for layer in single) for size in sizes),
    )


def _network(profiles: Profiles, names: Sequence[str]) -> Network:
    pairs = [(sender, receiver) for sender in names for receiver in names if sender != receiver]
    assert all(pair in profiles.links for pair in pairs), "every pair was measured"
    return Network(
        # One number for all pairs: the slowest, since a pipeline waits for it.
        latency_seconds=max((profiles.links[pair].latency_seconds for pair in pairs), default=0.0),
        bandwidth=tuple(
            tuple(1.0 if a == b else profiles.links[a, b].bandwidth_bytes_per_second for b in names) for a in names
        ),
    )
