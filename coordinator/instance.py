"""The planner's input, out of the model's facts and what was measured. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.feed_ahead import FEED_AHEAD
from edgeswarm.model.layer_graph import Layer
from edgeswarm.profile import (
    DataSource,
    DeviceDescription,
    DeviceProfile,
    Network,
    PlanningInstance,
    TrainingSettings,
)

from .alike_processors import with_alike_parts
from .device import Device
from .device_fit import DeviceFit, fit_device
from .model_facts import ModelFacts, ServedSamples, model_costs
from .planner.bound import round_bound_seconds
from .planner.connection_memory import BASE_PEERS
from .planner.units import readable_bytes
from .process_costs import ProcessCosts
from .profile_cache import DATA_SOURCE, Curve, Profiles
from .profiling import batch_sizes_to_profile, checked_stages
from .stage_checks import CheckedStage
from .unheld_layers import seems_to_hold, with_guesses
from .working_memory import SeenMemory, heap_slack, kernel_bytes, on_top, saved_growth, working_memory

# What a worker holds at each of its cuts beside the micro-batch at hand, whose tensors are among what layers hold: one that came
# early, or that waits to be sent. The samples of its feed come on top.
FRAMES_HELD = 1
# What a worker has besides once its links are open and its threads run: for a device that it is linked with, and for pieces of
# buckets on their way (a copy, what is encrypted of it, what comes in; two at once). Not measured by themselves: set from the
# peaks of MobileNetV2 and BERT-small over six emulated devices.
PEER_BYTES = 1 << 20
REDUCE_BYTES = 7 << 20
# A data source that would be at work for less than this part of the shortest round that there can be isn't planned with, which
# takes twice as long. Of a job of several epochs: in one, what it takes is all in the rounds that are planned.
_IDLE_SOURCE = 0.03


def planning_instance(
    facts: ModelFacts, *, devices: Sequence[Device], profiles: Profiles, name: str, here: Collection[str] = ()
) -> tuple[PlanningInstance, list[str]]:
    """The planner's input, and warnings about layers that devices can't hold, not even for one sample. Pure.

    A device that can't hold some layer may get the others. It is left out where nothing tells what such a layer would take it,
    or where the planner would think that it holds it. here: node ids of agents on this machine. All curves and links must have
    been measured. Raises EdgeswarmError (NO_PLAN_FITS) when no device is left.
    """
    largest = batch_sizes_to_profile(facts.batch_size)[-1]
    stages = checked_stages(facts)
    marks = [layer.signature for layer in facts.layer_graph.layers]
    alike = with_alike_parts(profiles, devices, dtype=facts.dtype, parts=marks)
    alike = with_alike_parts(alike, devices, dtype=facts.dtype, parts=_checked_parts(stages, len(marks)))
    measured = {key: _curves(facts, alike, key, largest=largest) for key in dict.fromkeys(_keys(devices))}
    unheld = {key: [layer for layer, curve in enumerate(of) if not curve.batch_sizes] for key, of in measured.items()}
    complete = with_guesses(measured)
    usable = [device for device in devices if device.hardware_key in complete]
    if not usable:
        raise _none_left(facts, devices, unheld)
    fits: dict[str, DeviceFit] = {}
    seen: dict[str, SeenMemory] = {}
    for key in dict.fromkeys(_keys(usable)):
        timed = {
            stage: whole
            for stage, mark in stages.items()
            if (whole := alike.curves.get((key, facts.dtype, mark))) is not None
        }
        seen[key] = SeenMemory(complete[key], timed)
        fits[key] = fit_device(
            facts.layer_graph,
            curves=complete[key],
            stages=timed,
            costs=profiles.processes.get(key, ProcessCosts(base_bytes=0)),
            optimizer_state_factor=facts.optimizer_state_factor,
            byte_cpu_seconds=_byte_cpu_seconds(
                profiles,
                [device.node_id for device in devices if device.hardware_key == key],
                [each.node_id for each in devices],
            ),
        )
    classes: dict[str, DeviceProfile] = {key: fit.profile for key, fit in fits.items()}
    names = [device.node_id for device in usable]
    network = _network(profiles, names)
    slack = heap_slack(facts.layer_graph, list(seen.values()))
    working = working_memory(facts.layer_graph, list(seen.values()), slack=slack, tables=facts.met_rows)
    instance = PlanningInstance(
        model=model_costs(
            facts.layer_graph,
            wire_dtype=facts.wire_dtype,
            heap_slack=slack,
            # The loss is computed where the last layer was, with the targets.
            transient_bytes=(
                *working.transient_bytes[:-1],
                working.transient_bytes[-1] + facts.loss_bytes + facts.target_bytes,
            ),
            workspace_bytes=working.workspace_bytes,
            joint_workspace_bytes=working.joint_workspace_bytes,
            kernel_bytes=kernel_bytes(facts.layer_graph),
            optimizer_state_factor=facts.optimizer_state_factor,
            met_rows=facts.met_rows,
            target_bytes=facts.target_bytes,
        ),
        profiles=classes,
        devices=tuple(
            DeviceDescription(
                name=device.node_id,
                profile=device.hardware_key,
                memory_bytes=device.memory_budget_bytes,
                # All stages alike, though a data set is open in the first and the last alone.
                base_bytes=profiles.processes[device.hardware_key].base_bytes
                + BASE_PEERS * PEER_BYTES
                + facts.job_bytes,
                board=device.board,
            )
            for device in usable
        ),
        network=network,
        training=TrainingSettings(
            mini_batch=facts.batch_size,
            rest=facts.rest,
            optimizer_state_bytes_per_parameter_byte=facts.optimizer_state_factor,
            frames_held=FRAMES_HELD,
            inputs_ahead=FEED_AHEAD,
            saved_growth=saved_growth(facts.layer_graph, list(seen.values())),
            on_top=on_top(facts.layer_graph, list(seen.values()), slack=slack, transient=working.transient_bytes),
            peer_bytes=PEER_BYTES,
            reduce_bytes=REDUCE_BYTES,
        ),
        name=name,
        data_source=None if facts.served is None else _data_source(facts.served, profiles, usable, here=here),
    )
    planned, warnings = [], []
    for device in devices:
        layers = unheld[device.hardware_key]
        if device in usable and not any(seems_to_hold(instance, device.node_id, layer) for layer in layers):
            planned.append(device)
            if layers:
                warnings.append(f"{_misfit(facts, device, layers[0])}: it may get others.")
        else:
            warnings.append(f"Left out: {_misfit(facts, device, layers[0])}.")
    if not planned:
        raise _none_left(facts, devices, unheld)
    if len(planned) < len(devices):
        # Nothing that was seen on the others says anything of these.
        instance, _ = planning_instance(facts, devices=planned, profiles=profiles, name=name, here=here)
    return _without_idle_source(instance), warnings


def _keys(devices: Sequence[Device]) -> list[str]:
    """Of each device's hardware."""
    return [device.hardware_key for device in devices]


