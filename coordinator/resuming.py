"""Whether a training can go on from a checkpoint: what must be the same, and what the command line need not say again. Pure."""

from __future__ import annotations

import dataclasses

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.plan import Plan

from .manifest import Manifest
from .options import TrainOptions


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


def plan_to_follow(manifest: Manifest, options: TrainOptions, *, found: tuple[str, ...]) -> tuple[Plan | None, str]:
    """(the checkpoint's plan, "") where it can be followed again, else (None, why not).

    found: the node ids of the devices that may be used.
    """
    if options.planner != TrainOptions.planner or options.micro_batch is not None:
        return None, "the command line asks for another one"
    missing = [device for device in manifest.plan.devices if device not in found]
    if missing:
        return None, f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not at hand"
    return manifest.plan, ""
