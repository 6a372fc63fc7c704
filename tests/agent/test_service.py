"""The control service: a real daemon in this process, real mTLS, stand-in workers as real processes."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

import edgeswarm
from edgeswarm.config import AgentSettings
from edgeswarm.discovery import find_agents
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.v1 import agent_pb2, agent_pb2_grpc, worker_pb2
from edgeswarm_agent.daemon import Daemon
from edgeswarm_agent.supervisor import Pending
from tests.multicast_here import why_no_multicast

from .called_agent import SECONDS, StartAgent, Watch, archive_of, job, sha256
from .processes import Cluster, exists, group_members, wait_until
from .stand_in_worker import PORT

OPEN = {"Describe", "Ping"}  # to agents, too


def raises(code: ErrorCode, call: Callable[[], object], *words: str) -> EdgeswarmError:
    with pytest.raises(EdgeswarmError) as caught:
        call()
    assert caught.value.code is code, caught.value
    for word in words:
        assert word in str(caught.value)
    return caught.value


def test_describe_says_what_the_device_is_and_whether_it_is_busy(start_agent: StartAgent) -> None:
    agent = start_agent()
    description = agent.describe()
    assert description.node_id == agent.node_id
    assert description.version == edgeswarm.__version__
    assert description.slow_down == 3.0
    assert len(description.hardware_key) == 64
    assert description.hardware["slow_down"] == "3"
    assert 0 < description.memory_budget_bytes < description.memory_total_bytes
    assert description.instance
    assert description.busy_with_job == ""
    agent.reserve()
    busy = agent.describe()
    assert busy.busy_with_job == "digits-1"
    assert busy.busy_since.startswith("20")


def test_a_job_from_reservation_to_release(start_agent: StartAgent) -> None:
    agent = start_agent()
    archive = archive_of(**{"train.py": "job = 1\n"})
    assert agent.reserve(bundle=sha256(archive)) is False
    watch = Watch(agent)
    beat = watch.next("heartbeat", lambda beat: beat.worker.tensor_port == PORT)
    assert beat.worker.running
    assert beat.memory_available_bytes > 0
    assert agent.put(archive) == len(archive)
    assert agent.reserve(bundle=sha256(archive)) is True
    reply = agent.prepare(sha256(archive))
    assert reply.parameter_bytes == 12
    assert dict(reply.seconds) == {"train.py": 1.0}
    agent.start()
    assert watch.next("rounds").reports[0].round == 0
    assert watch.next("rounds").reports[0].round == 1
    assert watch.next("rounds_done").next_round == 2
    agent.start(2, 3, evaluate=True)
    assert watch.next("rounds").reports[0].round == 2
    assert watch.next("evaluation").round == 3  # before the rounds are said to be done
    assert watch.next("rounds_done").next_round == 3
    agent.call("Halt", agent_pb2.HaltRequest(job=job(epoch=1), reason="enough"))
    agent.release()
    watch.wait_for_end()
    assert not exists(beat.worker.process_id)
    assert agent.describe().busy_with_job == ""
    agent.release()


def test_a_worker_has_an_hour_to_get_ready(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over slow Wi-Fi the layers of a large model take many minutes, in which heartbeats go on."""
    waits: list[float] = []
    original = Pending.next

    def noted(pending: Pending, timeout_seconds: float) -> worker_pb2.WorkerEvent:
        waits.append(timeout_seconds)
        return original(pending, timeout_seconds)

    monkeypatch.setattr(Pending, "next", noted)
    agent = start_agent()
    archive = archive_of(**{"train.py": ""})
    agent.reserve()
    agent.put(archive)
    stub = agent_pb2_grpc.AgentStub(agent.channel)  # type: ignore[no-untyped-call]
    training = agent_pb2.TrainingSettings(bundle_sha256=sha256(archive))
    request = agent_pb2.PrepareRequest(job=job(epoch=1), training=training)
    for deadline_seconds in (None, 5000.0):  # its caller's may be later
        stub.Prepare(request, timeout=deadline_seconds)
    assert waits == [3600.0, 3600.0]


