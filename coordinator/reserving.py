"""The devices of one job: found, chosen, reserved, watched, and freed again, whatever happens."""

from __future__ import annotations

import getpass
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.identity import Identity
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .background import Task
from .events import FIND_DEVICES, RESERVE_DEVICES, DevicesFound
from .finding import Finder, selected
from .options import DiscoveryOptions
from .progress import Progress
from .run_store import RunStore
from .runs import RunState
from .supervision import Supervision

LEASE_SECONDS = 2.0  # after our end or a cut network an agent frees itself
RESERVE_SECONDS = 10.0
_FREE_SECONDS = 4.0
_FREE_LOST_SECONDS = 0.3  # nobody waits for an answer of a device that is known to be gone
# Until a device that was cut off from a coordinator has noticed, and its lease is over, which is a minute where nobody watched it
# yet; and between two looks.
_LEASES_ARE_OVER_SECONDS, _LOOK_SECONDS = 65.0, 0.5


class Devices:
    """The links of one command. job: the reference that its calls carry."""

    def __init__(
        self,
        *,
        job: agent_pb2.JobReference,
        identity: Identity,
        folders: Folders,
        progress: Progress,
        supervision: Supervision,
    ) -> None:
        self._job = job
        self._identity = identity
        self._folders = folders
        self._progress = progress
        self._supervision = supervision
        self._open: dict[str, AgentLink] = {}
        self._held: set[str] = set()
        # One call at a time that takes a device or gives it back, after the first Reserve.
        self._asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def find(
        self, options: DiscoveryOptions, *, wanted: Sequence[str] = (), busy_too: bool = False
    ) -> dict[str, AgentLink]:
        """The devices that may be used, by node id. wanted: names or node ids that have to be among them, all for none.

        busy_too: those that another job holds count as well.
        Raises EdgeswarmError: NO_DEVICES, VERSION_DIFFERS, DEVICE_BUSY where a wanted device or every device is busy.
        """
        finder = Finder(options, identity=self._identity, folders=self._folders, warn=self._progress.warn)
        with self._progress.step(FIND_DEVICES):
            task = self._supervision.spawn(lambda: finder.find(wanted=wanted), name="find devices")
            (found,) = self._supervision.wait(task)
        self._open = dict(found.links)
        chosen = selected(found, wanted)
        if not busy_too:
            freeing = self._supervision.spawn(partial(self._without_leases_of_the_dead, chosen), name="leases")
            (chosen,) = self._supervision.wait(freeing)
            chosen = _idle(chosen, explicit=bool(wanted), warn=self._progress.warn)
        self._progress.tell(DevicesFound(tuple(link.device for link in chosen.values()), found.how))
        return chosen

    def _without_leases_of_the_dead(self, chosen: Mapping[str, AgentLink]) -> dict[str, AgentLink]:
        """The same devices; those that a job holds which ran on this machine and has ended once their leases are over."""
        links = dict(chosen)
        deadline = time.monotonic() + _LEASES_ARE_OVER_SECONDS
        said = False
        while held := held_by_the_dead(links, RunStore.of(self._folders)):
            if time.monotonic() > deadline:
                break
            if not said:
                self._progress.warn(
                    f"{', '.join(held)} {'is' if len(held) == 1 else 'are'} still held by a training that has ended here; "
                    "waiting for the lease to end."
                )
                said = True
            time.sleep(_LOOK_SECONDS)
            for node_id in held:
                self._open[node_id] = links[node_id] = links[node_id].described_again()
        return links

    def reserve(self, links: Mapping[str, AgentLink]) -> None:
        """Take these devices for the job, which starts their workers, and watch them from now on."""
        new = [link for link in links.values() if link.node_id not in self._held]
        if not new:
            return
        request = agent_pb2.ReserveRequest(job=self._job, description=_who(), lease_seconds=LEASE_SECONDS)

        def reserve(link: AgentLink) -> None:
            link.call("Reserve", request, timeout_seconds=RESERVE_SECONDS, doing="reserve it")

        with self._progress.step(RESERVE_DEVICES):
            tasks: list[Task[None]] = []
            first, *others = sorted(new, key=lambda link: link.node_id)
            try:
                # One alone before the others: of two commands that want the same devices one gets all of them.
                for together in ([first], others):
                    # Before the call: a lost answer must not leave it taken.
                    self._held.update(link.node_id for link in together)
                    asked = [
                        self._supervision.spawn(partial(reserve, link), name=f"reserve {link.node_id}")
                        for link in together
                    ]
                    tasks += asked
                    self._supervision.wait(*asked)
                    for link in together:  # from now on it notices our end
                        self._supervision.watch(link, self._job)
            finally:
                for task in tasks:  # a Release that overtakes its Reserve would leave the device taken
                    task.join(_FREE_SECONDS)

    def renew_workers(self, node_ids: Sequence[str]) -> list[Task[None]]:
        """Has these devices, which are reserved, start new workers; back at once with the tasks that do so."""
        request = agent_pb2.RenewWorkerRequest(job=self._job)

        def renew(link: AgentLink) -> None:
            with self._asking[link.node_id]:
                if link.node_id in self._held:
                    link.call("RenewWorker", request, timeout_seconds=RESERVE_SECONDS, doing="start a new worker")

        for node_id in node_ids:
            self._supervision.expect_new_worker(node_id)
        return [
            self._supervision.spawn(
                partial(renew, self._open[node_id]), name=f"new worker on {node_id}", device=node_id
            )
            for node_id in node_ids
        ]

    def has_bundle(self, link: AgentLink, sha256: str) -> bool:
        """Whether the device keeps the job's files from an earlier time; so, too, where it is ours no more and needs none.

        It reserves once more: after a Release that would leave the device taken.
        """
        request = agent_pb2.ReserveRequest(
            job=self._job, description=_who(), lease_seconds=LEASE_SECONDS, bundle_sha256=sha256
        )
        with self._asking[link.node_id]:
            if link.node_id not in self._held:
                return True
            reply = link.call("Reserve", request, timeout_seconds=RESERVE_SECONDS, doing="ask for the job's files")
            return bool(reply.has_bundle)

    def free(self, node_ids: Sequence[str], *, reason: str) -> None:
        """End the job on these devices, all at once. What fails is a warning: the agent's lease ends by itself."""
        held = [node_id for node_id in node_ids if node_id in self._held]
        for node_id in held:
            self._supervision.free(node_id)
        self._held.difference_update(held)

        def release(link: AgentLink) -> EdgeswarmError | None:
            with self._asking[link.node_id]:
                return link.release(self._job, reason=reason)

        tasks = [Task(partial(release, self._open[node_id]), name=f"free {node_id}") for node_id in held]
        for node_id, task in zip(held, tasks, strict=True):
            lost = node_id in self._supervision.state.lost
            try:
                error = task.result(_FREE_LOST_SECONDS if lost else _FREE_SECONDS)
            except TimeoutError as late:
                error = EdgeswarmError(ErrorCode.DEVICE_UNREACHABLE, f"{late}.", "Look whether it is on.")
            # Stale, or busy with another job: it is free of us already. Lost: that is told as the error itself.
            known = error is None or error.code in (ErrorCode.STALE_CALL, ErrorCode.DEVICE_BUSY) or lost
            if error is not None and not known:
                self._progress.warn(
                    f"{node_id} could not be freed ({error.message}); it frees itself in a few seconds."
                )

    def close(self, *, reason: str) -> None:
        """Free everything and end the connections."""
        self.free(sorted(self._held), reason=reason)
        for link in self._open.values():
            link.close()
        self._open.clear()


