"""The steps of `edgeswarm train`, in their order; see controller.py for how they lie beside each other."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeswarm.config import join_host_and_port
from edgeswarm.errors import EdgeswarmError
from edgeswarm.plan import Plan
from edgeswarm.samples import SampleOrder

from .agents import AgentLink
from .background import Task
from .command import Command, Preparation
from .data_service import DataServiceReady
from .evaluations import Evaluations
from .events import READ_CHECKPOINT, WRITE_RESULT, PlanMade, SharesMoved, TrainingDone
from .job_run import JobRun
from .job_state import Phase
from .last_round import check_plan
from .manifest import Manifest
from .metrics import METRICS_NAME, metrics_document
from .options import TrainOptions
from .plan_by_hand import fitted
from .plan_epochs import PlanEpochs, Ready
from .resuming import narrow_wire_dtype, new_devices, plan_to_follow, warnings_on_resuming
from .round_history import RoundHistory
from .segments import Segments
from .training import Training, Workers, is_over
from .unfinished import UnfinishedTraining, check_room

if TYPE_CHECKING:
    from edgeswarm.job import Job

    from .layer_files import LayerFiles
    from .preparation import PreparedModel


@dataclass(frozen=True)
class TrainResult:
    """folder: what checkpoint.py says. summary: what its metrics.json holds, but for the rounds."""

    folder: Path
    plan: Plan
    summary: Mapping[str, Any]

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        """All that its metrics.json holds, read when it is first asked for: of a training of days that is much."""
        found: dict[str, Any] = json.loads((self.folder / METRICS_NAME).read_text())
        return found


class TrainJob:
    """One `train`. unfinished: where its checkpoints are kept; a resumed one has a manifest already."""

    def __init__(self, command: Command, options: TrainOptions, unfinished: UnfinishedTraining) -> None:
        self._command = command
        self._options = options
        self._unfinished = unfinished
        self._resumed = unfinished.manifest

    def run(self, by_hand: Plan | None) -> TrainResult:
        """by_hand: the plan to follow, its devices by name; None to make one. Raises EdgeswarmError."""
        command, manifest = self._command, self._resumed
        preparation = command.start_preparation(self._options, unfinished=self._unfinished)
        if manifest is not None:
            (loaded,) = command.supervision.wait(preparation.loading)
            for warning in warnings_on_resuming(manifest, loaded.job, bundle_sha256=loaded.bundle.sha256):
                command.progress.warn(warning)
            if self._is_over(manifest, loaded.job):
                return self._only_write(manifest, preparation)
        elif self._options.resume:
            command.progress.warn(f"{self._unfinished.folder} holds no whole checkpoint: the training begins anew.")
        ready = self._plan_and_devices(preparation, by_hand)
        del preparation  # and with it the data sets, which nobody reads here from now on
        workers, moves = self._train(ready)
        command.supervision.begin(Phase.DONE)
        command.devices.close(reason="the training is done")
        return self._write(ready.job, ready.prepared, workers.plan, workers.run, moves)

    # --- the steps ------------------------------------------------------------------------------------------------

    def _plan_and_devices(self, preparation: Preparation, by_hand: Plan | None) -> Ready:
        """The devices of the plan reserved, with the job's files, and the data service at work."""
        command, options = self._command, self._options
        first_round = self._resumed.round if self._resumed is not None else 0
        address = join_host_and_port(options.listen_address, options.data_port)
        serving = command.start_data_service(
            preparation, address, current_folder=options.current_folder, first_round=first_round
        )
        wanted = by_hand.devices if by_hand is not None else options.discovery.devices
        links = command.devices.find(options.discovery, wanted=wanted)
        if by_hand is None and self._resumed is not None:
            by_hand = self._plan_of_before(self._resumed, links)
            links = links if by_hand is None else {device: links[device] for device in by_hand.devices}
        command.devices.reserve(links)
        measures = by_hand is None and options.fresh_profiles
        sending: dict[str, Task[None]] = command.send_bundle(preparation.loading, links, loads_ahead=not measures)
        (prepared,) = command.supervision.wait(preparation.exporting)
        loaded = preparation.loading.result()
        graph = prepared.layer_graph
        order = SampleOrder.of(loaded.job, prepared.dataset_length)
        check_room(self._unfinished.folder, needed_bytes(prepared))
        if by_hand is None:
            plan, instance = command.plan(
                options, prepared, links, order=order, renews_workers=True, after=tuple(sending.values())
            )
        else:
            instance = None
            plan = fitted(by_hand, node_ids=tuple(links), layer_graph=graph, batch_size=order.batch_size)
            command.progress.tell(PlanMade(plan, None, tuple(layer.name for layer in graph.layers)))
        check_plan(plan, graph.layers, order)
        idle = [node_id for node_id in links if node_id not in plan.devices]
        command.devices.free(idle, reason="not in the plan")
        service: DataServiceReady = command.supervision.wait(serving, *(sending[device] for device in plan.devices))[0]
        return Ready(loaded, prepared, plan, instance, {device: links[device] for device in plan.devices}, service)

    def _plan_of_before(self, manifest: Manifest, links: Mapping[str, AgentLink]) -> Plan | None:
        memory_bytes = {device: link.device.memory_budget_bytes for device, link in links.items()}
        plan, why_not = plan_to_follow(manifest, self._options, memory_bytes=memory_bytes)
        if plan is None:
            self._command.progress.warn(
                f"The training goes on with another plan than before ({why_not}); "
                "its result is as good, and not the same to the last bit."
            )
            return None
        if new := new_devices(plan, tuple(links)):
            self._command.progress.warn(
                f"{', '.join(new)} {'is' if len(new) == 1 else 'are'} not in the plan that goes on; --planner edgeswarm makes "
                "another one."
            )
        return plan

    def _train(self, ready: Ready) -> tuple[Workers, Sequence[SharesMoved]]:
        # What is imported at the end else is loaded now: edgeswarm may be updated here while it trains for days.
        from . import checkpoint, gather, layer_files  # noqa: F401

        manifest, job, prepared = self._resumed, ready.job, ready.prepared
        history = RoundHistory()
        if manifest is not None:
            with self._command.progress.step(READ_CHECKPOINT, f"round {manifest.round}"):
                # Of days they take a while, in which Ctrl-C and the devices' failures are heard.
                supervision = self._command.supervision
                reading = supervision.spawn(lambda: RoundHistory(self._unfinished.rounds()), name="read rounds")
                (history,) = supervision.wait(reading)
        first_round = manifest.round if manifest is not None else 0
        epochs = PlanEpochs(
            self._command,
            ready,
            first_round=first_round,
            history=history,
            rounds_seconds=manifest.rounds_seconds if manifest is not None else 0.0,
        )
        workers = epochs.begin()
        if not self._unfinished.held:
            self._unfinished.begin()
        follows_speed = ready.instance is not None and not self._options.keep_shares
        training = Training(
            workers=workers,
            segments=Segments(
                rounds=ready.order.rounds_per_epoch * job.epochs,
                rounds_per_epoch=ready.order.rounds_per_epoch,
                evaluate_every=job.evaluate_every if prepared.evaluation_graph is not None else None,
                checkpoint_every=self._options.checkpoint_every,
                looks_from=first_round if follows_speed else None,
            ),
            unfinished=self._unfinished,
            manifest=self._manifest(ready),
            evaluations=self._evaluations(job),
            next_round=first_round,
            early_stop=job.early_stop_epochs,
            checkpoint_bytes=prepared.checkpoint_bytes,
            progress=self._command.progress,
            move=epochs.move,
        )
        training.to_the_end()
        return training.workers, epochs.moves

    def _only_write(self, manifest: Manifest, preparation: Preparation) -> TrainResult:
        """All rounds are done: only the result was not written."""
        (prepared,) = self._command.supervision.wait(preparation.exporting)
        job = preparation.loading.result().job
        if job.evaluation_dataset is not None and manifest.round not in {each.round for each in manifest.evaluations}:
            self._command.progress.warn(
                f"The weights after {manifest.round} rounds are written as they are: no evaluation was due then, and the best "
                "ones are those of an earlier one. With --epochs one more they are trained on, and evaluated at the end."
            )
        run = JobRun(
            job=self._command.reference(epoch=1),
            plan=manifest.plan,
            order=SampleOrder.of(job, prepared.dataset_length),
            rounds=manifest.rounds,
            links={},
            progress=self._command.progress,
            supervision=self._command.supervision,
            first_round=manifest.round,
            history=RoundHistory(self._unfinished.rounds()),
            rounds_seconds=manifest.rounds_seconds,
        )
        return self._write(job, prepared, manifest.plan, run)

    def _write(
        self, job: Job, prepared: PreparedModel, plan: Plan, run: JobRun, moves: Sequence[SharesMoved] = ()
    ) -> TrainResult:
        from .checkpoint import write_result

        manifest = self._unfinished.manifest
        assert manifest is not None, "a training ends with a checkpoint"
        folder, progress = self._options.result_folder, self._command.progress
        with progress.step(WRITE_RESULT, str(folder)):
            summary = metrics_document(
                job_id=self._command.job_id,
                history=run.history,
                rounds_seconds=run.rounds_seconds,
                until_first_round_seconds=run.until_first_round_seconds,
                steps=progress.steps,
                prepared=run.prepared,
                settings={"batch_size": job.batch_size, "epochs": job.epochs, "seed": job.seed, "data": job.data},
                evaluations=manifest.evaluations,
                moves=moves,
            )
            write_result(
                folder,
                layer_states=self._layer_files(manifest, manifest.round).all(),
                best_states=self._layer_files(manifest, manifest.best.round).all() if manifest.best else None,
                tensors=prepared.layer_graph.tensors,
                plan=plan.to_json(),
                metrics=summary,
                round_lines=self._unfinished.round_lines(),
                unused=prepared.unused,
            )
            self._unfinished.remove()
        order = SampleOrder.of(job, prepared.dataset_length)
        progress.tell(
            TrainingDone(
                folder=folder,
                rounds=manifest.round,
                loss=run.history.last_loss,
                rounds_seconds=run.rounds_seconds,
                seconds=progress.seconds(),
                stopped_early=manifest.round < order.rounds_per_epoch * job.epochs,
                best=manifest.best,
            )
        )
        return TrainResult(folder, plan, summary)

    # --- what they need -------------------------------------------------------------------------------------------

    def _is_over(self, manifest: Manifest, job: Job) -> bool:
        order = SampleOrder.of(job, manifest.dataset_length)
        return is_over(
            self._evaluations(job),
            next_round=manifest.round,
            rounds=order.rounds_per_epoch * job.epochs,
            early_stop=job.early_stop_epochs,
        )

    def _evaluations(self, job: Job) -> Evaluations:
        done = self._resumed.evaluations if self._resumed is not None else ()
        return Evaluations(job.watched_metric, job.best_is_lowest, done)

    def _layer_files(self, manifest: Manifest, round_number: int) -> LayerFiles:
        from .layer_files import LayerFiles

        return LayerFiles(self._unfinished.layers_folder(round_number), round=round_number, layers=manifest.layers)

    def _manifest(self, ready: Ready) -> Manifest:
        job, prepared = ready.job, ready.prepared
        return Manifest(
            job_id=self._command.job_id,
            round=0,
            seed=job.seed,
            batch_size=job.batch_size,
            drop_last=job.drop_last,
            epochs=job.epochs,
            dataset_length=prepared.dataset_length,
            bundle_sha256=ready.loaded.bundle.sha256,
            wire_dtype=narrow_wire_dtype(job),
            layers=len(prepared.layer_graph.layers),
            plan=ready.plan,
        )


def needed_bytes(prepared: PreparedModel) -> int:
    """What checkpoints and result take on the disk at most: the last checkpoint, a new one or the result, and the best ones,
    that of the last checkpoint and one after it.
    """
    if prepared.evaluation_graph is None:
        return 2 * prepared.checkpoint_bytes
    return 3 * prepared.checkpoint_bytes + prepared.parameter_bytes


def with_way_to_resume(error: EdgeswarmError, options: TrainOptions, *, round_number: int) -> EdgeswarmError:
    """The error that ended a training, with how to go on from its last checkpoint."""
    output = f" --output {shlex.quote(str(options.output))}" if options.output is not None else ""
    job = shlex.quote(str(options.job_path))
    way = f"`edgeswarm train {job} --resume{output}` goes on after round {round_number}."
    return EdgeswarmError(error.code, error.message, f"{error.remedy} {way}".strip(), detail=error.detail)
