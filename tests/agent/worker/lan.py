"""Several workers' ends in one process: real servers, real TLS, real streams. For tests of what goes between workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm_agent.worker.egress import EgressScheduler
from edgeswarm_agent.worker.epoch_state import EpochSwitch
from edgeswarm_agent.worker.links import OutboundLinks
from edgeswarm_agent.worker.mailbox import Mailbox
from edgeswarm_agent.worker.tensor_server import InboundEpoch, TensorServer

JOB = "job-1"


@dataclass
class WorkerEnd:
    """What one worker has of an epoch to talk to the others."""

    name: str
    identity: Identity
    server: TensorServer
    switch: EpochSwitch
    mailbox: Mailbox
    egress: EgressScheduler
    links: OutboundLinks

    def open_epoch(self, senders: Sequence[str]) -> None:
        epoch = self.mailbox.epoch
        self.server.open_epoch(InboundEpoch(JOB, epoch, senders, self.mailbox, self.switch))


class Lan:
    """Workers that can send to each other. Every one is open to all others unless `opened` is False."""

    def __init__(self, folder: Path, names: Sequence[str], *, epoch: int = 1, opened: bool = True) -> None:
        authority = CertificateAuthority.create(folder)
        self.ends: dict[str, WorkerEnd] = {}
        for name in names:
            identity = authority.issue(node_id=name, role=Role.AGENT)
            switch = EpochSwitch()
            egress = EgressScheduler(switch)
            links = OutboundLinks(identity, job_id=JOB, epoch=epoch, egress=egress, switch=switch)
            server = TensorServer(identity, address="127.0.0.1:0")
            self.ends[name] = WorkerEnd(name, identity, server, switch, Mailbox(switch, epoch=epoch), egress, links)
        if opened:
            for end in self.ends.values():
                end.open_epoch([name for name in names if name != end.name])

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ends[name].server.port}"

    def connect(self) -> None:
        """Streams from every worker to every other."""
        for end in self.ends.values():
            others = {name: self.address(name) for name in self.ends if name != end.name}
            end.links.open(others, timeout_seconds=10)

    def at_once(self, work: Callable[[WorkerEnd], None]) -> None:
        """Runs `work` for every worker at the same time, each on a thread of its own; raises the first error."""
        errors: list[BaseException] = []

        def run(end: WorkerEnd) -> None:
            try:
                work(end)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(end,)) for end in self.ends.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads), "a worker is stuck"

    def __enter__(self) -> Lan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in self.ends.values():
            end.switch.halt()
            end.links.close()
        for end in self.ends.values():
            end.server.stop()
