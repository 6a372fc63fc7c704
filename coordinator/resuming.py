"""Whether a training can go on from a checkpoint: what must be the same, and what the command line need not say again. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.plan import Plan

from .manifest import Manifest
from .options import TrainOptions

# What is free on a device differs a little each time that somebody looks, which makes no other device of it.
_FREE_MEMORY_VARIES = 0.05


def job_to_resume(job: Job, manifest: Manifest, options: TrainOptions, *, bundle_sha256: str) -> Job:
    """The job with what its first part was told on the command line, unless it is told otherwise now.

    A job file that has changed since speaks for itself.
    """
    if bundle_sha256 != manifest.bundle_sha256:
        return job
    return dataclasses.replace(
        job,
        epochs=manifest.epochs if options.epochs is None else job.epochs,
        batch_size=manifest.batch_size if options.batch_size is None else job.batch_size,
        seed=manifest.seed if options.seed is None else job.seed,
        wire_dtype=(manifest.wire_dtype or None) if options.wire_dtype is None else job.wire_dtype,
    )


def check_job_is_the_same(manifest: Manifest, job: Job, *, dataset_length: int) -> None:
    """Raises EdgeswarmError (CHECKPOINT) naming what differs so that the rest of the training wouldn't be its rest."""
    for what, before, now in (
        ("seed", manifest.seed, job.seed),
        ("batch_size", manifest.batch_size, job.batch_size),
        ("drop_last", manifest.drop_last, job.drop_last),
        ("number of samples in the dataset", manifest.dataset_length, dataset_length),
    ):
        if before != now:
            raise EdgeswarmError(
                ErrorCode.CHECKPOINT,
                f"The job is not the one of the checkpoint: its {what} is {now} now, and was {before}.",
                f"Set it back to {before} to go on, or move the unfinished training away and train from the beginning.",
            )
    rounds = dataclasses.replace(manifest, epochs=job.epochs).rounds
    if rounds < manifest.round:
        raise EdgeswarmError(
            ErrorCode.CHECKPOINT,
            f"The checkpoint is after round {manifest.round}, and {job.epochs} epochs have {rounds} rounds.",
            "Give more with --epochs.",
        )


def narrow_wire_dtype(job: Job) -> str:
    """How activations and gradients travel where that is narrower than they are; else empty."""
    return "" if job.wire_dtype in (None, "float32") else str(job.wire_dtype)


def warnings_on_resuming(manifest: Manifest, job: Job, *, bundle_sha256: str) -> list[str]:
    """What has changed and doesn't hinder."""
    now, before = narrow_wire_dtype(job), manifest.wire_dtype
    if bundle_sha256 == manifest.bundle_sha256 and now == before:
        return []
    wire = f" wire_dtype is {now or None} now, and was {before or None}." if now != before else ""
    return [
        f"The job has changed since the checkpoint.{wire} Weights and optimizer state, the values of its groups "
        "(learning rate and others) too, are the checkpoint's."
    ]


def plan_to_follow(
    manifest: Manifest, options: TrainOptions, *, memory_bytes: Mapping[str, int]
) -> tuple[Plan | None, str]:
    """(the checkpoint's plan, "") where it can be followed again, else (None, why not).

    memory_bytes: what the devices that may be used have for training now, by node id.
    """
    asked = options.new_plan or options.planner != TrainOptions.planner
    if asked or options.micro_batch is not None or options.fresh_profiles:
        return None, "the command line asks for another one"
    plan = manifest.plan
    missing = [device for device in plan.devices if device not in memory_bytes]
    if missing:
        return None, f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not at hand"
    needed = plan.predicted.memory_bytes if plan.predicted is not None else {}
    short = [
        device for device in plan.devices if needed.get(device, 0) > (1 + _FREE_MEMORY_VARIES) * memory_bytes[device]
    ]
    if short:
        return None, f"{', '.join(short)} may use less memory now than it takes"
    return plan, ""


def new_devices(plan: Plan, found: Sequence[str]) -> list[str]:
    """Those that nobody knew of when the plan was made; none where a person wrote it. found: node ids."""
    if plan.predicted is None:
        return []
    known = {*plan.devices, *(idle.name for idle in plan.idle)}
    return [device for device in found if device not in known]
