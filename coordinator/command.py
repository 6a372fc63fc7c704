"""What the commands that work with devices share: their parts, the steps that run beside each other, and clearing away."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgeswarm.config import LOST_SECONDS, Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import SERVED
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.samples import SampleOrder
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .background import Task
from .data_service import DataServiceProcess, DataServiceReady, DataServiceSettings
from .deployment import Place, place_of
from .events import (
    LOAD_JOB,
    OPEN_DATA,
    PLAN,
    SEND_BUNDLE,
    START_DATA_SERVICE,
    Listener,
    ModelReady,
    PlanMade,
    TransferProgress,
)
from .instance import planning_instance
from .job_state import INTERRUPTED_MESSAGE
from .measuring import Measuring
from .model_facts import ModelFacts
from .options import TrainOptions
from .own_address import own_host_towards
from .planner.planners import make_plan, sizes_to_try
from .planner.prediction_error import with_relative_error
from .profile_cache import ProfileCache
from .progress import Progress
from .reserving import Devices
from .resuming import check_job_is_the_same, job_to_resume
from .supervision import Supervision
from .unfinished import UnfinishedTraining
from .work_folder import WorkFolder

if TYPE_CHECKING:
    # What imports torch is loaded beside the search for devices, and not at all by `edgeswarm devices`.
    from .preparation import LoadedJob, OpenedData, PreparedModel

BUNDLE_SECONDS = 1800.0  # of up to 512 MiB, to all devices over one radio
_ABANDON_SECONDS = 1.0


def new_job_id(name: str, *, now: datetime) -> str:
    """`<job name>-<UTC time>-<4 hex>`."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-") or "job"
    return f"{slug}-{now.strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class Preparation:
    """What goes on beside everything else, each after the one before it."""

    loading: Task[LoadedJob]
    opening: Task[OpenedData]
    exporting: Task[PreparedModel]


