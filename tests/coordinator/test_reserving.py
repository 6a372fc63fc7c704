"""Devices that are given back stay so, whatever is still being asked of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator import reserving
from edgeswarm_coordinator.agents import AgentLink
from edgeswarm_coordinator.events import Event, Warning
from edgeswarm_coordinator.options import DiscoveryOptions
from edgeswarm_coordinator.progress import Progress
from edgeswarm_coordinator.reserving import Devices
from edgeswarm_coordinator.supervision import Supervision

from .cli.runs import GONE, leave_run
from .stand_in_agent import StandInAgent

NAME = "nano-1-000001"
SECONDS = 10.0


@dataclass
class Reserved:
    """One agent that is reserved."""

    agent: StandInAgent
    devices: Devices
    link: AgentLink


def devices_of(folders: Folders, said: Callable[[Event], None] = lambda _: None) -> Devices:
    return Devices(
        job=agent_pb2.JobReference(job_id="job", term=1, epoch=1),
        identity=Identity.load(folders.operator_dir, role=Role.OPERATOR),
        folders=folders,
        progress=Progress(said),
        supervision=Supervision(cancel=threading.Event()),
    )


@pytest.fixture
def reserved(folders: Folders, authority: CertificateAuthority) -> Iterator[Reserved]:
    with ExitStack() as stack:
        agent = stack.enter_context(StandInAgent.of(authority, NAME))
        devices = devices_of(folders)
        stack.callback(devices.close, reason="the test is over")
        links = devices.find(DiscoveryOptions(peers=(agent.address,), mdns=False))
        devices.reserve(links)
        yield Reserved(agent, devices, links[NAME])


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_one_is_watched_while_the_others_are_asked(folders: Folders, authority: CertificateAuthority) -> None:
    """It would be held for a minute where the command ends meanwhile."""
    first, slow = StandInAgent.of(authority, NAME), StandInAgent.of(authority, "nano-2-000002")
    slow.may_answer.clear()

    def answer_once_the_first_is_watched() -> None:
        if first.watched.wait(SECONDS / 2):
            slow.may_answer.set()

    answering = threading.Thread(target=answer_once_the_first_is_watched)
    with ExitStack() as stack:
        for agent in (first, slow):
            stack.enter_context(agent)
        devices = devices_of(folders)
        stack.callback(devices.close, reason="the test is over")
        links = devices.find(DiscoveryOptions(peers=(first.address, slow.address), mdns=False))
        answering.start()
        devices.reserve(links)
        answering.join()
        assert slow.may_answer.is_set()


def test_a_device_tells_whether_it_has_the_files(reserved: Reserved) -> None:
    assert reserved.devices.has_bundle(reserved.link, "known")
    assert not reserved.devices.has_bundle(reserved.link, "new")


def test_one_that_was_given_back_is_not_asked_again(reserved: Reserved) -> None:
    """The question reserves it: it would be taken, and nobody would watch."""
    reserved.devices.free([NAME], reason="enough")
    assert reserved.devices.has_bundle(reserved.link, "new")
    assert (reserved.agent.reserved, reserved.agent.released) == (["job"], ["job"])


def test_a_release_waits_for_a_question_under_way(reserved: Reserved) -> None:
    agent, devices = reserved.agent, reserved.devices
    agent.may_answer.clear()
    asking = threading.Thread(target=devices.has_bundle, args=(reserved.link, "new"))
    asking.start()
    wait_until(lambda: len(agent.reserved) == 2)
    freeing = threading.Thread(target=devices.free, args=([NAME],), kwargs={"reason": "enough"})
    freeing.start()
    freeing.join(0.3)
    assert agent.released == []
    agent.may_answer.set()
    for thread in (asking, freeing):
        thread.join(SECONDS)
    assert agent.released == ["job"]


def test_a_device_starts_a_new_worker_unless_it_was_given_back(reserved: Reserved) -> None:
    for task in reserved.devices.renew_workers([NAME]):
        task.result(SECONDS)
    assert reserved.agent.renewed == ["job"]
    reserved.devices.free([NAME], reason="enough")
    for task in reserved.devices.renew_workers([NAME]):
        task.result(SECONDS)
    assert reserved.agent.renewed == ["job"]


@pytest.mark.parametrize(
    ("code", "warnings"),
    [(ErrorCode.INTERNAL, 1), (ErrorCode.DEVICE_BUSY, 0)],  # another job's: it is free of us already
)
def test_a_device_that_cannot_be_freed_is_one_warning(
    folders: Folders, authority: CertificateAuthority, code: ErrorCode, warnings: int
) -> None:
    class Refusing(StandInAgent):
        def Release(self, request: agent_pb2.ReleaseRequest, context: grpc.ServicerContext) -> agent_pb2.ReleaseReply:
            raise EdgeswarmError(code, f"{NAME} keeps it.")

    said: list[Event] = []
    with Refusing.of(authority, NAME) as agent:
        devices = devices_of(folders, said.append)
        devices.reserve(devices.find(DiscoveryOptions(peers=(agent.address,), mdns=False)))
        devices.free([NAME], reason="enough")
        devices.close(reason="the test is over")
    messages = [event.message for event in said if isinstance(event, Warning)]
    assert messages == [f"{NAME} could not be freed ({NAME} keeps it.); it frees itself in a few seconds."] * warnings


def test_a_device_that_a_dead_training_of_this_machine_holds_is_waited_for(
    folders: Folders, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserving, "_LOOK_SECONDS", 0.02)
    said: list[Event] = []

    def listener(event: Event) -> None:
        said.append(event)
        if isinstance(event, Warning):
            agent.busy_with_job = ""  # the lease ends, once it is known to be waited for

    with StandInAgent.of(authority, NAME, busy_with_job="digits-1") as agent:
        devices = devices_of(folders, listener)
        options = DiscoveryOptions(peers=(agent.address,), mdns=False)
        with pytest.raises(EdgeswarmError, match="busy with job digits-1"):
            devices.find(options)  # somebody else's, as far as this machine knows
        leave_run(tmp_path / "home", "digits-1", process=GONE)
        links = devices.find(options)
        assert links[NAME].device.idle
        (warning,) = [event for event in said if isinstance(event, Warning)]
        assert f"{NAME} is still held by a training that has ended here" in warning.message
        devices.close(reason="the test is over")
