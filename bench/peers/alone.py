"""What one device does by itself: its best micro-batch, and how many samples it trains in a second.

8 -> 16 -> 32 -> ... until two are much slower than the best     channel by channel, then channels last from half the best on
best -> twice as many, while that is faster                      whichever of both is faster
best -> several of them a step                                   the rate, of whole steps

Trials have steps of several micro-batches, too, where these are small, and are compared at the machine's best pace.

A slower device of the same processor begins where the faster one ended: what is best differs by memory, if at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measuring import say
from bench.peers.blocks import has_images
from bench.peers.launch import run_peer
from bench.peers.rounds import LEAST_ROUNDS
from bench.peers.settings import PeerSettings, Trials, paced_seconds_of, seconds_of
from bench.testbed.bed import SPEED_LOGS, EmulatedLan
from bench.testbed.speed import best_pace, slowness

SLOWER, MOST_SLOWER = 0.95, 2  # larger micro-batches are not tried once so many are so much slower than the best
TRIAL_PART = 16  # of the mini-batch, which a step that is tried has at least
BUSY, MOST_TRIES = 1.1, 3  # the machine's slowness beyond which a rate is measured once more, and how often
_LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Alone:
    """A device by itself. seconds: of each setting that is tried, and of each step by which its rate is told; where nothing
    further is tried than what trials say, the rate is that of the best of them.
    """

    bed: EmulatedLan
    device: str
    model: str
    mini_batch: int
    seconds: float
    trials: Trials = field(default_factory=Trials)

    def best(self, folder: Path, *, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """samples_per_second with its best micro_batch; channels_last: 1 where images are better off so.

        plain_samples_per_second: with images as PyTorch has them when nobody asks for anything else, plain_micro_batch at a time.
        slowness: the machine's meanwhile, beside best_pace. like: the same of a device with the same processor. Raises
        RuntimeError where nothing runs.
        """
        if like is not None:
            return self._best_like(like, folder)
        plain = self._tried(self.trials.at_once, folder, channels_last=False)
        if not plain:
            raise RuntimeError(f"{self.device} can't train {self.model} by itself")
        at_once = max(plain, key=lambda size: plain[size])
        tried, channels_last = plain, False
        if has_images(self.model):
            larger = tuple(size for size in self.trials.at_once if 2 * size >= at_once)
            images = self._tried(larger, folder, channels_last=True, beside=plain[at_once])
            if images and max(images.values()) > plain[at_once]:
                tried, channels_last = images, True
                at_once = max(images, key=lambda size: images[size])
        # The best may be larger than what is tried for both; where that ended before, it was with one too large.
        while self._may_be_larger(at_once, tried):
            more = self._tried((2 * at_once,), folder, channels_last=channels_last, beside=tried[at_once])
            if not more or more[2 * at_once] <= tried[at_once]:
                break
            tried = {**tried, **more}
            at_once *= 2
        return self._told(tried[at_once], plain, folder, at_once=at_once, channels_last=channels_last)

    def _may_be_larger(self, at_once: int, tried: Mapping[int, float]) -> bool:
        is_last = at_once == max(tried) >= self.trials.at_once[-1]
        return self.trials.further and is_last and 2 * at_once <= self.mini_batch

    def _best_like(self, like: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        channels_last = bool(like["channels_last"])
        find = self._around if self.trials.further else self._fitting
        tried = find(int(like["micro_batch"]), folder, channels_last=channels_last)
        at_once = max(tried, key=lambda size: tried[size])
        plain = tried
        if channels_last:
            plain = self._fitting(int(like["plain_micro_batch"]), folder, channels_last=False)
        return self._told(tried[at_once], plain, folder, at_once=at_once, channels_last=channels_last)

    def _told(
        self, expected: float, plain: Mapping[int, float], folder: Path, *, at_once: int, channels_last: bool
    ) -> dict[str, Any]:
        """By whole steps, or what was expected. expected: samples per second. plain: by micro-batch, with images as PyTorch has
        them.
        """
        told: dict[str, Any] | None = {
            "samples_per_second": expected,
            "micro_batch": at_once,
            "channels_last": float(channels_last),
            "slowness": None,
        }
        if self.trials.further:
            told = self.largest_rate(at_once, folder / "whole-steps", channels_last=channels_last, expected=expected)
        if told is None:
            raise RuntimeError(f"{self.device} can't train {self.model} in steps of several micro-batches")
        best_plain = max(plain, key=lambda size: plain[size]) if channels_last else told["micro_batch"]
        slow = told["slowness"] or 1.0  # trials are told at the machine's best pace, and the rate as it was measured
        return {
            **told,
            "plain_micro_batch": best_plain,
            "plain_samples_per_second": plain[best_plain] / slow if channels_last else told["samples_per_second"],
        }

    def _around(self, size: int, folder: Path, *, channels_last: bool) -> dict[int, float]:
        """Samples per second of this micro-batch, of half and of twice as many, and farther while that is faster."""
        found = self._fitting(size, folder, channels_last=channels_last)
        is_largest = max(found) < size  # that memory is enough for
        for factor in (0.5,) if is_largest else (0.5, 2.0):
            at = max(found)
            while 1 <= (other := int(at * factor)) <= self.mini_batch and other not in found:
                found |= self._tried((other,), folder, channels_last=channels_last)
                if found.get(other, 0.0) <= found[at]:
                    break
                at = other
        return found

    def _fitting(self, size: int, folder: Path, *, channels_last: bool) -> dict[int, float]:
        """Of this micro-batch, or the largest half, quarter and so on that memory holds. Raises RuntimeError for none."""
        while size:
            if found := self._tried((size,), folder, channels_last=channels_last):
                return found
            size //= 2
        raise RuntimeError(f"{self.device} can't train {self.model} by itself")

    def largest_rate(
        self, at_once: int, folder: Path, *, channels_last: bool, expected: float, tries: int = MOST_TRIES
    ) -> dict[str, Any] | None:
        """`rate`, with half as many samples at once and so on where memory isn't enough."""
        while at_once:
            told = self.rate(
                at_once, folder / str(at_once), channels_last=channels_last, expected=expected, tries=tries
            )
            if told is not None:
                return told
            at_once //= 2
        return None

    def rate(
        self, at_once: int, folder: Path, *, channels_last: bool, expected: float, tries: int = MOST_TRIES
    ) -> dict[str, Any] | None:
        """Of whole steps, the fastest of some tries while the machine is busy with something else; None where it can't.

        expected: samples per second, about.
        """
        in_a_step = min(self.mini_batch // at_once, max(1, round(self.seconds * expected / at_once)))
        found: list[dict[str, Any]] = []
        for number in range(tries):
            told = self._run(
                at_once,
                in_a_step,
                folder / str(number),
                channels_last=channels_last,
                rounds=LEAST_ROUNDS,
                is_trial=False,
            )
            if told is None:
                break
            found.append(told)
            if not told["slowness"] or told["slowness"] <= BUSY:
                break
        return max(found, key=lambda told: float(told["samples_per_second"])) if found else None

    def _tried(
        self, sizes: tuple[int, ...], folder: Path, *, channels_last: bool, beside: float = 0.0
    ) -> dict[int, float]:
        """Samples per second by micro-batch; ends where two are much slower than the best so far, or `beside`."""
        found: dict[int, float] = {}
        slower = 0
        for size in (each for each in sizes if each <= self.mini_batch):
            place = folder / f"{size}{'-channels-last' if channels_last else ''}"
            in_a_step = max(1, self.mini_batch // TRIAL_PART // size)
            told = self._run(size, in_a_step, place, channels_last=channels_last, rounds=1000, is_trial=True)
            if told is None:
                break
            found[size] = told["at_best_pace"]
            slower += found[size] < SLOWER * max(beside, *found.values())
            if slower == MOST_SLOWER:
                break
        return found

    def _run(
        self, at_once: int, in_a_step: int, folder: Path, *, channels_last: bool, rounds: int, is_trial: bool
    ) -> dict[str, Any] | None:
        settings = PeerSettings("single_device", [self.device], at_once, channels_last=channels_last)
        words = settings.words(self.model, at_once * in_a_step, rounds=rounds, seconds=self.seconds, is_trial=is_trial)
        done = run_peer(self.bed, settings.script, [self.device], *words, folder=folder, limit_seconds=_LIMIT_SECONDS)
        if done.problem:
            say(f"{self.device} alone, {at_once} at once: {done.problem}")
            return None
        return {
            "samples_per_second": at_once * in_a_step / seconds_of(done),
            "at_best_pace": at_once * in_a_step / paced_seconds_of(done),
            "micro_batch": at_once,
            "channels_last": float(channels_last),
            "slowness": slowness(SPEED_LOGS, done.round_ends[0] - done.round_seconds[0], done.round_ends[-1]),
            "best_pace": best_pace(SPEED_LOGS),
        }
