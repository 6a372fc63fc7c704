"""A job is opened on the devices beside everything else, where there is room for it, and what fails of it ends nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.agents import AgentLink
from edgeswarm_coordinator.background import Task
from edgeswarm_coordinator.job_opening import JobOpening, opening_request
from edgeswarm_coordinator.options import DiscoveryOptions
from edgeswarm_coordinator.progress import Progress
from edgeswarm_coordinator.reserving import Devices
from edgeswarm_coordinator.supervision import Supervision

from .stand_in_agent import StandInAgent

NAME = "nano-1-000001"
JOB = agent_pb2.JobReference(job_id="job", term=1)
GIB = 1 << 30


def loaded(held_bytes: int = 0) -> Any:
    return SimpleNamespace(bundle=SimpleNamespace(sha256="ab", job_file="train.py"), held_bytes=held_bytes)


def opened(held_bytes: int = 0) -> Any:
    return SimpleNamespace(held_bytes=held_bytes)


@pytest.mark.parametrize(
    ("file_bytes", "data_bytes", "asked"),
    [(GIB // 8, GIB // 8, True), (GIB // 8, GIB // 4, False), (GIB // 4 + 1, 0, None)],
)
def test_it_takes_no_more_than_a_part_of_the_memory(file_bytes: int, data_bytes: int, asked: bool | None) -> None:
    request = opening_request(loaded(file_bytes), opened(data_bytes), job=JOB, budget_bytes=GIB)
    assert (None if request is None else request.opens_data) == asked
    if request is not None:
        assert (request.job, request.bundle_sha256, request.job_file) == (JOB, "ab", "train.py")


@dataclass
class Desk:
    agent: StandInAgent
    links: dict[str, AgentLink]
    supervision: Supervision
    opening: JobOpening
    steps: list[str]

    def begin(self, *, loading: Callable[[], Any] = loaded, sending: Callable[[], None] = lambda: None) -> None:
        preparation: Any = SimpleNamespace(loading=Task(loading, name="load"), opening=Task(opened, name="open"))
        self.opening.begin(preparation, {NAME: Task(sending, name="send")}, self.links)


@pytest.fixture
def desk(folders: Folders, authority: CertificateAuthority) -> Iterator[Desk]:
    steps: list[str] = []
    with ExitStack() as stack:
        agent = stack.enter_context(StandInAgent.of(authority, NAME))
        progress = Progress(lambda event: steps.append(type(event).__name__))
        supervision = Supervision(cancel=threading.Event())
        devices = Devices(
            job=JOB,
            identity=Identity.load(folders.operator_dir, role=Role.OPERATOR),
            folders=folders,
            progress=progress,
            supervision=supervision,
        )
        stack.callback(devices.close, reason="the test is over")
        links = devices.find(DiscoveryOptions(peers=(agent.address,), mdns=False))
        devices.reserve(links)
        opening = JobOpening(job=JOB, devices=devices, progress=progress, supervision=supervision)
        steps.clear()
        yield Desk(agent, links, supervision, opening, steps)


def fails() -> Any:
    raise EdgeswarmError(ErrorCode.JOB_FILE, "It has no `job`.")


def test_a_device_opens_it_once_the_files_are_there(desk: Desk) -> None:
    arrived = threading.Event()
    desk.begin(sending=lambda: None if arrived.wait(10) else fails())
    assert desk.agent.opened == []
    arrived.set()
    desk.opening.make_quiet([])
    (request,) = desk.agent.opened
    assert request.opens_data
    assert desk.agent.renewed == []


def test_who_measures_starts_anew_first(desk: Desk) -> None:
    desk.begin()
    desk.opening.make_quiet([NAME])
    assert len(desk.agent.opened) == 1
    assert desk.agent.renewed == ["job"]
    assert desk.steps == ["StepStarted", "StepDone"]


def test_where_no_job_was_opened_nothing_is_waited_for(desk: Desk) -> None:
    desk.opening.make_quiet([NAME])
    assert desk.agent.renewed == []
    assert desk.steps == []


@pytest.mark.parametrize("where", ["on the device", "in the job", "on the way"])
def test_what_fails_ends_nothing(desk: Desk, where: str) -> None:
    """Those that are waited for tell it: the loading, the sending, and Prepare on a device of the plan."""
    if where == "on the device":
        desk.agent.opening_error = EdgeswarmError(ErrorCode.MODULE_MISSING, "There is no module sklearn.")
    failing: dict[str, dict[str, Any]] = {"in the job": {"loading": fails}, "on the way": {"sending": fails}}
    desk.begin(**failing.get(where, {}))
    desk.opening.make_quiet([])
    assert desk.supervision.state.error is None
    assert len(desk.agent.opened) == (where == "on the device")
