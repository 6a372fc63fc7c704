"""What `train` decides between its steps, without devices; the whole of it is in tests/e2e."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from edgeswarm.config import Folders
from edgeswarm.plan import IdleDevice, Plan, Prediction, StagePrediction
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm_coordinator.agents import AgentLink
from edgeswarm_coordinator.command import Command, running_command
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.events import Event, Warning
from edgeswarm_coordinator.options import TrainOptions
from edgeswarm_coordinator.preparation import PreparedModel
from edgeswarm_coordinator.train_job import TrainJob, needed_bytes
from edgeswarm_coordinator.unfinished import UnfinishedTraining

from .checkpoints import PLAN, manifest
from .small_graphs import small_graph

FIRST, SECOND = PLAN.devices
STAGE = StagePrediction(1.0, 1.0, 0.0, 0.0)
PREDICTED = dataclasses.replace(
    PLAN,
    idle=(IdleDevice("slow-000003", "slower with it"),),
    predicted=Prediction(1.0, 1.0, {FIRST: 1000, SECOND: 500}, (STAGE, STAGE), "nothing"),
)


class Resuming:
    """A `train --resume` that has found its devices."""

    def __init__(self, command: Command, events: list[Event], folder: Path) -> None:
        self._command, self._events, self._folder = command, events, folder

    def plan(self, before: Plan, memory_bytes: dict[str, int], *, new_plan: bool = False) -> Plan | None:
        options = TrainOptions(Path("job.py"), resume=True, new_plan=new_plan)
        job = TrainJob(self._command, options, UnfinishedTraining(self._folder))
        links = {
            node_id: cast("AgentLink", SimpleNamespace(device=Device(node_id, "", memory_budget_bytes=size)))
            for node_id, size in memory_bytes.items()
        }
        return job._plan_of_before(manifest(8, plan=before), links)

    @property
    def warnings(self) -> list[str]:
        return [event.message for event in self._events if isinstance(event, Warning)]


@pytest.fixture
def resuming(folders: Folders, authority: CertificateAuthority, tmp_path: Path) -> Iterator[Resuming]:
    events: list[Event] = []
    with running_command("job", folders=folders, listener=events.append, cancel=None) as command:
        yield Resuming(command, events, tmp_path / "job.unfinished")


def test_a_training_goes_on_with_its_plan(resuming: Resuming) -> None:
    assert resuming.plan(PREDICTED, {FIRST: 1000, SECOND: 500, "slow-000003": 9}) == PREDICTED
    assert resuming.plan(PLAN, {FIRST: 1, SECOND: 1, "new-000004": 9}) == PLAN
    assert resuming.warnings == []


@pytest.mark.parametrize(
    ("memory_bytes", "new_plan", "why_not"),
    [
        ({FIRST: 1000}, False, f"{SECOND} is not at hand"),
        ({FIRST: 1000, SECOND: 400}, False, f"{SECOND} may use less memory now than it takes"),
        ({FIRST: 1000, SECOND: 500}, True, "the command line asks for another one"),
    ],
)
def test_another_plan_than_before_is_told(
    resuming: Resuming, memory_bytes: dict[str, int], new_plan: bool, why_not: str
) -> None:
    assert resuming.plan(PREDICTED, memory_bytes, new_plan=new_plan) is None
    assert resuming.warnings == [
        f"The training goes on with another plan than before ({why_not}); its result is as good, and not the same to the "
        "last bit."
    ]


def test_devices_that_came_since_are_told_and_left_out(resuming: Resuming) -> None:
    found = {FIRST: 1000, SECOND: 500, "new-000004": 9}
    assert resuming.plan(PREDICTED, found) == PREDICTED
    assert resuming.plan(PREDICTED, {**found, "new-000005": 9}) == PREDICTED
    rest = "not in the plan that goes on; --planner edgeswarm makes another one."
    assert resuming.warnings == [f"new-000004 is {rest}", f"new-000004, new-000005 are {rest}"]


def test_the_room_for_checkpoints_and_result() -> None:
    """Three tensors of 32 bytes, of which two are trained with twice their size as state: 224 for a checkpoint."""
    graph = small_graph([["first"], ["second", "frozen"]])
    prepared = PreparedModel(
        layer_graph=graph,
        dtype="float32",
        dataset_length=50,
        loss_counts=False,
        optimizer_state_factor=2.0,
        wire_dtype=None,
        unused={},
    )
    assert prepared.checkpoint_bytes == 224
    assert needed_bytes(prepared) == 2 * 224
    assert needed_bytes(dataclasses.replace(prepared, evaluation_graph=graph)) == 3 * 224 + 96
