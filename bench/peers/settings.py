"""With which settings each peer runs: the best of a few that are tried on the testbed, as a competent user would.

Tried on short rounds of a part of the mini-batch; of those that fit memory the fastest is taken.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from bench.measuring import say
from bench.peers import balance
from bench.peers.blocks import blocks_of, has_images, samples
from bench.peers.launch import PeerRun, run_peer
from bench.peers.rounds import laid_out, memory_format
from bench.testbed.bed import EmulatedLan

MICRO_BATCHES = (8, 16, 32, 64, 128, 256)
BUCKETS_MIB = (2, 25)
ALONE_SLOWER = 0.95  # larger micro-batches are not tried once one is so much slower than the best
PIPELINE_MICRO_BATCHES = (16, 32, 64)
TRIAL_PART = 4  # of the mini-batch, where its size doesn't matter
TRIAL_ROUNDS = 2
_LIMIT_SECONDS = 600.0
_BLOCK_REPEATS = 7

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class PeerSettings:
    """script: a module of this package. devices: in the order of ranks. options: the script's own, beside the common ones.

    channels_last: how images lie in memory.
    """

    script: str
    devices: list[str]
    micro_batch: int
    options: dict[str, str] = field(default_factory=dict)
    channels_last: bool = False

    def words(self, model: str, mini_batch: int, *, rounds: int, seconds: float) -> list[str]:
        """The script's command line, but for ranks."""
        words = ["--model", model, "--mini-batch", mini_batch, "--micro-batch", self.micro_batch]
        words += ["--rounds", rounds, "--seconds", seconds, *(["--channels-last"] if self.channels_last else [])]
        return [*map(str, words), *(word for name, value in self.options.items() for word in (f"--{name}", value))]


def alone(bed: EmulatedLan, device: str, model: str, *, folder: Path, seconds: float) -> dict[str, float]:
    """What one device does by itself: samples_per_second at its best micro_batch, a step after each; `seconds` of each setting.

    plain_samples_per_second: with images as PyTorch has them when nobody asks for anything else; channels_last: 1 where they are
    better off otherwise.
    """
    best: dict[str, float] = {"samples_per_second": 0.0}
    for micro_batch in MICRO_BATCHES:
        place = folder / str(micro_batch)
        rate = rate_alone(bed, device, model, micro_batch=micro_batch, folder=place, seconds=seconds)
        if rate is None:
            break
        if rate > best["samples_per_second"]:
            best = {"samples_per_second": rate, "micro_batch": micro_batch}
        elif rate < ALONE_SLOWER * best["samples_per_second"]:
            break
    if not best["samples_per_second"]:
        raise RuntimeError(f"{device} can't train {model} by itself")
    best |= {"plain_samples_per_second": best["samples_per_second"], "channels_last": 0.0}
    if not has_images(model):
        return best
    least = best["micro_batch"]
    for micro_batch in (size for size in MICRO_BATCHES if size >= least):
        rate = rate_alone(
            *(bed, device, model),
            micro_batch=micro_batch,
            folder=folder / f"{micro_batch}-channels-last",
            seconds=seconds,
            channels_last=True,
        )
        if rate is None or rate < ALONE_SLOWER * best["samples_per_second"]:
            break
        if rate > best["samples_per_second"]:
            best |= {"samples_per_second": rate, "micro_batch": micro_batch, "channels_last": 1.0}
    return best


def rate_alone(
    bed: EmulatedLan,
    device: str,
    model: str,
    *,
    micro_batch: int,
    folder: Path,
    seconds: float,
    channels_last: bool = False,
) -> float | None:
    """Samples per second of one device that trains by itself; None, and why on standard error, where it can't."""
    settings = PeerSettings("single_device", [device], micro_batch, channels_last=channels_last)
    words = settings.words(model, micro_batch, rounds=1000, seconds=seconds)
    done = run_peer(bed, settings.script, [device], *words, folder=folder, limit_seconds=_LIMIT_SECONDS)
    if done.problem:
        say(f"{device} alone, {micro_batch} at once: {done.problem}")
        return None
    return micro_batch * len(done.round_seconds) / sum(done.round_seconds)


