"""Runs one job from the user's file to the result: `train`.

Its parts that stand alone are `list_devices` and `make_plan_for_job`. The way of a training:

    load job ── export ──────────────┐
        └─ data service ─────────────┼──────────────┐
    find, reserve (workers start) ───┴ profile, plan┴ prepare ── rounds, checkpoints ── write
                                                                         always: free the devices

What is written is the last checkpoint; one that is resumed and has no round left goes straight there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.samples import SampleOrder

from .command import running_command
from .device import Device
from .events import JobBegins, Listener, ignore
from .options import DiscoveryOptions, TrainOptions
from .output_folder import check_output_can_be_made
from .plan_by_hand import fitted, read_plan
from .tensorboard_log import logging_to_tensorboard
from .train_job import TrainJob, TrainResult, with_way_to_resume
from .unfinished import UnfinishedTraining

__all__ = ["DiscoveryOptions", "TrainOptions", "TrainResult", "list_devices", "make_plan_for_job", "train"]


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
    measured: Callable[[PlanningInstance], None] = lambda instance: None,
) -> tuple[Plan, PlanningInstance]:
    """`edgeswarm plan job.py`: exports, measures what isn't cached, plans, and frees the devices again.

    measured: told what that found, before it is known whether any plan fits.
    With a plan by hand in the options that one comes back in place of a planner's, with the devices' full names.
    """
    by_hand = read_plan(options.plan_path) if options.plan_path is not None else None
    with running_command(
        options.job_name, folders=folders, listener=listener, cancel=cancel, lost_seconds=options.lost_seconds
    ) as command:
        preparation = command.start_preparation(options, trains=False)
        wanted = by_hand.devices if by_hand is not None else options.discovery.devices
        links = command.devices.find(options.discovery, wanted=wanted)
        (prepared,) = command.supervision.wait(preparation.exporting)
        order = SampleOrder.of(preparation.loading.result().job, prepared.dataset_length)
        if by_hand is None:
            return command.plan(options, prepared, links, order=order, measured=measured)
        # First, since measuring may take minutes.
        plan = fitted(by_hand, node_ids=tuple(links), layer_graph=prepared.layer_graph, batch_size=order.batch_size)
        return plan, command.measured_instance(options, prepared, links, order=order)


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
    Raises EdgeswarmError for everything that goes wrong; the first error is the one that is told. One that ends a training
    which has a checkpoint says how to go on from there.
    """
    check_output_can_be_made(options.result_folder)
    by_hand = read_plan(options.plan_path) if options.plan_path is not None else None
    unfinished = UnfinishedTraining(options.unfinished_folder)
    if options.resume:
        unfinished.resume()
    else:
        unfinished.check_absent()
    try:
        with (
            logging_to_tensorboard(
                options.current_folder / options.tensorboard if options.tensorboard is not None else None, listener
            ) as told,
            running_command(
                options.job_name, folders=folders, listener=told, cancel=cancel, lost_seconds=options.lost_seconds
            ) as command,
        ):
            command.progress.tell(JobBegins(command.job_id))
            return TrainJob(command, options, unfinished).run(by_hand)
    except EdgeswarmError as error:
        if unfinished.manifest is None or error.code in (ErrorCode.CHECKPOINT, ErrorCode.OUTPUT_EXISTS):
            raise
        raise with_way_to_resume(error, options, round_number=unfinished.manifest.round) from error
    finally:
        unfinished.close()