class Command:
    """What a command holds, and what it shares with the other commands. Made and cleared away by `running_command`."""

    def __init__(
        self, name: str, *, folders: Folders, listener: Listener, cancel: threading.Event, lost_seconds: float
    ) -> None:
        self.folders = folders
        self.identity = Identity.load(folders.operator_dir, role=Role.OPERATOR)
        self.job_id = new_job_id(name, now=datetime.now(timezone.utc))
        self.term = int(time.time())
        self.progress = Progress(listener)
        self.supervision = Supervision(cancel=cancel, lost_seconds=lost_seconds)
        self.devices = Devices(
            job=self.reference(epoch=0),
            identity=self.identity,
            folders=folders,
            progress=self.progress,
            supervision=self.supervision,
        )
        self._work_folder = WorkFolder()
        self._own_hosts: dict[str, str] = {}  # by a device's address, as last seen
        self._data_service: DataServiceProcess | None = None
        self._closing = threading.Lock()
        self._closed = False

    @property
    def snapshot_folder(self) -> Path:
        return self._work_folder.path

    def reference(self, *, epoch: int) -> agent_pb2.JobReference:
        return agent_pb2.JobReference(job_id=self.job_id, term=self.term, epoch=epoch)

    def start_preparation(
        self, options: TrainOptions, *, unfinished: UnfinishedTraining | None = None, trains: bool = True
    ) -> Preparation:
        """Load the job, open its data sets, export its model: in this order, beside everything else.

        unfinished: the training to go on with. trains: False where a plan is wanted and nothing will be evaluated.
        """
        manifest = unfinished.manifest if unfinished is not None else None

        def load() -> LoadedJob:
            with self.progress.step(LOAD_JOB, str(options.job_path)):
                from . import preparation

                loaded = preparation.load(
                    options.job_path,
                    epochs=options.epochs,
                    batch_size=options.batch_size,
                    seed=options.seed,
                    wire_dtype=options.wire_dtype,
                )
            if manifest is None:
                return loaded
            job = job_to_resume(loaded.job, manifest, options, bundle_sha256=loaded.bundle.sha256)
            check_job_is_the_same(manifest, job, dataset_length=manifest.dataset_length)
            return replace(loaded, job=job)

        loading = self.supervision.spawn(load, name="load job")

        def open_data() -> OpenedData:
            from . import preparation

            loaded = loading.result()
            with self.progress.step(OPEN_DATA):
                return preparation.open_data(loaded, evaluation=trains)

        opening = self.supervision.spawn(open_data, name="open the data sets")

        def prepare() -> PreparedModel:
            loaded, opened = loading.result(), opening.result()
            from . import known_costs, layer_files, preparation

            checkpoint = None
            if unfinished is not None and manifest is not None:
                checkpoint = layer_files.LayerFiles(
                    unfinished.round_folder(manifest.round),
                    round=manifest.round,
                    layers=manifest.layers,
                    of_this_job=loaded.bundle.sha256 == manifest.bundle_sha256,
                )
            prepared = preparation.prepare(
                loaded,
                opened,
                snapshot_folder=self.snapshot_folder,
                checkpoint=checkpoint,
                costs=known_costs.KnownCosts(self.folders.cache_dir / "costs").of,
                step=self.progress.step,
            )
            if manifest is not None:
                check_job_is_the_same(manifest, loaded.job, dataset_length=prepared.dataset_length)
            names = tuple(layer.name for layer in prepared.layer_graph.layers)
            self.progress.tell(ModelReady(names, prepared.parameter_bytes, prepared.dtype))
            for message in prepared.warnings:
                self.progress.warn(message)
            return prepared

        return Preparation(loading, opening, self.supervision.spawn(prepare, name="export model"))

    def start_data_service(
        self, preparation: Preparation, address: str, *, current_folder: Path, first_round: int = 0
    ) -> Task[DataServiceReady]:
        """Samples where served, and the layers of the first round. address: "host:port" to listen on.

        current_folder: where relative paths of the job's data begin.
        """

        def serve() -> DataServiceReady:
            loaded = preparation.loading.result()
            serves_samples = loaded.job.data == SERVED
            settings = DataServiceSettings(
                identity_folder=str(self.folders.operator_dir),
                listen_address=address,
                job_folder=str(loaded.folder),
                job_file=loaded.bundle.job_file,
                job_id=self.job_id,
                snapshot_folder=str(self.snapshot_folder),
                snapshot_round=first_round,
                serves_samples=serves_samples,
            )
            with self.progress.step(START_DATA_SERVICE):
                service = DataServiceProcess(
                    settings, log_path=self._work_folder.path / "data-service.log", current_folder=current_folder
                )
                with self._closing:
                    if self._closed:  # Ctrl-C came first, and nobody would end it
                        raise EdgeswarmError(ErrorCode.INTERRUPTED, "Interrupted.")
                    self._data_service = service
                    service.start()
                if serves_samples:
                    preparation.opening.result()  # a data set that downloads itself does so once, and here
                ready = service.wait_ready()
            self.supervision.own_check = partial(_error_of, service.check)
            return ready

        return self.supervision.spawn(serve, name="data service")

    def send_bundle(
        self, loading: Task[LoadedJob], links: Mapping[str, AgentLink], *, loads_ahead: bool
    ) -> dict[str, Task[None]]:
        """The user's files, to all devices that don't have them yet.

        loads_ahead: workers load them at once where they may; not those that will measure, for which they would be renewed.
        """

        def send(link: AgentLink) -> None:
            bundle = loading.result().bundle
            with self.progress.step(SEND_BUNDLE, link.node_id):
                if not self.devices.has_bundle(link, bundle.sha256):
                    link.put_bundle(
                        self.reference(epoch=0),
                        sha256=bundle.sha256,
                        archive=bundle.archive,
                        sent=partial(self._bundle_sent, link.node_id, len(bundle.archive)),
                        timeout_seconds=BUNDLE_SECONDS,
                    )
                if loads_ahead:
                    link.load_ahead(
                        self.reference(epoch=0),
                        sha256=bundle.sha256,
                        job_file=bundle.job_file,
                        timeout_seconds=BUNDLE_SECONDS,
                    )

        return {
            node_id: self.supervision.spawn(partial(send, link), name=f"send job files to {node_id}", device=node_id)
            for node_id, link in links.items()
        }

    def _bundle_sent(self, device: str, total_bytes: int, done_bytes: int) -> None:
        self.progress.tell(TransferProgress("job files", device, done_bytes, total_bytes))

    def places(self, links: Mapping[str, AgentLink]) -> dict[str, Place]:
        """Where the devices are, and where we are as they see it. Raises EdgeswarmError (DEVICE_UNREACHABLE)."""
        return {node_id: self._place(node_id, link.address) for node_id, link in links.items()}

    def _place(self, node_id: str, address: str) -> Place:
        try:
            self._own_hosts[address] = own_host_towards(address)
        except OSError as error:
            # A name server that is silent for a moment ends no training: what held before does.
            if address not in self._own_hosts:
                raise EdgeswarmError(
                    ErrorCode.DEVICE_UNREACHABLE,
                    f"There is no way from this machine to {node_id} at {address} ({error.strerror or error}).",
                    "Check this machine's network, and that the device's name is found; its address in numbers always is.",
                ) from error
        return place_of(address, own_host=self._own_hosts[address])

    def plan(
        self,
        options: TrainOptions,
        prepared: PreparedModel,
        links: Mapping[str, AgentLink],
        *,
        order: SampleOrder,
        renews_workers: bool = False,
        after: Sequence[Task[None]] = (),
        measured: Callable[[PlanningInstance], None] = lambda instance: None,
    ) -> tuple[Plan, PlanningInstance]:
        """Measure what isn't cached, and plan. renews_workers, after: see `measured_instance`. measured: told what that found,
        before it is known whether any plan fits.
        """
        least = max(layer.least_batch for layer in prepared.layer_graph.layers)
        # It may raise: before minutes of measuring.
        sizes_to_try(order.batch_size, options.micro_batch, least_batch=least)
        instance = self.measured_instance(
            options, prepared, links, order=order, renews_workers=renews_workers, after=after
        )
        measured(instance)
        with self.progress.step(PLAN, options.planner):
            planning = self.supervision.spawn(partial(_planned, options, instance), name="plan")
            (plan,) = self.supervision.wait(planning)
        self.progress.tell(PlanMade(plan, instance, tuple(layer.name for layer in instance.model.layers)))
        return plan, instance

    def measured_instance(
        self,
        options: TrainOptions,
        prepared: PreparedModel,
        links: Mapping[str, AgentLink],
        *,
        order: SampleOrder,
        renews_workers: bool = False,
        after: Sequence[Task[None]] = (),
    ) -> PlanningInstance:
        """What a planner is told of the job and these devices; measures what isn't cached.

        renews_workers: devices that measured start new workers then, since theirs hold what was compiled for each size that they
        tried: 10 MiB of a small model, 33 of MobileNetV2, which is in no plan. after: what keeps devices or the network busy:
        nothing is measured before it is done.
        """
        facts = ModelFacts(
            layer_graph=prepared.layer_graph,
            dtype=prepared.dtype,
            batch_size=order.batch_size,
            rest=order.rest,
            optimizer_state_factor=prepared.optimizer_state_factor,
            wire_dtype=prepared.wire_dtype,
            served=prepared.served,
            met_rows=prepared.met_rows,
            job_bytes=prepared.job_bytes,
            loss_bytes=prepared.loss_bytes,
            target_bytes=prepared.target_bytes,
        )
        measuring = Measuring(
            cache=ProfileCache(self.folders.cache_dir, warn=self.progress.warn),
            fresh=options.fresh_profiles,
            identity=self.identity,
            job=self.reference(epoch=0),
            devices=self.devices,
            progress=self.progress,
            supervision=self.supervision,
            after=after,
        )
        places = self.places(links)
        profiles = measuring.profiles(facts, links=links, places=places)
        if renews_workers:
            self.devices.renew_workers(measuring.measured_on)
        instance, warnings = planning_instance(
            facts,
            devices=[link.device for link in links.values()],
            profiles=profiles,
            name=options.job_name,
            here=[node_id for node_id, place in places.items() if place.on_this_machine],
        )
        for message in warnings:
            self.progress.warn(message)
        return instance

    def close(self, *, reason: str) -> None:
        """Free the devices, end the data service, end what still runs, remove the work folder."""
        with self._closing:
            self._closed = True
            service = self._data_service
        ending = Task(service.stop, name="end the data service") if service is not None else None
        try:
            self.devices.close(reason=reason)
            if ending is not None:
                ending.result()
        finally:
            self.supervision.abandon_tasks(wait_seconds=_ABANDON_SECONDS)
            self._work_folder.cleanup()


@contextlib.contextmanager
def running_command(
    name: str,
    *,
    folders: Folders | None,
    listener: Listener,
    cancel: threading.Event | None,
    lost_seconds: float = LOST_SECONDS,
) -> Iterator[Command]:
    """Around a command: whatever happens inside, nothing stays behind."""
    command = Command(
        name,
        folders=folders or Folders.find(),
        listener=listener,
        cancel=cancel or threading.Event(),
        lost_seconds=lost_seconds,
    )
    reason = "the command failed"
    try:
        yield command
        reason = "the command is done"
    except KeyboardInterrupt:
        reason = "the user interrupted it"
        raise EdgeswarmError(ErrorCode.INTERRUPTED, INTERRUPTED_MESSAGE) from None
    except EdgeswarmError as error:
        reason = error.message
        raise
    finally:
        command.close(reason=reason)


def _error_of(check: Callable[[], None]) -> EdgeswarmError | None:
    try:
        check()
    except EdgeswarmError as error:
        return error
    return None


def _planned(options: TrainOptions, instance: PlanningInstance) -> Plan:
    """The planner's plan, and how sure its prediction is."""
    plan = make_plan(instance, planner=options.planner, micro_batch=options.micro_batch)
    return with_relative_error(instance, plan)
