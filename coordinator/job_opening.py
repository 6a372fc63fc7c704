"""The job opened on the devices, while its model is exported and planned for.

    this machine    load job | open data | export ............ | plan | prepare workers
    a device        job files ---------->| run file, open data |     | fetch layers ...

On a small device a job's imports and data sets take as long as all the rest of getting ready. Which devices the plan will have
isn't known yet: all of them open it, but for those where it would take much of the memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from edgeswarm.errors import EdgeswarmError
from edgeswarm.wire.fetch import PREPARE_SECONDS
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .background import Task
from .events import OPEN_JOB
from .progress import Progress
from .reserving import Devices
from .supervision import Supervision

if TYPE_CHECKING:
    from .command import Preparation
    from .preparation import LoadedJob, OpenedData

# Of a device's memory, what a job may take there before it is known whether the device has a part in it.
LARGEST_PART = 0.25


class JobOpening:
    """One command's. job: the reference that its calls carry."""

    def __init__(
        self, *, job: agent_pb2.JobReference, devices: Devices, progress: Progress, supervision: Supervision
    ) -> None:
        self._job = job
        self._devices = devices
        self._progress = progress
        self._supervision = supervision
        self._tasks: dict[str, Task[None]] = {}  # by device

    def begin(
        self, preparation: Preparation, sending: Mapping[str, Task[None]], links: Mapping[str, AgentLink]
    ) -> None:
        """Back at once. sending: by device, what ends when the job's files are there."""

        def open_there(link: AgentLink) -> None:
            # What fails of the job, or on the way there, is told by those who wait for it; what fails there, by the device's
            # Prepare, if the plan has it.
            with contextlib.suppress(EdgeswarmError):
                loaded, opened = preparation.loading.result(), preparation.opening.result()
                sending[link.node_id].result()
                request = opening_request(loaded, opened, job=self._job, budget_bytes=link.device.memory_budget_bytes)
                if request is not None:
                    link.call("OpenJob", request, timeout_seconds=PREPARE_SECONDS, doing="open the job")

        for node_id, link in links.items():
            self._tasks[node_id] = self._supervision.spawn(
                partial(open_there, link), name=f"open job on {node_id}", device=node_id
            )

    def make_quiet(self, measured_on: Sequence[str]) -> None:
        """Before anything is measured: back when no device has anything else to do. measured_on: devices that will time layers;
        they start new workers, which hold nothing of the job.
        """
        if self._tasks:
            with self._progress.step(OPEN_JOB):
                self._supervision.wait(*self._tasks.values())
                opened = [node_id for node_id in measured_on if node_id in self._tasks]
                self._supervision.wait(*self._devices.renew_workers(opened))


def opening_request(
    loaded: LoadedJob, opened: OpenedData, *, job: agent_pb2.JobReference, budget_bytes: int
) -> agent_pb2.OpenJobRequest | None:
    """What a device with so much memory is asked to open; None for nothing."""
    most_bytes = LARGEST_PART * budget_bytes
    if loaded.held_bytes > most_bytes:
        return None
    return agent_pb2.OpenJobRequest(
        job=job,
        bundle_sha256=loaded.bundle.sha256,
        job_file=loaded.bundle.job_file,
        opens_data=loaded.held_bytes + opened.held_bytes <= most_bytes,
    )
