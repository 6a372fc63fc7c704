"""Runs one job from the user's file to the result: `train`.

Its parts that stand alone are `list_devices` and `make_plan_for_job`. The way of a training:

    load job ── export ──────────────┐
        └─ data service ─────────────┼──────────────┐
    find, reserve (workers start) ───┴ profile, plan┴ prepare ── start ── rounds ── gather ── write
                                                                                     always: free the devices
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeswarm.config import Folders, join_host_and_port
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.samples import SampleOrder
from edgeswarm.wire.v1 import agent_pb2

from .command import Command, running_command
from .data_service import DataServiceReady
from .deployment import Deployment
from .device import Device
from .events import GATHER, WRITE_RESULT, Listener, PlanMade, TrainingDone, ignore
from .job_run import JobRun
from .job_state import Phase
from .last_round import check_plan
from .metrics import metrics_document
from .options import DiscoveryOptions, TrainOptions
from .output_folder import check_output_can_be_made
from .plan_by_hand import fitted, read_plan

__all__ = ["DiscoveryOptions", "TrainOptions", "TrainResult", "list_devices", "make_plan_for_job", "train"]


@dataclass(frozen=True)
class TrainResult:
    """folder: with model.safetensors, optimizer.*, metrics.json, plan.json. metrics: what metrics.json holds."""

    folder: Path
    plan: Plan
    metrics: Mapping[str, Any]


def list_devices(
    options: DiscoveryOptions,
    *,
    folders: Folders | None = None,
    listener: Listener = ignore,
    cancel: threading.Event | None = None,
) -> tuple[Device, ...]:
    """Every device that answers, busy ones too. Raises EdgeswarmError (NO_DEVICES, exit code 3) when there is none."""
    with running_command("devices", folders=folders, listener=listener, cancel=cancel) as command:
        links = command.devices.find(options, wanted=options.devices, busy_too=True)
        return tuple(link.device for link in links.values())


def make_plan_for_job(
    options: TrainOptions,
    *,
    folders: Folders | None = None,
    listener: Listener = ignore,
    cancel: threading.Event | None = None,
) -> tuple[Plan, PlanningInstance]:
    """`edgeswarm plan job.py`: exports, measures what isn't cached, plans, and frees the devices again."""
    with running_command(options.job_name, folders=folders, listener=listener, cancel=cancel) as command:
        preparation = command.start_preparation(options)
        links = command.devices.find(options.discovery, wanted=options.discovery.devices)
        (prepared,) = command.supervision.wait(preparation.exporting)
        return command.plan(options, prepared, links, batch_size=preparation.loading.result().job.batch_size)


def train(
    options: TrainOptions,
    *,
    folders: Folders | None = None,
    listener: Listener = ignore,
    cancel: threading.Event | None = None,
) -> TrainResult:
    """`edgeswarm train job.py`. folders: of the operator; this user's own by default.

    listener is called from one thread at a time. cancel: set it to stop at any point; the devices are freed, and
    EdgeswarmError (INTERRUPTED, exit code 130) is raised, as it is on KeyboardInterrupt.
    Raises EdgeswarmError for everything that goes wrong; the first error is the one that is told.
    """
    check_output_can_be_made(options.result_folder)
    by_hand = read_plan(options.plan_path) if options.plan_path is not None else None
    with running_command(options.job_name, folders=folders, listener=listener, cancel=cancel) as command:
        return _train(command, options, by_hand)


def _train(command: Command, options: TrainOptions, by_hand: Plan | None) -> TrainResult:
    supervision, progress = command.supervision, command.progress
    preparation = command.start_preparation(options)
    serving = command.start_data_service(preparation, options.listen_address)
    wanted = by_hand.devices if by_hand is not None else options.discovery.devices
    links = command.devices.find(options.discovery, wanted=wanted)
    command.devices.reserve(links)
    sending = command.send_bundle(preparation.loading, links)
    (prepared,) = supervision.wait(preparation.exporting)
    loaded = preparation.loading.result()
    job, bundle = loaded.job, loaded.bundle

    if by_hand is None:
        plan, _ = command.plan(options, prepared, links, batch_size=job.batch_size)
    else:
        graph = prepared.layer_graph
        plan = fitted(by_hand, node_ids=tuple(links), layer_graph=graph, batch_size=job.batch_size)
        progress.tell(PlanMade(plan, None, tuple(layer.name for layer in graph.layers)))
    layers = prepared.layer_graph.layers
    check_plan(plan, layers, dataset_length=prepared.dataset_length, batch_size=job.batch_size)
    command.devices.free([node_id for node_id in links if node_id not in plan.devices], reason="not in the plan")
    links = {device: links[device] for device in plan.devices}
    service: DataServiceReady = supervision.wait(serving, *(sending[device] for device in plan.devices))[0]

    order = SampleOrder(prepared.dataset_length, job.batch_size, job.seed)
    rounds = order.rounds_per_epoch * job.epochs
    run = JobRun(plan=plan, order=order, rounds=rounds, links=links, progress=progress, supervision=supervision)
    reference = command.reference(epoch=1)
    settings = agent_pb2.TrainingSettings(
        bundle_sha256=bundle.sha256,
        job_file=bundle.job_file,
        batch_size=job.batch_size,
        epochs=job.epochs,
        seed=job.seed,
        dataset_length=prepared.dataset_length,
        data_mode=job.data,
        loss_counts=prepared.loss_counts,
        least_batch=max(layer.least_batch for layer in prepared.layer_graph.layers),
    )
    places = command.places(links)

    def deployment_on(ports: Mapping[str, int]) -> Deployment:
        return Deployment(
            job=reference,
            plan=plan,
            layer_graph=prepared.layer_graph,
            places=places,
            worker_ports=ports,
            holder=(command.identity.node_id, service.port),
            training=settings,
        )

    deployment = run.prepare(deployment_on)
    run.run(reference)

    from .checkpoint import write_result
    from .gather import stage_fetchers

    with progress.step(GATHER):
        addresses = {
            device: join_host_and_port(places[device].host, port) for device, port in deployment.worker_ports.items()
        }
        fetchers = stage_fetchers(
            plan, job=reference, round_number=rounds, addresses=addresses, identity=command.identity
        )
        states = run.gather(deployment, fetchers)
    supervision.begin(Phase.DONE)
    command.devices.close(reason="the training is done")
    with progress.step(WRITE_RESULT, str(options.result_folder)):
        metrics = metrics_document(
            job_id=reference.job_id,
            rounds=run.done,
            rounds_seconds=run.rounds_seconds,
            until_first_round_seconds=run.until_first_round_seconds,
            steps=progress.steps,
            prepared=run.prepared,
            settings={"batch_size": job.batch_size, "epochs": job.epochs, "seed": job.seed, "data": job.data},
        )
        write_result(
            options.result_folder,
            layer_states=states,
            tensors=prepared.layer_graph.tensors,
            plan=plan.to_json(),
            metrics=metrics,
            unused=prepared.unused,
        )
    progress.tell(
        TrainingDone(
            folder=options.result_folder,
            rounds=rounds,
            loss=run.done[-1].loss,
            rounds_seconds=run.rounds_seconds,
            seconds=progress.seconds(),
        )
    )
    return TrainResult(options.result_folder, plan, metrics)