def held_by_the_dead(links: Mapping[str, AgentLink], store: RunStore) -> list[str]:
    """Devices whose job ran on this machine and has ended, by node id: they free themselves."""
    busy = {node_id: link.device.busy_with_job for node_id, link in links.items() if not link.device.idle}
    if not busy:
        return []
    dead = {run.record.job_id for run in store.all() if run.state is not RunState.RUNNING and not run.elsewhere}
    return [node_id for node_id, job in busy.items() if job in dead]


def _idle(chosen: Mapping[str, AgentLink], *, explicit: bool, warn: Callable[[str], None]) -> dict[str, AgentLink]:
    busy = [link.device for link in chosen.values() if not link.device.idle]
    if busy and (explicit or len(busy) == len(chosen)):
        device = busy[0]
        raise EdgeswarmError(
            ErrorCode.DEVICE_BUSY,
            f"{device.node_id} is busy with job {device.busy_with_job}"
            f"{f' since {device.busy_since}' if device.busy_since else ''}"
            f"{f', and so is every other device found ({len(busy)} in all)' if not explicit and len(busy) > 1 else ''}.",
            "Wait until that job is done, or stop it.",
        )
    for device in busy:
        warn(f"{device.node_id} is left out: it is busy with job {device.busy_with_job}.")
    return {node_id: link for node_id, link in chosen.items() if link.device.idle}


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        user = "somebody"
    return f"{user} on {socket.gethostname()}"
