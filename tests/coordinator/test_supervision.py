from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.events import Event, Warning
from edgeswarm_coordinator.job_state import Phase
from edgeswarm_coordinator.options import DiscoveryOptions
from edgeswarm_coordinator.progress import Progress
from edgeswarm_coordinator.reserving import Devices
from edgeswarm_coordinator.supervision import Supervision, error_in
from edgeswarm_coordinator.suspended import SleepWatch

from .stand_in_agent import StandInAgent

JOB = agent_pb2.JobReference(job_id="job", term=1, epoch=1)
SECONDS = 10.0  # a test that waits longer has failed


class Cluster:
    """Two agents, reserved and watched."""

    def __init__(self, folders: Folders, authority: CertificateAuthority, stack: ExitStack) -> None:
        self.cancel = threading.Event()
        self.events: list[Event] = []
        self.supervision = Supervision(cancel=self.cancel)
        self.one = stack.enter_context(StandInAgent.of(authority, "nano-1-000001"))
        self.two = stack.enter_context(StandInAgent.of(authority, "nano-2-000002"))
        self.devices = Devices(
            job=JOB,
            identity=Identity.load(folders.operator_dir, role=Role.OPERATOR),
            folders=folders,
            progress=Progress(self.events.append),
            supervision=self.supervision,
        )
        stack.callback(self.devices.close, reason="the test is over")
        options = DiscoveryOptions(peers=(self.one.address, self.two.address), mdns=False)
        self.links = self.devices.find(options)
        self.devices.reserve(self.links)

    @property
    def warnings(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Warning)]

    def wait(self, done: Callable[[], bool] = lambda: False) -> None:
        self.supervision.wait_until(done, timeout_seconds=SECONDS, late=lambda: pytest.fail("it takes too long"))


def test_a_machine_that_slept_says_so(cluster: Cluster) -> None:
    cluster.wait(lambda: True)
    asleep = iter([0.0, 3480.0])
    cluster.supervision._sleep = SleepWatch(lambda: next(asleep, 3480.0))
    with pytest.raises(EdgeswarmError, match="This machine slept for 58 min"):
        cluster.wait()
    assert cluster.supervision.state.phase is Phase.FAILED


@pytest.fixture
def cluster(folders: Folders, authority: CertificateAuthority) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(folders, authority, stack)


def test_heartbeats_tell_where_workers_listen(cluster: Cluster) -> None:
    for agent, port in ((cluster.one, 7601), (cluster.two, 7602)):
        agent.send(heartbeat=agent_pb2.Heartbeat(worker=agent_pb2.WorkerProgress(tensor_port=port)))
    cluster.wait(lambda: len(cluster.supervision.tensor_ports) == 2)
    assert cluster.supervision.tensor_ports == {"nano-1-000001": 7601, "nano-2-000002": 7602}


def test_a_sign_of_life_counts_when_it_came_and_not_when_it_is_taken(cluster: Cluster) -> None:
    supervision = cluster.supervision
    before = time.monotonic()
    cluster.one.send(heartbeat=agent_pb2.Heartbeat())
    while supervision._queue.empty():
        time.sleep(0.01)
    came = time.monotonic()
    time.sleep(0.1)  # the main thread is at something else
    supervision.pump()
    assert before <= supervision.state.last_heard["nano-1-000001"] <= came


def test_where_an_ended_worker_listened_is_forgotten(cluster: Cluster) -> None:
    supervision = cluster.supervision

    def beat(process_id: int, port: int) -> None:
        worker = agent_pb2.WorkerProgress(process_id=process_id, tensor_port=port)
        cluster.one.send(heartbeat=agent_pb2.Heartbeat(worker=worker))

    beat(11, 7601)
    cluster.wait(lambda: supervision.tensor_ports == {"nano-1-000001": 7601})
    supervision.expect_new_worker("nano-1-000001")
    assert supervision.tensor_ports == {}
    told: list[str] = []
    supervision.on_action = lambda device, action: told.append(action)
    beat(11, 7601)  # under way as the worker was ended
    cluster.one.send(
        heartbeat=agent_pb2.Heartbeat(worker=agent_pb2.WorkerProgress(process_id=11, tensor_port=7601, action="idle"))
    )
    cluster.wait(lambda: bool(told))
    assert supervision.tensor_ports == {}
    beat(12, 7603)
    cluster.wait(lambda: supervision.tensor_ports == {"nano-1-000001": 7603})


def test_what_a_worker_does_is_told_when_it_changes(cluster: Cluster) -> None:
    told: list[tuple[str, str]] = []
    cluster.supervision.on_action = lambda device, action: told.append((device, action))
    for action in ("fetch layers", "fetch layers", "rehearse"):
        worker = agent_pb2.WorkerProgress(tensor_port=7601, action=action)
        cluster.one.send(heartbeat=agent_pb2.Heartbeat(worker=worker))
    cluster.wait(lambda: ("nano-1-000001", "rehearse") in told)
    assert told == [("nano-1-000001", "fetch layers"), ("nano-1-000001", "rehearse")]


def test_files_that_are_sent_say_how_far_they_are(cluster: Cluster) -> None:
    archive = bytes(range(256)) * 8000
    sent: list[int] = []
    cluster.links["nano-1-000001"].put_bundle(
        JOB, sha256="abc", archive=archive, timeout_seconds=SECONDS, sent=sent.append
    )
    assert cluster.one.bundle == archive
    assert sent == sorted(sent)
    assert sent == [512 * 1024 * number for number in range(1, 4)]


