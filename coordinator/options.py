"""What a person asks for on the command line. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edgeswarm.config import LOST_SECONDS


def unfinished_folder(result_folder: Path) -> Path:
    """Where checkpoints are kept until the result is written: beside the result's own place."""
    return result_folder.with_name(f"{result_folder.name}.unfinished")


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed: absolute paths are as good as ever
        return Path()


@dataclass(frozen=True)
class DiscoveryOptions:
    """Where agents are looked for.

    peers: `host:port` given by hand. devices: use only these (node ids, or names without the six hex digits); empty for all.
    wait_seconds: how long mDNS listens. interfaces: network interfaces for mDNS, empty for the default choice.
    """

    peers: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    mdns: bool = True
    wait_seconds: float = 3.0
    interfaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainOptions:
    """One training as the command line asks for it.

    output: folder of the result, `edgeswarm-out-<job name>` by default (the job's name is its file's stem). current_folder: where
    it and others begin, whatever the job's code makes of the process's own.
    plan_path: an `edgeswarm-plan/1` file to follow; then nothing is measured and `planner` isn't asked.
    micro_batch: fixed, or None to let the planner choose. epochs, batch_size, seed, wire_dtype: over the job's own.
    fresh_profiles: measure again what is cached. listen_address, data_port: where the data service listens, there and on the
    port behind it; port 0 for any free ones. lost_seconds: within which it is known that a silent device is lost.
    resume: go on with the unfinished training in `unfinished_folder`. new_plan: with a plan of its own even so.
    checkpoint_every: rounds from one checkpoint to the next; None lets the training's own pace decide. tensorboard: folder for
    its event files.
    keep_shares: the samples stay shared as the plan has it, whatever speed the devices show; so they do with plan_path.
    """

    job_path: Path
    output: Path | None = None
    plan_path: Path | None = None
    planner: str = "edgeswarm"
    micro_batch: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    seed: int | None = None
    wire_dtype: str | None = None
    fresh_profiles: bool = False
    listen_address: str = "0.0.0.0"
    data_port: int = 0
    lost_seconds: float = LOST_SECONDS
    resume: bool = False
    new_plan: bool = False
    checkpoint_every: int | None = None
    tensorboard: Path | None = None
    keep_shares: bool = False
    discovery: DiscoveryOptions = field(default_factory=DiscoveryOptions)
    current_folder: Path = field(default_factory=_current_folder)

    @property
    def job_name(self) -> str:
        return self.job_path.stem

    @property
    def result_folder(self) -> Path:
        return self.current_folder / (self.output or f"edgeswarm-out-{self.job_name}")

    @property
    def unfinished_folder(self) -> Path:
        return unfinished_folder(self.result_folder)