def test_a_second_job_is_refused_until_the_first_is_released(start_agent: StartAgent) -> None:
    agent = start_agent()
    agent.reserve("first")
    raises(ErrorCode.DEVICE_BUSY, lambda: agent.reserve("second"), agent.node_id, "first", "ada on desk")
    raises(ErrorCode.DEVICE_BUSY, lambda: agent.release("second"))
    agent.release("first")
    agent.reserve("second")


def test_calls_of_an_older_term_or_another_epoch_are_stale(start_agent: StartAgent) -> None:
    agent = start_agent()
    archive = archive_of(**{"train.py": ""})
    raises(ErrorCode.STALE_CALL, agent.start)
    agent.reserve()
    agent.put(archive)
    agent.prepare(sha256(archive), epoch=2)
    raises(ErrorCode.STALE_CALL, lambda: agent.start(epoch=1), "epoch 1", "epoch 2")
    agent.call("Reserve", agent_pb2.ReserveRequest(job=job(term=5, epoch=2)))
    raises(ErrorCode.STALE_CALL, lambda: agent.start(epoch=2), "term 1", "term 5")
    raises(ErrorCode.STALE_CALL, agent.release)


@pytest.mark.parametrize(
    ("mode", "expected"), [("exit-3", "exit code 3"), ("SIGILL", "SIGILL"), ("SIGKILL", "SIGKILL")]
)
def test_a_worker_that_dies_is_an_event_and_not_a_dead_device(
    start_agent: StartAgent, mode: str, expected: str
) -> None:
    agent = start_agent(mode)
    archive = archive_of(**{"train.py": ""})
    agent.reserve()
    watch = Watch(agent)
    agent.put(archive)
    agent.prepare(sha256(archive))
    raises(ErrorCode.WORKER_DIED, agent.start, expected, agent.node_id)
    failure = watch.next("failure")
    assert failure.worker_died
    assert json.loads(failure.error_json)["code"] == "worker-died"
    assert expected in json.loads(failure.error_json)["message"]
    assert watch.next("heartbeat").worker.running is False
    # A dead worker has halted, can't start, and a new one comes with the next Prepare.
    agent.call("Halt", agent_pb2.HaltRequest(job=job(epoch=1)))
    raises(ErrorCode.WORKER_DIED, agent.start)
    assert agent.prepare(sha256(archive), epoch=2).parameter_bytes == 12


def test_a_failure_that_the_worker_reports_names_its_suspects(start_agent: StartAgent) -> None:
    agent = start_agent("failure")
    archive = archive_of(**{"train.py": ""})
    agent.reserve()
    watch = Watch(agent)
    agent.put(archive)
    agent.prepare(sha256(archive))
    stub = agent_pb2_grpc.AgentStub(agent.channel)  # type: ignore[no-untyped-call]
    starting = stub.Start.future(agent_pb2.StartRequest(job=job(epoch=1)))
    failure = watch.next("failure")
    starting.cancel()
    assert not failure.worker_died
    assert list(failure.suspects) == ["nano-2"]


def test_a_watch_that_breaks_frees_the_device_after_the_lease(start_agent: StartAgent) -> None:
    agent = start_agent("after-hello:deaf")
    agent.reserve(lease_seconds=0.3)
    watch = Watch(agent)
    watch.next("rounds")  # from here on SIGTERM doesn't end it
    process_id = watch.next("heartbeat", lambda beat: beat.worker.tensor_port == PORT).worker.process_id
    watch.call.cancel()
    wait_until(lambda: agent.describe().busy_with_job == "")
    assert not exists(process_id)
    wait_until(lambda: not group_members(process_id))
    assert any("away for 0.3 s" in line for line in agent.said)
    agent.reserve("the next one")


def test_a_newer_watch_takes_over_and_the_older_one_ends(start_agent: StartAgent) -> None:
    agent = start_agent()
    agent.reserve(lease_seconds=0.2)
    first = Watch(agent)
    first.next("heartbeat")
    second = Watch(agent, term=2)
    second.next("heartbeat")
    first.wait_for_end()
    # Twice as long as the lease.
    ended = time.monotonic()
    while time.monotonic() < ended + 0.4:
        second.next("heartbeat")
    assert agent.describe().busy_with_job == "digits-1"


