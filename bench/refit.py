"""An instance once more, out of what was measured for it: by the curves as they are fitted now.

    cell.json     the instance as it was then
                  what its coordinator had measured  --+
    bench/jobs    its model's graph  ------------------+--> the instance as it would be now

What was measured several times counts by its median. A change of the curves or of the memory model can be judged by runs that
were measured before it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.instance import planning_instance
from edgeswarm_coordinator.model_facts import ModelFacts
from edgeswarm_coordinator.preparation import PreparedModel, load, open_data, prepare
from edgeswarm_coordinator.process_costs import ProcessCosts
from edgeswarm_coordinator.profile_cache import Curve, Link, Profiles


def prepared_job(path: Path) -> PreparedModel:
    """What is known of a job's model."""
    loaded = load(path)
    with tempfile.TemporaryDirectory() as folder:
        return prepare(loaded, open_data(loaded), snapshot_folder=Path(folder))


def instance_again(then: PlanningInstance, prepared: PreparedModel, *, profiles: Profiles) -> PlanningInstance:
    """profiles: what `then` was made of."""
    facts = ModelFacts(
        layer_graph=prepared.layer_graph,
        dtype=prepared.dtype,
        batch_size=then.training.mini_batch,
        rest=then.training.rest,
        optimizer_state_factor=prepared.optimizer_state_factor,
        wire_dtype=prepared.wire_dtype,
        served=prepared.served,
        met_rows=prepared.met_rows,
        loss_bytes=prepared.loss_bytes,
        target_bytes=prepared.target_bytes,
    )
    devices = [
        Device(
            node_id=device.name,
            address="",
            hardware={"cpu": "this machine's"},  # of all devices that it emulates
            hardware_key=device.profile,
            memory_budget_bytes=device.memory_bytes,
        )
        for device in then.devices
    ]
    there = () if then.data_source is None else then.data_source.on_its_machine
    here = [device.name for device, is_there in zip(then.devices, there, strict=False) if is_there]
    return planning_instance(facts, devices=devices, profiles=profiles, name=then.name, here=here)[0]


def median_profiles(found: Sequence[Profiles]) -> Profiles:
    """What is in all of them, by its medians; of a curve the batch sizes that at least half of them have."""
    merged = Profiles()
    for key in set.intersection(*(set(profiles.curves) for profiles in found)):
        merged.curves[key] = _median_curve([profiles.curves[key] for profiles in found])
    for device in set.intersection(*(set(profiles.processes) for profiles in found)):
        merged.processes[device] = _median_costs([profiles.processes[device] for profiles in found])
    for pair in set.intersection(*(set(profiles.links) for profiles in found)):
        merged.links[pair] = _median_link([profiles.links[pair] for profiles in found])
    return merged


def _median_curve(curves: Sequence[Curve]) -> Curve:
    counts = Counter(size for curve in curves for size in curve.batch_sizes)
    sizes = tuple(sorted(size for size, count in counts.items() if 2 * count >= len(curves)))

    def medians(what: str) -> tuple[float, ...]:
        values: dict[int, list[float]] = {size: [] for size in sizes}
        for curve in curves:
            for size, value in zip(curve.batch_sizes, getattr(curve, what), strict=False):
                if size in values:
                    values[size].append(value)
        return tuple(statistics.median(each) for each in values.values() if each)

    return Curve(
        batch_sizes=sizes,
        forward_seconds=medians("forward_seconds"),
        backward_seconds=medians("backward_seconds"),
        asked=curves[0].asked,
        relative_errors=medians("relative_errors"),
        peak_bytes=tuple(map(round, medians("peak_bytes"))),
        held_sample_bytes=statistics.median(curve.held_sample_bytes for curve in curves),
        rest_part=statistics.median(curve.rest_part for curve in curves),
        weights_part=statistics.median(curve.weights_part for curve in curves),
    )


def _median_costs(costs: Sequence[ProcessCosts]) -> ProcessCosts:
    """Of the numbers; what is no number as the first one has it."""
    numbers: dict[str, Any] = {
        field.name: type(value)(statistics.median(getattr(each, field.name) for each in costs))
        for field in fields(ProcessCosts)
        if isinstance(value := getattr(costs[0], field.name), int | float)
    }
    return replace(costs[0], **numbers)


def _median_link(links: Sequence[Link]) -> Link:
    """As if it were measured now: how long ago the cell was doesn't matter here."""
    names = [field.name for field in fields(Link) if isinstance(getattr(links[0], field.name), float)]
    numbers: dict[str, Any] = {name: statistics.median(getattr(each, name) for each in links) for name in names}
    return replace(links[0], **numbers | {"measured_at": time.time()})