class PeerTuner:
    """Tries settings on the testbed. rates: samples per second of each device alone. cores: of one core, likewise.
    channels_last: as it was best alone. folder: for the logs of what is tried.
    """

    def __init__(
        self,
        bed: EmulatedLan,
        model: str,
        *,
        mini_batch: int,
        rates: Mapping[str, float],
        cores: Mapping[str, float],
        channels_last: bool,
        folder: Path,
    ) -> None:
        self._bed = bed
        self._model = model
        self._mini_batch = mini_batch
        self._rates = dict(rates)
        self._cores = dict(cores)
        self._channels_last = channels_last
        self._folder = folder
        self._tried = 0

    def data_parallel(self, micro_batch: int) -> dict[str, PeerSettings]:
        """With equal shares and with shares by speed, both with the bucket size that is best with the latter.

        micro_batch: what is best on a device alone is so here, as far as its memory holds DDP's buckets, too: between steps
        each computes by itself. Speeds are those of the devices alone, or of how busy each was with these: the faster of the two.
        """
        devices, by_speed = list(self._rates), list(self._rates.values())

        def settings(weights: Sequence[float], mini_batch: int, *, at_once: int, bucket_mib: int) -> PeerSettings:
            shares = balance.shares_by_speed(mini_batch, weights)
            options = {"shares": ",".join(map(str, shares)), "bucket-mib": str(bucket_mib)}
            return PeerSettings("data_parallel", devices, at_once, options, self._channels_last)

        tried: dict[tuple[int, int], float] = {}
        for at_once in (micro_batch >> halvings for halvings in range(micro_batch.bit_length())):
            # In which the slowest device computes as many samples at once as in a whole round.
            least = math.ceil(at_once * sum(by_speed) / min(by_speed))
            trial = min(self._mini_batch, max(self._mini_batch // TRIAL_PART, least))
            for bucket in BUCKETS_MIB:
                seconds = self._seconds(settings(by_speed, trial, at_once=at_once, bucket_mib=bucket), trial)
                tried[at_once, bucket] = seconds
            if not all(map(math.isinf, tried.values())):
                break
        at_once, bucket = best_of(tried)

        def whole(weights: Sequence[float]) -> PeerSettings:
            return settings(weights, self._mini_batch, at_once=at_once, bucket_mib=bucket)

        alone, done = whole(by_speed), self._try(whole(by_speed), self._mini_batch)
        choices = {alone.options["shares"]: (alone, seconds_of(done))}
        if not done.problem:
            shares = [int(share) for share in alone.options["shares"].split(",")]
            speeds = balance.corrected_speeds(shares, done.cpu_seconds, [self._cores[device] for device in devices])
            corrected = whole(speeds)
            if corrected != alone:
                choices[corrected.options["shares"]] = corrected, self._seconds(corrected, self._mini_batch)
        best = min(choices.values(), key=lambda choice: choice[1])[
            0
        ]  # where the trial failed, so will the run, and say why
        return {"DDP, equal shares": whole([1.0] * len(devices)), "DDP, shares by speed": best}

    def pipeline(self, *, bytes_per_second: float) -> PeerSettings:
        """Stages balanced by speed, for each number of micro-batches that is tried; 1F1B needs as many as stages."""
        found, tried = {}, {}
        for count in PIPELINE_MICRO_BATCHES:
            settings = self._balanced(self._mini_batch // count, bytes_per_second)
            if 1 < len(settings.devices) <= count:
                found[count] = settings
                tried[count] = self._seconds(settings, self._mini_batch)
        return found[best_of(tried)]

    def _balanced(self, micro_batch: int, bytes_per_second: float) -> PeerSettings:
        devices = list(self._rates)
        fastest = max(self._rates.values())
        seconds, output_bytes = block_costs(self._model, micro_batch, channels_last=self._channels_last)
        # The fastest device does `fastest` samples a second by itself; this machine's blocks say how they are spread.
        factor = micro_batch / fastest / sum(seconds)
        cut = balance.balanced_stages(
            [value * factor for value in seconds],
            output_bytes,
            slowness=[fastest / rate for rate in self._rates.values()],
            bytes_per_second=bytes_per_second,
        )
        order = [devices[place] for place in cut.devices]
        options = {"cuts": ",".join(map(str, cut.cuts))}
        return PeerSettings("pipeline", order, micro_batch, options, self._channels_last)

    def _seconds(self, settings: PeerSettings, mini_batch: int) -> float:
        """Of a round on trial; infinite where it fails."""
        return seconds_of(self._try(settings, mini_batch))

    def _try(self, settings: PeerSettings, mini_batch: int) -> PeerRun:
        self._tried += 1
        words = settings.words(self._model, mini_batch, rounds=TRIAL_ROUNDS, seconds=_LIMIT_SECONDS)
        done = run_peer(
            self._bed,
            settings.script,
            settings.devices,
            *words,
            folder=self._folder / str(self._tried),
            limit_seconds=_LIMIT_SECONDS,
        )
        told = done.problem or f"{seconds_of(done):.2f} s"
        say(f"{settings.script} {settings.micro_batch} {settings.options}: {told}")
        return done


def block_costs(model: str, micro_batch: int, *, channels_last: bool) -> tuple[list[float], list[int]]:
    """By block, on this machine: seconds of forward and backward of a micro-batch, and the bytes that it gives. All lies in
    memory as in the pipeline: what is quick in one layout is slow in the other.
    """
    torch.set_num_threads(1)
    seconds, output_bytes = [], []
    x = samples(model, micro_batch, memory_format=memory_format(channels_last))[0]
    for block in blocks_of(model):
        laid_out(block, channels_last)
        spans = []
        for _ in range(_BLOCK_REPEATS):
            source = x.detach().requires_grad_() if x.is_floating_point() else x
            begin = time.perf_counter()
            y = block(source)
            y.backward(torch.ones_like(y))
            spans.append(time.perf_counter() - begin)
        seconds.append(statistics.median(spans))
        x = y.detach()
        output_bytes.append(x.numel() * x.element_size())
    return seconds, output_bytes


def seconds_of(done: PeerRun) -> float:
    """Of its median round; infinite where it failed."""
    return math.inf if done.problem else statistics.median(done.round_seconds)


def best_of(tried: Mapping[Choice, float]) -> Choice:
    """The fastest one. Raises RuntimeError where none runs."""
    if not tried or math.isinf(min(tried.values())):
        raise RuntimeError(f"no setting runs: {', '.join(map(str, tried)) or 'there is none'}")
    return min(tried, key=lambda choice: tried[choice])