def _curves(facts: ModelFacts, profiles: Profiles, key: str, *, largest: int) -> list[Curve]:
    """Of the layers in their order."""
    found = []
    for layer in facts.layer_graph.layers:
        curve = profiles.curve(key, facts.dtype, layer.signature, largest_batch=largest)
        assert curve is not None, f"layer {layer.name} was measured on {key}"
        found.append(curve)
    return found


def _none_left(facts: ModelFacts, devices: Sequence[Device], unheld: Mapping[str, Sequence[int]]) -> EdgeswarmError:
    misfits = "; ".join(_misfit(facts, device, unheld[device.hardware_key][0]) for device in devices)
    return EdgeswarmError(
        ErrorCode.NO_PLAN_FITS,
        f"No device can hold each single layer of the model, even for one sample. {misfits}.",
        "Free memory on the devices, give an agent more with --memory, add a larger device, or use a smaller model.",
    )


def _misfit(facts: ModelFacts, device: Device, layer: int) -> str:
    """Of a device that can't hold this layer, as a sentence without its end."""
    named = facts.layer_graph.layers[layer]
    budget, least = readable_bytes(device.memory_budget_bytes), readable_bytes(_least_bytes(facts, named))
    return (
        f"{device.node_id}: the layer {named.name} doesn't fit its {budget} of memory ({least} for weights, gradients, the "
        "optimizer and one sample, and more to compute)"
    )


