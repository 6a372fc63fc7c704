"""One training from its plan on: workers made ready, rounds followed, layers gathered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan
from edgeswarm.samples import SampleOrder
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .deployment import Deployment
from .events import PREPARE_WORKERS, START_WORKERS, TRAIN, RoundDone, WorkerDoes
from .job_state import Phase
from .progress import Progress
from .rounds import RoundCollector
from .supervision import Supervision

if TYPE_CHECKING:
    from edgeswarm.snapshot import LayerState

WORKER_START_SECONDS = 120.0  # importing torch on a slow card
PREPARE_SECONDS = 600.0
START_SECONDS = 15.0


class JobRun:
    """The workers of one plan epoch.

    links: of the plan's devices. rounds: of the whole job.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        order: SampleOrder,
        rounds: int,
        links: Mapping[str, AgentLink],
        progress: Progress,
        supervision: Supervision,
    ) -> None:
        self._plan = plan
        self._order = order
        self._rounds = rounds
        self._links = links
        self._progress = progress
        self._supervision = supervision
        self.done: list[RoundDone] = []
        self.prepared: dict[str, agent_pb2.PrepareReply] = {}
        self.until_first_round_seconds: float | None = None
        self.rounds_seconds = 0.0
        self._warned = False

    def wait_for_workers(self) -> dict[str, int]:
        """The port on which each worker of the plan listens, as soon as all have said it."""
        supervision = self._supervision
        devices = self._plan.devices

        def late() -> EdgeswarmError:
            silent = next(device for device in devices if device not in supervision.tensor_ports)
            return EdgeswarmError(
                ErrorCode.WORKER_FAILED,
                f"The worker on {silent} did not start within {WORKER_START_SECONDS:g} s.",
                "Look at the agent's log there; `edgeswarm-agent doctor` tries out torch.",
            )

        with self._progress.step(START_WORKERS):
            supervision.wait_until(
                lambda: all(device in supervision.tensor_ports for device in devices),
                timeout_seconds=WORKER_START_SECONDS,
                late=late,
            )
        return {device: supervision.tensor_ports[device] for device in devices}

    def prepare(self, make_deployment: Callable[[Mapping[str, int]], Deployment]) -> Deployment:
        """Every worker builds its stage, fetches its layers and says ready. make_deployment: from the workers' ports."""
        deployment = make_deployment(self.wait_for_workers())
        with self._progress.step(PREPARE_WORKERS, f"on {', '.join(self._plan.devices)}"):
            self._supervision.begin(Phase.PREPARING, epoch=deployment.job.epoch)
            requests = deployment.requests()
            self._supervision.on_action = lambda device, action: self._progress.tell(WorkerDoes(device, action))
            self.prepared = self._call_each(
                "Prepare", requests, timeout_seconds=PREPARE_SECONDS, doing="prepare its worker"
            )
            self._supervision.on_action = lambda device, action: None
        return deployment

    def run(self, job: agent_pb2.JobReference) -> None:
        """All rounds, to their end."""
        collector = RoundCollector(plan=self._plan, order=self._order, rounds=self._rounds, epoch=job.epoch)
        self._supervision.on_round = partial(self._collect, collector)
        self._supervision.begin(Phase.RUNNING, epoch=job.epoch, end_round=self._rounds)
        request = agent_pb2.StartRequest(job=job, first_round=0, end_round=self._rounds)
        began = time.monotonic()
        with self._progress.step(TRAIN, f"{self._rounds} rounds"):
            requests = dict.fromkeys(self._plan.devices, request)
            self._call_each("Start", requests, timeout_seconds=START_SECONDS, doing="start the rounds")
            self._supervision.wait_until(lambda: self._supervision.state.phase is Phase.GATHERING)
            assert collector.next_round == self._rounds, "a worker reports each round before it says that all are done"
            self.rounds_seconds = time.monotonic() - began

    def gather(self, deployment: Deployment, fetchers: Mapping[str, Callable[[], dict[int, LayerState]]]) -> list[Any]:
        """The state of every layer, in order. fetchers: by the device that is asked."""
        tasks = [
            self._supervision.spawn(fetch, name=f"fetch from {device}", device=device)
            for device, fetch in fetchers.items()
        ]
        states: dict[int, LayerState] = {}
        for stage_states in self._supervision.wait(*tasks):
            states.update(stage_states)
        return [states[layer] for layer in range(deployment.plan.layer_count)]

    def _call_each(
        self, method: str, requests: Mapping[str, Any], *, timeout_seconds: float, doing: str
    ) -> dict[str, Any]:
        """The replies by device, of calls to all of them at once. requests: by device."""
        tasks = [
            self._supervision.spawn(
                partial(self._links[device].call, method, request, timeout_seconds=timeout_seconds, doing=doing),
                name=f"{method} {device}",
                device=device,
            )
            for device, request in requests.items()
        ]
        return dict(zip(requests, self._supervision.wait(*tasks), strict=True))

    def _collect(self, collector: RoundCollector, device: str, report: agent_pb2.RoundReport) -> None:
        for done in collector.add(device, report):
            if self.until_first_round_seconds is None:
                self.until_first_round_seconds = self._progress.seconds()
            self.done.append(done)
            self._progress.tell(done)
            if not math.isfinite(done.loss) and not self._warned:
                self._warned = True
                self._progress.warn(
                    f"The loss of round {done.round} is {done.loss}. Try a smaller learning rate, or clip_gradient_norm."
                )
