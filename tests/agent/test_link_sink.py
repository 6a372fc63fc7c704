from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.wire.byte_stream import at_port, open_stream
from edgeswarm.wire.channel import raw_unary, secure_channel, secure_server
from edgeswarm.wire.frames import SIZE
from edgeswarm.wire.link_probe import AGENT_SERVICE, CLOSE_SECTION, OPEN, measure_link
from edgeswarm.wire.v1 import agent_pb2, agent_pb2_grpc, data_pb2
from edgeswarm_agent import link_sink
from edgeswarm_agent.link_sink import LinkSink
from tests.stream_end import ends

PROBER, FAR_END, OTHER = "prober-000001", "far-end-000002", "other-000003"


class _Ping(agent_pb2_grpc.AgentServicer):
    def Ping(self, request: agent_pb2.PingRequest, context: object) -> agent_pb2.PingReply:
        return agent_pb2.PingReply()


class FarEnd:
    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority.create(folder)
        self.identities = {name: authority.issue(node_id=name, role=Role.AGENT) for name in (PROBER, FAR_END, OTHER)}
        self.sink = LinkSink(self.identities[FAR_END], address="127.0.0.1:0")
        self.server, port = secure_server(
            self.identities[FAR_END], address="127.0.0.1:0", workers=4, handlers=[self.sink.handler()]
        )
        agent_pb2_grpc.add_AgentServicer_to_server(_Ping(), self.server)  # type: ignore[no-untyped-call]
        self.server.start()
        self.address = f"127.0.0.1:{port}"

    def stop(self) -> None:
        self.sink.stop()
        self.server.stop(grace=0).wait(1)


@pytest.fixture
def far_end(tmp_path: Path) -> Iterator[FarEnd]:
    made = FarEnd(tmp_path / "authority")
    yield made
    made.stop()


def test_a_link_is_measured_with_what_a_byte_costs_either_end(far_end: FarEnd) -> None:
    found = measure_link(identity=far_end.identities[PROBER], node_id=FAR_END, address=far_end.address, seconds=0.2)
    assert found.bandwidth_bytes_per_second > 1e6
    assert 0 < found.latency_seconds < 1
    assert found.sent_bytes > 0
    # Encryption alone takes some 0.1 CPU seconds a GB on anything that we know.
    assert 1e-11 < found.send_byte_cpu_seconds < 1e-6
    assert 1e-11 < found.receive_byte_cpu_seconds < 1e-6


def test_a_far_end_that_is_gone_is_named(far_end: FarEnd) -> None:
    far_end.stop()
    with pytest.raises(EdgeswarmError, match=FAR_END) as caught:
        measure_link(identity=far_end.identities[PROBER], node_id=FAR_END, address=far_end.address, seconds=0.1)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_a_ticket_is_good_for_its_owner_alone(far_end: FarEnd) -> None:
    channels = {
        name: secure_channel(far_end.address, identity=far_end.identities[name], node_id=FAR_END)
        for name in (PROBER, OTHER)
    }
    ticket = data_pb2.StreamTicket.FromString(raw_unary(channels[PROBER], AGENT_SERVICE, OPEN)(b"", timeout=10))
    thief = open_stream(at_port(far_end.address, ticket.port), identity=far_end.identities[OTHER], node_id=FAR_END)
    thief.send(ticket.ticket)
    assert ends(thief)
    thief.close()
    call = raw_unary(channels[OTHER], AGENT_SERVICE, CLOSE_SECTION)
    with pytest.raises(Exception, match="nobody measures"):
        call(ticket.ticket, timeout=10)
    for channel in channels.values():
        channel.close()


def test_sections_that_nobody_asks_for_end_the_stream(far_end: FarEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of the cluster that sends ends of sections without end would fill the agent's memory."""
    monkeypatch.setattr(link_sink, "_SECTION_SECONDS", 0.2)
    channel = secure_channel(far_end.address, identity=far_end.identities[PROBER], node_id=FAR_END)
    ticket = data_pb2.StreamTicket.FromString(raw_unary(channel, AGENT_SERVICE, OPEN)(b"", timeout=10))
    stream = open_stream(at_port(far_end.address, ticket.port), identity=far_end.identities[PROBER], node_id=FAR_END)
    stream.send(ticket.ticket)
    with contextlib.suppress(OSError):  # it may be gone before all are sent
        stream.send(SIZE.pack(0) * 100)
    assert ends(stream)
    stream.close()
    channel.close()
