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
from torch import Tensor, nn

from bench.measuring import say
from bench.peers import balance
from bench.peers.blocks import blocks_of, samples
from bench.peers.launch import PeerRun, run_peer
from bench.peers.own_process import in_own_process
from bench.peers.rounds import WARM_UP_SECONDS, laid_out, memory_format
from bench.testbed.bed import SPEED_LOGS, EmulatedLan
from bench.testbed.speed import at_best_pace, slowness

TRIAL_PART = 4  # of the mini-batch, where its size doesn't matter
TRIAL_ROUNDS = 2
HOPELESS = 1.25  # a pipeline of fewer stages that takes so much longer than the best: of still fewer none is tried
_LIMIT_SECONDS = 600.0
_BLOCK_REPEATS = 7

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Trials:
    """What is tried first; more, while the best is at an end. at_once: samples, on a device alone. buckets_mib: DDP's, no others.
    micro_batches: of a round of 1F1B. further: whether more are tried while that makes something faster.
    """

    at_once: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    buckets_mib: tuple[int, ...] = (2, 25)
    micro_batches: tuple[int, ...] = (16, 32, 64)
    further: bool = True


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

    def words(
        self,
        model: str,
        mini_batch: int,
        *,
        rounds: int,
        seconds: float,
        warm_up_seconds: float = WARM_UP_SECONDS,
        is_trial: bool = False,
    ) -> list[str]:
        """The script's command line, but for ranks. is_trial: few rounds say enough."""
        words = ["--model", model, "--mini-batch", mini_batch, "--micro-batch", self.micro_batch]
        words += ["--rounds", rounds, "--seconds", seconds, *(["--channels-last"] if self.channels_last else [])]
        words += ["--warm-up-seconds", 0, "--least-rounds", 1] if is_trial else ["--warm-up-seconds", warm_up_seconds]
        return [*map(str, words), *(word for name, value in self.options.items() for word in (f"--{name}", value))]


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
        trials: Trials,
        folder: Path,
    ) -> None:
        self._bed = bed
        self._model = model
        self._mini_batch = mini_batch
        self._rates = dict(rates)
        self._cores = dict(cores)
        self._channels_last = channels_last
        self._trials = trials
        self._folder = folder
        self._tried = 0

    def data_parallel(self, micro_batches: Mapping[str, int]) -> dict[str, PeerSettings]:
        """With equal shares and with shares by speed, both with the bucket size that is best with the latter.

        micro_batches: what is best on each device alone is so here, as far as its memory holds DDP's buckets, too: between steps
        each computes by itself. Speeds are those of the devices alone, or of how busy each was with these: the faster of the two.
        """
        devices, by_speed = list(self._rates), list(self._rates.values())

        def settings(
            weights: Sequence[float], mini_batch: int, *, at_once: Mapping[str, int], bucket_mib: int
        ) -> PeerSettings:
            sizes = [at_once[device] for device in devices]
            options = {
                "shares": ",".join(map(str, balance.shares_by_speed(mini_batch, weights))),
                "at-once": ",".join(map(str, sizes)),
                "bucket-mib": str(bucket_mib),
            }
            return PeerSettings("data_parallel", devices, max(sizes), options, self._channels_last)

        def whole(weights: Sequence[float]) -> PeerSettings:
            return settings(weights, self._mini_batch, at_once=at_once, bucket_mib=bucket)

        at_once = dict(micro_batches)
        tried: dict[int, float] = {}
        runs: dict[int, PeerRun] = {}
        while True:
            # In which each device computes as many samples at once as in a whole round.
            least = math.ceil(max(at_once[device] * sum(by_speed) / rate for device, rate in self._rates.items()))
            trial = min(self._mini_batch, max(self._mini_batch // TRIAL_PART, least))
            short: set[str] = set()
            for bucket in self._trials.buckets_mib:
                done = runs[bucket] = self._try(settings(by_speed, trial, at_once=at_once, bucket_mib=bucket), trial)
                tried[bucket] = paced_seconds_of(done)
                short.add(done.short_of_memory if done.problem else "")
            if all(map(math.isinf, tried.values())) and self._halve(at_once, short):
                continue
            bucket = best_of(tried)
            alone = whole(by_speed)
            done = runs[bucket] if trial == self._mini_batch else self._try(alone, self._mini_batch)
            # Its parts may be larger than those of the trials, whose shares are cut otherwise.
            if not done.short_of_memory or not self._halve(at_once, {done.short_of_memory}):
                break
        choices = {alone.options["shares"]: (alone, paced_seconds_of(done))}
        if self._trials.further and not done.problem:
            shares = [int(share) for share in alone.options["shares"].split(",")]
            speeds = balance.corrected_speeds(shares, done.cpu_seconds, [self._cores[device] for device in devices])
            corrected = whole(speeds)
            if corrected != alone:
                choices[corrected.options["shares"]] = corrected, self._seconds(corrected, self._mini_batch)
        # Where the trial failed, so will the run, and say why.
        best, _ = min(choices.values(), key=lambda choice: choice[1])
        return {"DDP, equal shares": whole([1.0] * len(devices)), "DDP, shares by speed": best}

    def _halve(self, at_once: dict[str, int], short: set[str]) -> bool:
        """Fewer samples at once on devices like those that ran short of memory, on all where none did. False where each that is
        meant has one sample already.
        """
        kinds = {self._cores[device] for device in short if device}
        halved = [device for device in at_once if (not kinds or self._cores[device] in kinds) and at_once[device] > 1]
        for device in halved:
            at_once[device] //= 2
        return bool(halved)

    def pipeline(self, *, bytes_per_second: float) -> PeerSettings:
        """Stages balanced by speed, for each number of micro-batches that is tried; 1F1B needs as many as stages.

        Beyond those of its trials half or twice as many, while the best is the least or the most of all; and of the best number
        fewer and fewer stages, until that is much slower: their bubble is smaller than what balances best has.
        """
        found: dict[int, PeerSettings] = {}
        tried: dict[int, float] = {}
        ahead = [count for count in self._trials.micro_batches if count <= self._mini_batch]
        while ahead:
            for count in ahead:
                settings = self._balanced(self._mini_batch // count, bytes_per_second, most_stages=count)
                found[count], tried[count] = settings, self._seconds(settings, self._mini_batch)
            if all(map(math.isinf, tried.values())):  # more of them are smaller, and need less memory
                ahead = [count for count in (2 * max(tried),) if count <= self._mini_batch]
                continue
            best = best_of(tried)
            ahead = [
                count
                for count, end in ((best // 2, min(tried)), (2 * best, max(tried)))
                if self._trials.further and best == end and 1 < count <= self._mini_batch
            ]
        quickest = best_of(tried)
        chosen, seconds = found[quickest], tried[quickest]
        stages = len(chosen.devices)
        while self._trials.further and stages > 2:
            fewer = self._balanced(chosen.micro_batch, bytes_per_second, most_stages=stages - 1)
            stages = len(fewer.devices)
            of_fewer = self._seconds(fewer, self._mini_batch)
            if of_fewer < seconds:
                chosen, seconds = fewer, of_fewer
            elif of_fewer > HOPELESS * seconds:
                break
        return chosen

    def _balanced(self, micro_batch: int, bytes_per_second: float, *, most_stages: int) -> PeerSettings:
        seconds, output_bytes = costs_of_blocks(self._model, micro_batch, channels_last=self._channels_last)
        # The fastest device does so many samples a second by itself; this machine's blocks say how they are spread.
        factor = micro_batch / max(self._rates.values()) / sum(seconds)
        return balanced_pipeline(
            "pipeline",
            self._rates,
            [value * factor for value in seconds],
            output_bytes,
            micro_batch=micro_batch,
            bytes_per_second=bytes_per_second,
            channels_last=self._channels_last,
            least_stages=2,
            most_stages=most_stages,
        )

    def _seconds(self, settings: PeerSettings, mini_batch: int) -> float:
        """Of a round on trial; infinite where it fails."""
        return paced_seconds_of(self._try(settings, mini_batch))

    def _try(self, settings: PeerSettings, mini_batch: int) -> PeerRun:
        self._tried += 1
        words = settings.words(self._model, mini_batch, rounds=TRIAL_ROUNDS, seconds=_LIMIT_SECONDS, is_trial=True)
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


def balanced_pipeline(
    script: str,
    rates: Mapping[str, float],
    block_seconds: Sequence[float],
    output_bytes: Sequence[int],
    *,
    micro_batch: int,
    bytes_per_second: float,
    channels_last: bool,
    least_stages: int = 1,
    most_stages: int | None = None,
) -> PeerSettings:
    """A stage on each of the devices that it is best with. rates: how fast each is beside the others. block_seconds: of a
    micro-batch on the fastest of them.
    """
    devices, fastest = list(rates), max(rates.values())
    cut = balance.balanced_stages(
        block_seconds,
        output_bytes,
        slowness=[fastest / rate for rate in rates.values()],
        bytes_per_second=bytes_per_second,
        least_stages=least_stages,
        most_stages=most_stages,
    )
    options = {"cuts": ",".join(map(str, cut.cuts))}
    return PeerSettings(script, [devices[place] for place in cut.devices], micro_batch, options, channels_last)


def costs_of_blocks(model: str, micro_batch: int, *, channels_last: bool) -> tuple[list[float], list[int]]:
    """`block_costs` of a model, as its ranks would see them."""
    return in_own_process(_costs_of_blocks, model, micro_batch, channels_last)


def _costs_of_blocks(model: str, micro_batch: int, channels_last: bool) -> tuple[list[float], list[int]]:
    torch.set_flush_denormal(True)  # as in `join`
    return block_costs(blocks_of(model), samples(model, micro_batch)[0], channels_last=channels_last)


def block_costs(blocks: Sequence[nn.Module], inputs: Tensor, *, channels_last: bool) -> tuple[list[float], list[int]]:
    """By block, in this process: seconds of forward and backward of a micro-batch, and the bytes that it gives. All lies in
    memory as in the pipeline: what is quick in one layout is slow in the other. The model's own input has no gradient.
    """
    torch.set_num_threads(1)
    seconds, output_bytes = [], []
    x = inputs.contiguous(memory_format=memory_format(channels_last)) if inputs.dim() == 4 else inputs
    for place, block in enumerate(blocks):
        laid_out(block, channels_last)
        spans = []
        for _ in range(_BLOCK_REPEATS):
            source = x.detach().requires_grad_() if place and x.is_floating_point() else x
            begin = time.perf_counter()
            y = block(source)
            y.backward(torch.ones_like(y))
            spans.append(time.perf_counter() - begin)
        seconds.append(statistics.median(spans))
        x = y.detach()
        output_bytes.append(x.numel() * x.element_size())
    return seconds, output_bytes


def slowness_of_rounds(done: PeerRun) -> list[float | None]:
    """The machine's in each timed round."""
    return [
        slowness(SPEED_LOGS, end - seconds, end)
        for seconds, end in zip(done.round_seconds, done.round_ends, strict=True)
    ]


def paced_seconds_of(done: PeerRun) -> float:
    """Of its median round at the machine's best pace, as far as that is known: what else the machine has to do decides between no
    two settings. Infinite where it failed.
    """
    paced = at_best_pace(done.round_seconds, slowness_of_rounds(done))
    return statistics.median(paced) if paced else seconds_of(done)


def seconds_of(done: PeerRun) -> float:
    """Of its median round; infinite where it failed."""
    return math.inf if done.problem else statistics.median(done.round_seconds)


def best_of(tried: Mapping[Choice, float]) -> Choice:
    """The fastest one; where none runs the last one, whose run will say why."""
    return min(reversed([*tried]), key=lambda choice: tried[choice])
