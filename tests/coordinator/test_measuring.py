"""What was measured is kept at once: a measurement that fails costs nothing but itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.background import Task
from edgeswarm_coordinator.deployment import Place
from edgeswarm_coordinator.events import PROFILE_LAYERS, StepStarted, ignore
from edgeswarm_coordinator.measuring import Measuring
from edgeswarm_coordinator.model_facts import ModelFacts
from edgeswarm_coordinator.options import DiscoveryOptions
from edgeswarm_coordinator.process_costs import ProcessCosts
from edgeswarm_coordinator.profile_cache import ProfileCache, Profiles
from edgeswarm_coordinator.progress import Progress
from edgeswarm_coordinator.reserving import Devices
from edgeswarm_coordinator.supervision import Supervision

from .small_graphs import small_graph
from .stand_in_agent import StandInAgent

QUICK, FAILING = "nano-1-000001", "nx-1-000002"
JOB = agent_pb2.JobReference(job_id="job", term=1, epoch=1)
# Too few layers for stages that check their sums.
FACTS = ModelFacts(
    small_graph([["a"], ["b"]], signatures=["stem", "head"]), "float32", batch_size=1, optimizer_state_factor=1.0
)


class ProfilingAgent(StandInAgent):
    """Of a kind of hardware of its own. fails_after: what it waits for, and fails then; None: it times each layer."""

    def __init__(self, identity: Identity, *, fails_after: threading.Event | None = None) -> None:
        super().__init__(identity)
        self.fails_after = fails_after

    def Describe(
        self, request: agent_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> agent_pb2.DeviceDescription:
        description = super().Describe(request, context)
        description.hardware_key = self.identity.node_id
        return description

    def Profile(
        self, request: agent_pb2.ProfileRequest, context: grpc.ServicerContext
    ) -> Iterator[agent_pb2.ProfileReply]:
        if self.fails_after is not None:
            self.fails_after.wait(10.0)
            raise EdgeswarmError(ErrorCode.WORKER_FAILED, f"The worker on {self.identity.node_id} failed.")
        for layer in request.layers:
            curve = agent_pb2.LayerCurve(
                signature=layer.signature, batch_sizes=[1], forward_seconds=[0.25], backward_seconds=[0.5]
            )
            yield agent_pb2.ProfileReply(curve=curve)
        yield agent_pb2.ProfileReply(process=agent_pb2.ProcessCost(base_bytes=7, stretch=1.0))


class ToldCache(ProfileCache):
    """kept: set once something was added."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, warn=lambda _: None)
        self.kept = threading.Event()

    def add(self, measured: Profiles) -> None:
        super().add(measured)
        self.kept.set()


def measuring_with(
    cache: ProfileCache,
    folders: Folders,
    *,
    progress: Progress,
    supervision: Supervision,
    after: tuple[Task[None], ...],
) -> tuple[Measuring, Devices]:
    identity = Identity.load(folders.operator_dir, role=Role.OPERATOR)
    devices = Devices(job=JOB, identity=identity, folders=folders, progress=progress, supervision=supervision)
    measuring = Measuring(
        cache=cache,
        fresh=False,
        identity=identity,
        job=JOB,
        devices=devices,
        progress=progress,
        supervision=supervision,
        after=after,
    )
    return measuring, devices


def test_nothing_is_measured_while_the_jobs_files_are_on_their_way(
    tmp_path: Path, folders: Folders, authority: CertificateAuthority
) -> None:
    supervision = Supervision(cancel=threading.Event())
    steps: list[str] = []
    begun = threading.Event()

    def send() -> None:
        begun.wait(10.0)
        time.sleep(0.3)
        steps.append("sent")

    measuring, devices = measuring_with(
        ProfileCache(tmp_path / "profiles", warn=lambda _: None),
        folders,
        progress=Progress(lambda event: steps.append(event.step) if isinstance(event, StepStarted) else None),
        supervision=supervision,
        after=(supervision.spawn(send, name="send"),),
    )
    with ExitStack() as stack:
        agent = stack.enter_context(ProfilingAgent(authority.issue(node_id=QUICK, role=Role.AGENT)))
        stack.callback(devices.close, reason="the test is over")
        links = devices.find(DiscoveryOptions(peers=(agent.address,), mdns=False))
        begun.set()
        measuring.profiles(FACTS, links=links, places=dict.fromkeys(links, Place("127.0.0.1", "127.0.0.1")))
    assert steps.index("sent") < steps.index(PROFILE_LAYERS)


def test_what_a_device_has_measured_is_kept_where_another_fails(
    tmp_path: Path, folders: Folders, authority: CertificateAuthority
) -> None:
    cache = ToldCache(tmp_path / "profiles")
    progress, supervision = Progress(ignore), Supervision(cancel=threading.Event())
    measuring, devices = measuring_with(cache, folders, progress=progress, supervision=supervision, after=())
    with ExitStack() as stack:
        agents = [
            stack.enter_context(agent)
            for agent in (
                ProfilingAgent(authority.issue(node_id=QUICK, role=Role.AGENT)),
                ProfilingAgent(authority.issue(node_id=FAILING, role=Role.AGENT), fails_after=cache.kept),
            )
        ]
        stack.callback(devices.close, reason="the test is over")
        links = devices.find(DiscoveryOptions(peers=tuple(agent.address for agent in agents), mdns=False))
        places = dict.fromkeys(links, Place("127.0.0.1", "127.0.0.1"))
        with pytest.raises(EdgeswarmError, match=f"The worker on {FAILING} failed"):
            measuring.profiles(FACTS, links=links, places=places)
    found = cache.load()
    assert set(found.curves) == {(QUICK, "float32", "stem"), (QUICK, "float32", "head")}
    assert found.processes == {QUICK: ProcessCosts(base_bytes=7)}