def test_rounds_are_handed_on_and_their_end_is_noticed(cluster: Cluster) -> None:
    rounds: list[tuple[str, int]] = []
    cluster.supervision.on_round = lambda device, report: rounds.append((device, report.round))
    cluster.supervision.begin(Phase.RUNNING, epoch=1, end_round=2)
    for agent in (cluster.one, cluster.two):
        reports = [agent_pb2.RoundReport(epoch=1, round=number) for number in range(2)]
        agent.send(rounds=agent_pb2.RoundReports(reports=reports))
        agent.send(rounds_done=agent_pb2.RoundsDone(epoch=1, next_round=2))
    cluster.wait(lambda: cluster.supervision.state.phase is Phase.GATHERING)
    assert sorted(rounds) == [(name, number) for name in ("nano-1-000001", "nano-2-000002") for number in range(2)]


def test_a_dead_worker_explains_the_broken_link_that_came_first(cluster: Cluster) -> None:
    link = EdgeswarmError(ErrorCode.LINK_BROKEN, "The link to nano-1-000001 broke.")
    death = EdgeswarmError(ErrorCode.WORKER_DIED, "The worker on nano-1-000001 was killed: out of memory.")
    cluster.two.send(failure=agent_pb2.Failure(error_json=json.dumps(link.to_json()), suspects=["nano-1-000001"]))
    cluster.one.send(failure=agent_pb2.Failure(error_json=json.dumps(death.to_json()), worker_died=True))
    with pytest.raises(EdgeswarmError) as caught:
        cluster.wait()
    assert caught.value.to_json() == death.to_json()


def test_an_agent_that_is_killed_is_lost(cluster: Cluster) -> None:
    assert cluster.one.watched.wait(SECONDS)
    cluster.one.stop()
    with pytest.raises(EdgeswarmError) as caught:
        cluster.wait()
    assert caught.value.code is ErrorCode.DEVICE_LOST
    assert "nano-1-000001" in caught.value.message
    cluster.devices.close(reason="a device was lost")
    assert cluster.two.released == ["job"]
    assert cluster.warnings == []  # that nano-1 could not be freed is no news


def test_an_agent_that_ends_the_stream_dropped_the_job(cluster: Cluster) -> None:
    cluster.one.events.put(None)
    with pytest.raises(EdgeswarmError) as caught:
        cluster.wait()
    assert "The agent on nano-1-000001 dropped the job" in caught.value.message


def test_freed_devices_are_not_watched_any_more(cluster: Cluster) -> None:
    cluster.devices.free(["nano-1-000001"], reason="not in the plan")
    assert cluster.one.released == ["job"]
    for _ in range(5):
        cluster.supervision.pump()
    assert cluster.supervision.state.devices == ("nano-2-000002",)
    assert cluster.supervision.state.error is None
    cluster.devices.close(reason="done")
    assert (cluster.one.released, cluster.two.released) == (["job"], ["job"])
    assert cluster.warnings == []


def test_cancel_is_noticed_wherever_we_wait(cluster: Cluster) -> None:
    never = threading.Event()
    task = cluster.supervision.spawn(never.wait, name="for ever")
    cluster.cancel.set()
    with pytest.raises(EdgeswarmError) as caught:
        cluster.supervision.wait(task)
    assert caught.value.code is ErrorCode.INTERRUPTED
    never.set()


def test_a_task_that_fails_ends_the_wait_for_another(cluster: Cluster) -> None:
    def fail() -> None:
        raise EdgeswarmError(ErrorCode.JOB_FILE, "There is no job file x.py.")

    never = threading.Event()
    cluster.supervision.spawn(fail, name="load job")
    task = cluster.supervision.spawn(never.wait, name="for ever")
    with pytest.raises(EdgeswarmError, match="no job file"):
        cluster.supervision.wait(task)
    never.set()


def test_an_error_of_our_own_helper_is_noticed(cluster: Cluster) -> None:
    cluster.supervision.own_check = lambda: EdgeswarmError(ErrorCode.DATA_FAILED, "The data service ended.")
    with pytest.raises(EdgeswarmError, match="data service ended"):
        cluster.wait()


def test_a_busy_device_is_left_out_unless_it_was_asked_for(cluster: Cluster, authority: CertificateAuthority) -> None:
    with StandInAgent.of(authority, "nx-1-000003", busy_with_job="yesterday's") as busy:
        options = DiscoveryOptions(peers=(cluster.one.address, busy.address), mdns=False)
        assert "nx-1-000003" not in cluster.devices.find(options)
        assert any("nx-1-000003 is left out: it is busy" in warning for warning in cluster.warnings)
        assert "nx-1-000003" in cluster.devices.find(options, busy_too=True)
        with pytest.raises(EdgeswarmError, match="yesterday's") as caught:
            cluster.devices.find(options, wanted=("nx-1",))
        assert caught.value.code is ErrorCode.DEVICE_BUSY


def test_the_answer_to_reserve_says_whether_the_files_are_there(cluster: Cluster) -> None:
    link = cluster.links["nano-1-000001"]
    assert cluster.devices.has_bundle(link, "known")
    assert not cluster.devices.has_bundle(link, "new")


def test_a_failure_that_cannot_be_read_is_still_one() -> None:
    error = error_in(agent_pb2.Failure(error_json="[]", worker_died=True), device="nano-1")
    assert error.code is ErrorCode.WORKER_DIED
    assert "nano-1" in error.message
