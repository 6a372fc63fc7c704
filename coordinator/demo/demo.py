"""`edgeswarm demo`: a throw-away cluster of three unequal agents trains a CNN on handwritten digits, step by step.

What it shows is what happens: real processes, real mTLS, real profiles; the only thing made up is that two of the
agents stretch their computing time, so that the devices are unequal.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan

from ..cli.device_table import device_table
from ..cli.plan_view import show_plan_made
from ..cli.progress import Progress
from ..controller import list_devices, train
from ..device import Device
from ..options import TrainOptions
from ..planner.units import readable_seconds
from .cluster import LOOPBACK, AgentSpec, ThrowawayCluster

if TYPE_CHECKING:
    from rich.console import Console

AGENTS = (AgentSpec("nano-1"), AgentSpec("nano-2", slow_down=1.5), AgentSpec("nano-3", slow_down=3.0))
JOB_FILE = Path(__file__).with_name("digits_job.py")
LEAST_ACCURACY = 0.95


@dataclass(frozen=True)
class DemoOutcome:
    """What came of it. folder: the result where it was kept. found_by_mdns: else the agents' addresses were used."""

    correct: int
    images: int
    seconds: float
    found_by_mdns: bool
    devices: Sequence[Device]
    plan: Plan
    folder: Path | None

    @property
    def accuracy(self) -> float:
        return self.correct / self.images

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "correct": self.correct,
            "images": self.images,
            "seconds": self.seconds,
            "found_by_mdns": self.found_by_mdns,
            "devices": [device.to_json() for device in self.devices],
            "plan": self.plan.to_json(),
            "folder": None if self.folder is None else str(self.folder),
        }


def run_demo(console: Console, *, keep: Path | None, cancel: threading.Event) -> DemoOutcome:
    """Run the whole demo and tell a person about it on `console`.

    keep: a folder for the cluster and the result, None to leave nothing behind. cancel: set it to stop.
    Raises EdgeswarmError for whatever goes wrong; an accuracy that is too low is the caller's to judge.
    """
    require_scikit_learn()
    if keep is not None:
        _require_free(keep)
    start = time.monotonic()
    cluster = ThrowawayCluster(AGENTS, folder=None if keep is None else keep / "cluster")
    result_folder = cluster.folder / "result" if keep is None else keep / "result"
    try:
        _say(console, 1, f"A throw-away cluster: its own authority, operator and agents, in {cluster.folder}")
        cluster.start(cancel=cancel)
        agents = ", ".join(f"{agent.name} ({_speed(agent)})" for agent in AGENTS)
        console.print(f"  {agents}: ready after {readable_seconds(time.monotonic() - start)}")

        _say(console, 2, "Finding the agents by mDNS")
        devices, found_by_mdns = _find(cluster, console, cancel)
        console.print(device_table(devices))

        _say(console, 3, f"Training {JOB_FILE.name} over them: measure, plan, train")
        options = TrainOptions(
            job_path=JOB_FILE, output=result_folder, listen_address=LOOPBACK, discovery=cluster.discovery()
        )
        with Progress(console, show_plan=lambda event: show_plan_made(console, event)) as progress:
            result = train(options, folders=cluster.folders, listener=progress, cancel=cancel)

        _say(console, 4, "Loading model.safetensors into the plain PyTorch model, testing it on images it never saw")
        correct, images = evaluate(result_folder)
        console.print(f"  {correct} of {images} test images are right: {100 * correct / images:.1f} %")
    finally:
        cluster.stop()
    if keep is not None:
        console.print(f"  kept: {result_folder}")
    return DemoOutcome(
        correct=correct,
        images=images,
        seconds=time.monotonic() - start,
        found_by_mdns=found_by_mdns,
        devices=devices,
        plan=result.plan,
        folder=None if keep is None else result_folder,
    )


def require_scikit_learn() -> None:
    """Raises EdgeswarmError (MISSING_EXTRA) where scikit-learn, which ships the images, is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise EdgeswarmError(
            ErrorCode.MISSING_EXTRA,
            "The demo's images come with scikit-learn, which is not installed.",
            "Install it: pip install scikit-learn.",
        )


def evaluate(result_folder: Path) -> tuple[int, int]:
    """How many of the held-out images the checkpoint gets right, and how many there are, in plain PyTorch."""
    import torch
    from safetensors.torch import load_file

    from . import digits_job

    model = digits_job.DigitsCNN()
    model.load_state_dict(load_file(result_folder / "model.safetensors"))
    model.eval()
    test = digits_job.test_set()
    with torch.no_grad():
        answers = model(digits_job.scale(test.images)).argmax(dim=1)
    return int((answers == torch.tensor(test.labels)).sum()), len(test)


def _find(cluster: ThrowawayCluster, console: Console, cancel: threading.Event) -> tuple[tuple[Device, ...], bool]:
    """The devices, and whether mDNS found them; by their addresses where multicast doesn't work here."""
    try:
        devices = list_devices(cluster.discovery(mdns=True), folders=cluster.folders, cancel=cancel)
    except EdgeswarmError as error:
        if error.code is not ErrorCode.NO_DEVICES:
            raise
        devices = ()
    if len(devices) == len(cluster.names):
        console.print(f"  all {len(devices)} answered")
        return devices, True
    console.print(
        f"  mDNS found {len(devices)} of {len(cluster.names)} agents: multicast doesn't work well on this machine. "
        "Going on by their addresses."
    )
    return list_devices(cluster.discovery(), folders=cluster.folders, cancel=cancel), False


def _require_free(folder: Path) -> None:
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED, f"{folder} can't be used: {error.strerror}.", "Choose another folder."
        ) from error
    if taken:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_EXISTS, f"{folder} is not empty.", "Choose a folder that is empty or doesn't exist yet."
        )


def _speed(agent: AgentSpec) -> str:
    return "full speed" if agent.slow_down == 1.0 else f"{agent.slow_down:g} times slower"


def _say(console: Console, number: int, text: str) -> None:
    console.print(f"\n{number}. {text}", style="bold", soft_wrap=True)
