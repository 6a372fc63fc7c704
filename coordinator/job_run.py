"""The workers of one plan: made ready, their rounds and evaluations followed, their layers gathered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan
from edgeswarm.samples import SampleOrder
from edgeswarm.wire.fetch import PREPARE_SECONDS
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .deployment import Deployment
from .evaluations import EvaluationCollector
from .events import PREPARE_WORKERS, START_WORKERS, EvaluationDone, WorkerDoes
from .job_state import Phase
from .progress import Progress
from .round_history import RoundHistory
from .rounds import RoundCollector
from .segments import Segment
from .supervision import Supervision

WORKER_START_SECONDS = 120.0  # importing torch on a slow card
START_SECONDS = 15.0


class JobRun:
    """The workers of one plan epoch.

    job: the reference that calls to them carry. links: of the plan's devices. rounds: of the whole job. first_round: the one
    that comes next. history: the rounds of the training's earlier part, which `rounds_seconds` took; both grow.
    learning_rate_schedule: the job's.
    """

    def __init__(
        self,
        *,
        job: agent_pb2.JobReference,
        plan: Plan,
        order: SampleOrder,
        rounds: int,
        links: Mapping[str, AgentLink],
        progress: Progress,
        supervision: Supervision,
        first_round: int = 0,
        history: RoundHistory,
        rounds_seconds: float = 0.0,
        learning_rate_schedule: Callable[[int], float] | None = None,
    ) -> None:
        self.job = job
        self.first_round = first_round
        self._plan = plan
        self._order = order
        self._links = links
        self._progress = progress
        self._supervision = supervision
        self._collector = RoundCollector(
            plan=plan,
            order=order,
            rounds=rounds,
            epoch=job.epoch,
            first_round=first_round,
            learning_rate_schedule=learning_rate_schedule,
        )
        self.history = history
        self.prepared: dict[str, agent_pb2.PrepareReply] = {}
        self.until_first_round_seconds: float | None = None
        self.rounds_seconds = rounds_seconds
        self._last_round = 0.0
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
            self._supervision.begin(Phase.PREPARING, epoch=self.job.epoch)
            requests = deployment.requests()
            self._supervision.on_action = lambda device, action: self._progress.tell(WorkerDoes(device, action))
            self.prepared = self._call_each(
                "Prepare", requests, timeout_seconds=PREPARE_SECONDS, doing="prepare its worker"
            )
            self._supervision.on_action = lambda device, action: None
        return deployment

    def run(self, segment: Segment, *, evaluations_seconds: float) -> EvaluationDone | None:
        """One segment of rounds, to its end, and the evaluation after it, where there is one.

        evaluations_seconds: what that one and all later ones will take, for who asks how long the training will.
        """
        job = self.job
        self._collector.evaluations_seconds = evaluations_seconds
        self._supervision.begin(Phase.RUNNING, epoch=job.epoch, end_round=segment.end_round)
        self._supervision.on_round = self._collect
        evaluating = EvaluationCollector(
            self._plan.stages[-1].devices if segment.evaluates else (), epoch=job.epoch, round=segment.end_round
        )
        self._supervision.on_evaluation = evaluating.add
        request = agent_pb2.StartRequest(
            job=job, first_round=segment.first_round, end_round=segment.end_round, evaluate=segment.evaluates
        )
        began = self._last_round = time.monotonic()
        requests = dict.fromkeys(self._plan.devices, request)
        self._call_each("Start", requests, timeout_seconds=START_SECONDS, doing="start the rounds")
        self._supervision.wait_until(lambda: self._supervision.state.phase is Phase.GATHERING and evaluating.complete)
        assert self._collector.next_round == segment.end_round, (
            "a worker reports each round before it says that all are done"
        )
        self.rounds_seconds += self._last_round - began
        if not segment.evaluates:
            return None
        return evaluating.done(data_epoch=self._order.epoch_of(segment.end_round - 1))

    def gather(self, fetchers: Mapping[str, Callable[[], int]]) -> int:
        """Every stage's layers, all stages at once; the bytes of all. fetchers: by the device that is asked."""
        tasks = [
            self._supervision.spawn(fetch, name=f"fetch from {device}", device=device)
            for device, fetch in fetchers.items()
        ]
        return sum(self._supervision.wait(*tasks))

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

    def _collect(self, device: str, report: agent_pb2.RoundReport) -> None:
        for done in self._collector.add(device, report):
            self._last_round = time.monotonic()
            if self.until_first_round_seconds is None:
                self.until_first_round_seconds = self._progress.seconds()
            self.history.add(done)
            self._progress.tell(done)
            if not math.isfinite(done.loss) and not self._warned:
                self._warned = True
                self._progress.warn(
                    f"The loss of round {done.round + 1} is {done.loss}. Try a smaller learning rate, or clip_gradient_norm. "
                    "Where labels are left out of its mean (ignore_index), let it return (sum, count)."
                )
