"""An instance once more, out of what was measured for it: by the curves as they are fitted now.

    cell.json     the instance as it was then
                  what its coordinator had measured  --+
    bench/jobs    its model's graph  ------------------+--> the instance as it would be now

For a change of the curves or of the memory model to be judged by runs that were measured before it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.instance import planning_instance
from edgeswarm_coordinator.model_facts import ModelFacts
from edgeswarm_coordinator.preparation import PreparedModel, load, open_data, prepare
from edgeswarm_coordinator.profile_cache import Profiles


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
        optimizer_state_factor=prepared.optimizer_state_factor,
        wire_dtype=prepared.wire_dtype,
        served=prepared.served,
    )
    devices = [
        Device(node_id=device.name, address="", hardware_key=device.profile, memory_budget_bytes=device.memory_bytes)
        for device in then.devices
    ]
    return planning_instance(facts, devices=devices, profiles=profiles, name=then.name)[0]