def _least_bytes(facts: ModelFacts, layer: Layer) -> int:
    """What a layer holds with one sample, without what it takes while it computes."""
    of_training = math.ceil((1 + facts.optimizer_state_factor) * layer.trainable_param_bytes)
    return layer.param_bytes + of_training + layer.saved_bytes + layer.held_input_bytes


def _checked_parts(stages: Mapping[CheckedStage, str], layer_count: int) -> list[str]:
    """Signatures of the stages that together are the model, without the one that is all of it."""
    return [mark for stage, mark in stages.items() if (stage.first_layer, stage.end_layer) != (0, layer_count)]


def _byte_cpu_seconds(profiles: Profiles, kind: Sequence[str], others: Sequence[str]) -> float:
    """What a byte takes a device of this kind: median over its links, sent and received by halves; 0 without links."""
    pairs = [(a, b) for a in kind for b in others if (a, b) in profiles.links and (b, a) in profiles.links]
    if not pairs:
        return 0.0
    sent = statistics.median(profiles.links[a, b].send_byte_cpu_seconds for a, b in pairs)
    received = statistics.median(profiles.links[b, a].receive_byte_cpu_seconds for a, b in pairs)
    return (sent + received) / 2


def _network(profiles: Profiles, names: Sequence[str]) -> Network:
    pairs = [(sender, receiver) for sender in names for receiver in names if sender != receiver]
    assert all(pair in profiles.links for pair in pairs), "every pair was measured"
    return Network.of_pairs(
        [[0.0 if a == b else profiles.links[a, b].latency_seconds for b in names] for a in names],
        [[1.0 if a == b else profiles.links[a, b].bandwidth_bytes_per_second for b in names] for a in names],
    )


def _data_source(
    served: ServedSamples, profiles: Profiles, devices: Sequence[Device], *, here: Collection[str]
) -> DataSource:
    """This machine, by the links from it as they were measured.

    Its card, which all of them share, is as fast as the fastest of them; those to agents on this machine don't go over it.
    """
    inward = [profiles.links[DATA_SOURCE, device.node_id].bandwidth_bytes_per_second for device in devices]
    on_its_machine = tuple(device.node_id in here for device in devices)
    over_card = [rate for rate, is_here in zip(inward, on_its_machine, strict=True) if not is_here]
    return DataSource(
        tuple(inward),
        egress=max(over_card or inward),
        label_bytes=served.label_bytes,
        input_bytes=served.input_bytes,
        joint_bytes=served.joint_bytes,
        epochs=served.epochs,
        on_its_machine=on_its_machine,
    )


def _without_idle_source(instance: PlanningInstance) -> PlanningInstance:
    """The instance without a data source where later epochs leave that next to nothing to do, whatever the plan."""
    source = instance.data_source
    if source is None or source.epochs == 1:
        return instance
    apart = instance.served_bytes(is_first=True, is_last=False) + instance.served_bytes(is_first=False, is_last=True)
    whole = instance.training.mini_batch * max(apart, instance.served_bytes(is_first=True, is_last=True))
    # Over its card most where all have equal shares, over a link most where its device has all of them.
    over_card, over_link = source.fetched(1 / len(instance.devices)), source.fetched(1.0)
    seconds = whole * max(over_card / source.egress, over_link / min(source.bandwidth))
    return replace(instance, data_source=None) if seconds < _IDLE_SOURCE * round_bound_seconds(instance) else instance