def test_profile_streams_curves_and_then_the_cost_of_the_process(start_agent: StartAgent) -> None:
    agent = start_agent()
    agent.reserve()
    layers = [agent_pb2.ProfileLayer(signature=name) for name in "ab"]
    replies = list(agent.call("Profile", agent_pb2.ProfileRequest(job=job(), layers=layers)))
    assert [reply.curve.signature for reply in replies[:-1]] == ["a", "b"]
    assert replies[-1].process.base_bytes == 7


def test_a_worker_that_measures_is_told_what_the_owner_lets_it_hold(start_agent: StartAgent) -> None:
    agent = start_agent(memory_limit_bytes=2**28)
    agent.reserve()
    replies = list(agent.call("Profile", agent_pb2.ProfileRequest(job=job())))
    assert replies[-1].process.base_bytes == 2**28, "the stand-in's answer to a limit"


def test_a_new_worker_takes_the_place_of_the_one_that_measured(start_agent: StartAgent) -> None:
    agent = start_agent()
    agent.reserve()
    watch = Watch(agent)
    first = watch.next("heartbeat", lambda beat: beat.worker.tensor_port == PORT).worker.process_id
    agent.call("RenewWorker", agent_pb2.RenewWorkerRequest(job=job()))
    assert not exists(first)
    second = watch.next("heartbeat", lambda beat: beat.worker.tensor_port == PORT and beat.worker.process_id != first)
    assert exists(second.worker.process_id)
    agent.release()
    while (event := watch.events.get(timeout=SECONDS)) is not None:
        assert not event.HasField("failure")  # nobody takes it for a death


def test_bundles_are_checked_and_the_newest_are_kept(start_agent: StartAgent) -> None:
    agent = start_agent()
    agent.reserve()
    archives = [archive_of(**{"train.py": f"job = {number}\n"}) for number in range(7)]
    for archive in archives:
        agent.put(archive)
    kept = [agent.reserve(bundle=sha256(archive)) for archive in archives]
    assert kept == [False, False, True, True, True, True, True]
    raises(ErrorCode.JOB_INVALID, lambda: agent.put(archives[0], "0" * 64), "damaged")
    raises(ErrorCode.JOB_INVALID, lambda: agent.put(archives[0], "../../etc"), "no sha256")
    raises(ErrorCode.JOB_INVALID, lambda: agent.prepare("0" * 64), "doesn't have the bundle")
    agent.put(b"this is no archive")
    raises(ErrorCode.BUNDLE_REFUSED, lambda: agent.prepare(sha256(b"this is no archive")))
    folder = agent.folders.cache_dir / "bundles"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_bundle_that_is_too_large_is_refused(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeswarm_agent.bundles.LARGEST_BUNDLE_BYTES", 1000)
    agent = start_agent()
    agent.reserve()
    raises(ErrorCode.JOB_INVALID, lambda: agent.put(bytes(2000)), "Leave data sets out")


def test_an_agent_may_measure_and_describe_but_not_control(start_agent: StartAgent, cluster: Cluster) -> None:
    agent = start_agent()
    other, _ = cluster.agent("other", "0b0b0b")
    channel = agent.dial(other)
    assert agent.call("Describe", agent_pb2.DescribeRequest(), channel).node_id == agent.node_id
    agent.call("Ping", agent_pb2.PingRequest(), channel)
    control = [method for method in agent_pb2.DESCRIPTOR.services_by_name["Agent"].methods if method.name not in OPEN]
    assert {"Reserve", "LoadAhead", "Profile", "Watch", "PutBundle"} <= {method.name for method in control}
    for method in control:
        raises(ErrorCode.TRUST, partial(call_with, channel, method))
    channel.close()


def call_with(channel: grpc.Channel, method: MethodDescriptor) -> None:
    request: Any = GetMessageClass(method.input_type)()
    if "job" in method.input_type.fields_by_name:
        request.job.CopyFrom(job())
    stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]
    try:
        answer = getattr(stub, method.name)(iter([request]) if method.client_streaming else request, timeout=SECONDS)
        if method.server_streaming:
            next(iter(answer))
    except grpc.RpcError as error:
        raise error_of_call(error, device="it") from error


