"""The settings with which each peer trains to an accuracy: those that make a few of its rounds quickest, of these:

    single device            samples at once: 16, 32 and so on       x  two layouts of images
    DDP, shares by speed     likewise, up to the largest share       x  two
    1F1B                     micro-batches: 2, 4, 8 and 16           x  two       stages balanced by speed for each

What is compared is the time to an accuracy, and batch norms learn less of few samples at once: of settings that are as quick
within some percent, the one with most samples at once is taken. How many epochs each would need isn't looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from bench.jobs.digits import TASKS, Digits
from bench.measuring import say
from bench.peers.balance import shares_by_speed
from bench.peers.blocks import cut_into_blocks
from bench.peers.launch import run_peer
from bench.peers.own_process import in_own_process
from bench.peers.settings import PeerSettings, balanced_pipeline, best_of, block_costs, paced_seconds_of
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster

PEERS = SINGLE, DATA_PARALLEL, PIPELINE = ("single device", "DDP, shares by speed", "1F1B")
SAMPLES_AT_ONCE = (16, 32, 64, 128)
MICRO_BATCHES = (2, 4, 8, 16)
TRIAL_ROUNDS = 5
AS_QUICK = 1.05
LIMIT_SECONDS = 900.0

# (samples of a micro-batch, channels_last) -> seconds of each block on this machine, and the bytes of its output
Costs = Callable[[int, bool], tuple[Sequence[float], Sequence[int]]]


def tuned_peer(bed: EmulatedLan, cluster: BedCluster, method: str, task: str, folder: Path) -> PeerSettings:
    """The settings that are quickest in a few rounds. Where none runs any, whose run will say why."""
    devices = bed.environment.devices
    mini_batch = TASKS[task].batch_size
    tried: dict[str, float] = {}
    with cluster.paused():
        choices = {
            settings_shown(settings): settings
            for settings in settings_to_try(
                method,
                mini_batch,
                {device.name: device.cores for device in devices},
                costs=lambda samples, channels_last: in_own_process(costs_of, task, samples, channels_last),
                bytes_per_second=min(device.mbps for device in devices) * 1e6 / 8,
            )
        }
        for number, (name, settings) in enumerate(choices.items()):
            done = run_peer(
                bed,
                settings.script,
                settings.devices,
                *settings.words(task, mini_batch, rounds=TRIAL_ROUNDS, seconds=LIMIT_SECONDS, is_trial=True),
                "--trial",
                folder=folder / str(number),
                limit_seconds=LIMIT_SECONDS,
            )
            tried[name] = paced_seconds_of(done)
            say(f"{task}: {method}, {name}: {done.problem or f'{tried[name]:.3f} s'}")
    quickest = tried[best_of(tried)]
    as_quick = [choices[name] for name, seconds in tried.items() if seconds <= AS_QUICK * quickest]
    return max(as_quick, key=lambda settings: (settings.micro_batch, -tried[settings_shown(settings)]))


def settings_to_try(
    method: str, mini_batch: int, cores: Mapping[str, float], *, costs: Costs, bytes_per_second: float
) -> list[PeerSettings]:
    """method: of PEERS. cores: of each device. costs, bytes_per_second: for a pipeline's stages."""
    if method == PIPELINE:
        return [
            _pipeline(mini_batch, cores, costs, bytes_per_second, (count, channels_last))
            for channels_last in (True, False)
            for count in MICRO_BATCHES
        ]
    devices, shares = {
        SINGLE: ([max(cores, key=lambda name: cores[name])], [mini_batch]),
        DATA_PARALLEL: (list(cores), shares_by_speed(mini_batch, list(cores.values()))),
    }[method]
    options = {"shares": ",".join(map(str, shares))} if len(devices) > 1 else {}
    return [
        PeerSettings("to_accuracy", devices, at_once, options, channels_last)
        for channels_last in (True, False)
        for at_once in SAMPLES_AT_ONCE
        if at_once < 2 * max(shares)
    ]


def _pipeline(
    mini_batch: int, cores: Mapping[str, float], costs: Costs, bytes_per_second: float, choice: tuple[int, bool]
) -> PeerSettings:
    """choice: micro-batches, of which 1F1B needs as many as stages, and the layout."""
    count, channels_last = choice
    seconds, output_bytes = costs(mini_batch // count, channels_last)
    return balanced_pipeline(
        "pipeline_to_accuracy",
        cores,
        [each / max(cores.values()) for each in seconds],
        output_bytes,
        micro_batch=mini_batch // count,
        bytes_per_second=bytes_per_second,
        channels_last=channels_last,
        least_stages=2,
        most_stages=count,
    )


def costs_of(task: str, samples: int, channels_last: bool) -> tuple[list[float], list[int]]:
    """As `Costs`, of a task's model."""
    job = TASKS[task]
    item, _ = job.transform(Digits(test=True)[0], torch.Generator())
    blocks = cut_into_blocks(task, job.make())
    return block_costs(blocks, torch.stack([item] * samples), channels_last=channels_last)


def settings_shown(settings: PeerSettings) -> str:
    """`64 at once, channels last`, of a pipeline with its stages."""
    stages = f", {len(settings.devices)} stages" if "cuts" in settings.options else ""
    layout = "channels last" if settings.channels_last else "channel by channel"
    return f"{settings.micro_batch} at once{stages}, {layout}"
