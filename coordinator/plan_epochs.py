"""The plans that a training follows, one after the other: its workers made ready for each of them.

epoch 1    the plan that was made, or the user's        workers fetch their layers
epoch 2    the same with other shares                   they keep their layers
...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgeswarm.config import join_host_and_port
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.samples import SampleOrder
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .command import Command
from .data_service import DataServiceReady
from .deployment import Deployment, Holder
from .events import SharesMoved
from .job_run import JobRun
from .rehearsal_checks import rehearsal_warnings
from .resuming import narrow_wire_dtype
from .round_history import RoundHistory
from .share_moves import Followed, moving_seconds, worthwhile_move
from .training import Workers

if TYPE_CHECKING:
    from edgeswarm.job import Job

    from .preparation import LoadedJob, PreparedModel


@dataclass(frozen=True)
class Ready:
    """What is known once plan and model are. instance: what the plan was made of; None for one that wasn't made here."""

    loaded: LoadedJob
    prepared: PreparedModel
    plan: Plan
    instance: PlanningInstance | None
    links: Mapping[str, AgentLink]
    service: DataServiceReady

    @property
    def job(self) -> Job:
        return self.loaded.job

    @property
    def order(self) -> SampleOrder:
        return SampleOrder.of(self.job, self.prepared.dataset_length)


class PlanEpochs:
    """first_round: that of the first epoch. history: the rounds before it, which `rounds_seconds` took; it grows.

    moves: from one epoch to the next, so far.
    """

    def __init__(
        self, command: Command, ready: Ready, *, first_round: int, history: RoundHistory, rounds_seconds: float
    ) -> None:
        self._command = command
        self._ready = ready
        self._first_round = first_round
        self._history = history
        self._rounds_seconds = rounds_seconds
        self.moves: list[SharesMoved] = []
        self._followed = [Followed(first_round, ready.plan)]

    def begin(self) -> Workers:
        """Workers that have fetched the layers of the first round."""
        run = self._job_run(self._ready.plan, 1, self._first_round, rounds_seconds=self._rounds_seconds)
        return self._workers(run, self._ready.plan)

    def move(self, workers: Workers, next_round: int) -> Workers | None:
        """The same workers with shares by the speed that they showed; None where that doesn't pay."""
        before, instance = workers.run, self._ready.instance
        if instance is None:
            return None
        moved = worthwhile_move(
            instance,
            self._followed,
            self._history.recent,
            rounds_left=self._rounds - next_round,
            cost_seconds=moving_seconds(before.prepared),
        )
        if moved is None:
            return None
        self.moves.append(SharesMoved(next_round, workers.plan, moved.plan, moved.gain))
        self._followed.append(Followed(next_round, moved.plan))
        self._command.progress.tell(self.moves[-1])
        run = self._job_run(moved.plan, before.job.epoch + 1, next_round, rounds_seconds=before.rounds_seconds)
        run.until_first_round_seconds = before.until_first_round_seconds
        return self._workers(run, moved.plan)

    @property
    def _rounds(self) -> int:
        return self._ready.order.rounds_per_epoch * self._ready.job.epochs

    def _job_run(self, plan: Plan, epoch: int, first_round: int, *, rounds_seconds: float) -> JobRun:
        return JobRun(
            job=self._command.reference(epoch=epoch),
            plan=plan,
            order=self._ready.order,
            rounds=self._rounds,
            links=self._ready.links,
            progress=self._command.progress,
            supervision=self._command.supervision,
            first_round=first_round,
            history=self._history,
            rounds_seconds=rounds_seconds,
            learning_rate_schedule=self._ready.job.learning_rate_schedule,
        )

    def _workers(self, run: JobRun, plan: Plan) -> Workers:
        deployment = run.prepare(partial(self._deployment, run, plan))
        rehearsed = {device: reply.peak_memory_bytes for device, reply in run.prepared.items()}
        budgets = {device: link.device.memory_budget_bytes for device, link in self._ready.links.items()}
        for warning in rehearsal_warnings(plan, rehearsed, budget_bytes=budgets):
            self._command.progress.warn(warning)
        return Workers(plan, run, partial(self._gather, run, deployment))

    def _deployment(self, run: JobRun, plan: Plan, ports: Mapping[str, int]) -> Deployment:
        ready = self._ready
        job, prepared, bundle = ready.job, ready.prepared, ready.loaded.bundle
        return Deployment(
            job=run.job,
            plan=plan,
            layer_graph=prepared.layer_graph,
            evaluation_graph=prepared.evaluation_graph,
            places=self._command.places(ready.links),
            worker_ports=ports,
            holder=Holder(
                self._command.identity.node_id,
                ready.service.layers_port,
                ready.service.samples_port,
                ready.service.host,
            ),
            training=agent_pb2.TrainingSettings(
                bundle_sha256=bundle.sha256,
                job_file=bundle.job_file,
                batch_size=job.batch_size,
                epochs=job.epochs,
                seed=job.seed,
                dataset_length=prepared.dataset_length,
                data_mode=job.data,
                loss_counts=prepared.loss_counts,
                least_batch=max(layer.least_batch for layer in prepared.layer_graph.layers),
                evaluation_length=prepared.evaluation_length,
                wire_dtype=narrow_wire_dtype(job),
            ),
            first_round=run.first_round,
            keeps_layers=run.job.epoch > 1,
        )

    def _gather(
        self, run: JobRun, deployment: Deployment, round_number: int, folder: Path, *, with_optimizer: bool
    ) -> int:
        from .gather import stage_fetchers
        from .layer_files import LayerFiles

        addresses = {
            device: join_host_and_port(deployment.places[device].host, port)
            for device, port in deployment.worker_ports.items()
        }
        return run.gather(
            stage_fetchers(
                deployment.plan,
                job=deployment.job,
                round_number=round_number,
                addresses=addresses,
                identity=self._command.identity,
                folder=folder,
                begin=LayerFiles(
                    self._command.snapshot_folder,
                    round=self._first_round,
                    layers=len(deployment.layer_graph.layers),
                ),
                changing=deployment.layer_graph.changing,
                with_optimizer=with_optimizer,
            )
        )