def test_a_link_between_two_agents_is_measured(start_agent: StartAgent) -> None:
    one, two = start_agent(), start_agent()
    request = agent_pb2.ProbeLinkRequest(node_id=two.node_id, address=two.daemon.address, seconds=0.2)
    measurement = one.call("ProbeLink", request)
    assert measurement.bandwidth_bytes_per_second > 1e6
    assert 0 < measurement.latency_seconds < 1
    assert measurement.sent_bytes > 0
    gone = agent_pb2.ProbeLinkRequest(node_id=two.node_id, address="127.0.0.1:1", seconds=0.2)
    raises(ErrorCode.DEVICE_UNREACHABLE, lambda: one.call("ProbeLink", gone), two.node_id)


def test_stopping_ends_the_worker_and_the_watch_and_frees_the_port(start_agent: StartAgent, cluster: Cluster) -> None:
    agent = start_agent("after-hello:deaf")
    agent.reserve()
    watch = Watch(agent)
    watch.next("rounds")  # from here on SIGTERM doesn't end it
    process_id = watch.next("heartbeat", lambda beat: beat.worker.tensor_port == PORT).worker.process_id
    agent.daemon.stop()
    told = watch.next("failure", lambda failure: not failure.worker_died)
    assert f"The agent on {agent.node_id} was stopped." in told.error_json
    watch.wait_for_end()
    assert not exists(process_id)
    wait_until(lambda: not group_members(process_id))
    settings = AgentSettings(port=agent.daemon.port, listen_address="127.0.0.1", advertise=False)
    again = Daemon(settings, agent.folders, log=agent.said.append)
    assert again.port == agent.daemon.port
    again.stop()


@pytest.mark.thorough
def test_the_agent_is_found_by_mdns_and_is_gone_when_it_stops(cluster: Cluster) -> None:
    if reason := why_no_multicast():
        pytest.skip(reason)
    # A name of its own each time: another run of this test on this machine hears our packets.
    identity, folders = cluster.agent("box", secrets.token_hex(3))
    settings = AgentSettings(port=0, listen_address="127.0.0.1", interfaces=("lo",))
    daemon = Daemon(settings, folders, log=print)
    try:
        daemon.start()
        found = find_agents(identity.cluster_fingerprint, timeout_seconds=15.0, interfaces=("lo",), enough=bool)
    finally:
        daemon.stop()
    assert [(agent.node_id, agent.port) for agent in found] == [(identity.node_id, daemon.port)]
    assert find_agents(identity.cluster_fingerprint, timeout_seconds=2.0, interfaces=("lo",)) == []


def test_a_port_that_is_taken_is_said(start_agent: StartAgent) -> None:
    agent = start_agent()
    settings = AgentSettings(port=agent.daemon.port, listen_address="127.0.0.1", advertise=False)
    raises(ErrorCode.PORT_IN_USE, lambda: Daemon(settings, agent.folders, log=print))


@pytest.mark.parametrize("address", ["203.0.113.9", "two words", "a..b"])
def test_an_address_on_which_nobody_can_listen_is_a_wrong_setting(cluster: Cluster, address: str) -> None:
    folders = cluster.agent("box")[1]
    for port in (0, 7600):
        settings = AgentSettings(port=port, listen_address=address, advertise=False)
        with pytest.raises(EdgeswarmError, match="Can't listen on") as caught:
            Daemon(settings, folders, log=print)
        assert caught.value.code is ErrorCode.CONFIG


def test_a_log_folder_that_cannot_be_written_leaves_the_device_idle(start_agent: StartAgent) -> None:
    agent = start_agent()
    blocked: Path = agent.folders.state_dir / "logs"
    blocked.write_text("in the way")
    raises(ErrorCode.OUTPUT_FAILED, agent.reserve, "worker.log")
    assert agent.describe().busy_with_job == ""
    blocked.unlink()
    agent.reserve()
