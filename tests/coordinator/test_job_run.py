from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import grpc

from edgeswarm.config import Folders
from edgeswarm.plan import Plan, Stage
from edgeswarm.samples import SampleOrder
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.agents import AgentLink
from edgeswarm_coordinator.deployment import Deployment
from edgeswarm_coordinator.job_run import JobRun
from edgeswarm_coordinator.progress import Progress
from edgeswarm_coordinator.round_history import RoundHistory
from edgeswarm_coordinator.supervision import Supervision

from .stand_in_agent import StandInAgent

NAME = "nano-1-000001"
JOB = agent_pb2.JobReference(job_id="job", term=1, epoch=1)
PLAN = Plan(planner="by hand", micro_batch=2, micro_batches=1, stages=(Stage(0, 1, {NAME: 2}, 1),))


class PreparingAgent(StandInAgent):
    """left_seconds: until the deadlines of the calls by which it was to prepare its worker."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self.left_seconds: list[float] = []

    def Prepare(self, request: agent_pb2.PrepareRequest, context: grpc.ServicerContext) -> agent_pb2.PrepareReply:
        self.left_seconds.append(context.time_remaining())
        return agent_pb2.PrepareReply(parameter_bytes=12)


def test_workers_have_an_hour_to_get_ready(folders: Folders, authority: CertificateAuthority) -> None:
    """Over slow Wi-Fi the layers of a large model take many minutes, in which heartbeats go on."""
    agent = PreparingAgent(authority.issue(node_id=NAME, role=Role.AGENT))
    supervision = Supervision(cancel=threading.Event())
    ports: list[dict[str, int]] = []

    def deployment(found: Mapping[str, int]) -> Deployment:
        ports.append(dict(found))
        return cast("Deployment", SimpleNamespace(requests=lambda: {NAME: agent_pb2.PrepareRequest(job=JOB)}))

    with agent:
        operator = Identity.load(folders.operator_dir, role=Role.OPERATOR)
        link = AgentLink.open(agent.address, node_id=NAME, identity=operator)
        supervision.watch(link, JOB)
        agent.send(heartbeat=agent_pb2.Heartbeat(worker=agent_pb2.WorkerProgress(tensor_port=7601)))
        run = JobRun(
            job=JOB,
            plan=PLAN,
            order=SampleOrder(4, 2, 0),
            rounds=2,
            links={NAME: link},
            progress=Progress(lambda event: None),
            supervision=supervision,
            history=RoundHistory(),
        )
        run.prepare(deployment)
        supervision.free(NAME)
        link.close()
    assert ports == [{NAME: 7601}]
    assert run.prepared[NAME].parameter_bytes == 12
    assert 3540 < agent.left_seconds[0] < 3660  # the call has been under way for a moment when it is looked at
