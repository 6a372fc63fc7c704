"""The feed: gives the worker the inputs and targets of its micro-batches, ahead of need.

    requests   (round, micro-batch, indices) in the order of use
       |
    fetch thread:  read a run of them at once -> transform each sample -> collate      at most `ahead` wait here
       |
    get(round, micro_batch) -> Batch

What goes wrong in the thread latches: `get` raises it, from then on always.
"""

from __future__ import annotations

import hashlib
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.wire.fetch import SamplePart
from edgeswarm.wire.tensor_samples import collate_items, part_of

from .errors import HaltedError, line_of
from .samples import Samples, SampleSource

CLOSE_SECONDS = 2.0


@dataclass(frozen=True)
class FeedRequest:
    """Samples that this worker will need: its interval of a micro-batch, as indices into the data set."""

    round: int
    micro_batch: int
    indices: tuple[int, ...]
    epoch: int


@dataclass(frozen=True)
class Batch:
    """inputs: nested as an item's, each tensor [n, ...]; targets likewise. None for an unwanted part.

    indices: of the samples in the data set.
    """

    inputs: Any = None
    targets: Any = None
    indices: tuple[int, ...] = ()


class SampleFeed:
    """Fetches in a thread of its own what `requests` names, in that order, up to `ahead` micro-batches before its use.

    part: what `get` gives. With a transform whole samples are read all the same, since it takes and returns whole ones.
    requests may be endless. where: the device's name, for messages. `close` it: it has a thread.
    """

    def __init__(
        self,
        *,
        source: SampleSource,
        job: Job,
        seed: int,
        part: SamplePart,
        requests: Iterator[FeedRequest],
        ahead: int = 4,
        where: str = "this device",
    ) -> None:
        if ahead < 1:
            raise ValueError("ahead is at least 1 micro-batch")
        self._source = source
        self._transform = job.transform
        self._seed = seed
        self._part = part
        self._requests = requests
        self._ahead = ahead
        self._where = where
        self._changed = threading.Condition()
        self._ready: dict[tuple[int, int], Batch] = {}
        self._pending: FeedRequest | None = None
        self._error: BaseException | None = None
        self._is_exhausted = False
        self._waiting_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="sample-feed", daemon=True)
        self._thread.start()

    @property
    def waiting_since(self) -> float | None:
        """time.monotonic() of when `get` began to wait for what it still waits for; None while nobody waits."""
        return self._waiting_since

    def get(self, round_number: int, micro_batch: int) -> Batch:
        """The batch of a request, once. Waits for it.

        Raises EdgeswarmError for samples that can't be had, HaltedError after `close`, ValueError for what was never
        requested or was taken before.
        """
        key = (round_number, micro_batch)
        with self._changed:
            try:
                while key not in self._ready:
                    if self._error is not None:
                        raise self._error
                    if self._is_exhausted:
                        raise ValueError(f"round {round_number}, micro-batch {micro_batch} isn't among the requests")
                    self._waiting_since = self._waiting_since or time.monotonic()
                    self._changed.wait()
            finally:
                self._waiting_since = None
            batch = self._ready.pop(key)
            self._changed.notify_all()
        return batch

    def close(self) -> None:
        """End the thread; a `get` that waits raises HaltedError. May be called twice, and from any thread."""
        self._latch(HaltedError())
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._source.cancel()  # again, since the thread may just be about to read
            self._thread.join(0.05)

    def _latch(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while run := self._next_run():
                indices = list(dict.fromkeys(index for request in run for index in request.indices))
                samples = self._source.read(indices, SamplePart.BOTH if self._transform else self._part)
                for request in run:
                    batch = replace(self._batch(request, samples), indices=request.indices)
                    with self._changed:
                        self._ready[request.round, request.micro_batch] = batch
                        self._changed.notify_all()
        except BaseException as error:
            self._latch(error)

    def _next_run(self) -> list[FeedRequest]:
        """The next requests to read at once; waits while there is enough ahead. Empty at the end."""
        with self._changed:
            # Half full before it goes on, so that one call brings several micro-batches.
            while len(self._ready) > self._ahead // 2 and self._error is None:
                self._changed.wait()
            if self._error is not None:
                return []
            room = self._ahead - len(self._ready)
        samples_left = self._source.samples_a_call()
        run: list[FeedRequest] = []
        while len(run) < room and (request := self._take()) is not None:
            if run and len(request.indices) > samples_left:
                self._pending = request
                break
            run.append(request)
            samples_left -= len(request.indices)
        if not run:
            with self._changed:
                self._is_exhausted = True
                self._changed.notify_all()
        return run

    def _take(self) -> FeedRequest | None:
        if self._pending is None:
            return next(self._requests, None)
        request, self._pending = self._pending, None
        return request

    def _batch(self, request: FeedRequest, samples: Samples) -> Batch:
        if not request.indices:
            return Batch()
        if self._transform is None:
            value = samples.collate(request.indices)
        else:
            value = collate_items([self._transformed(index, request.epoch, samples) for index in request.indices])
        if self._part is SamplePart.BOTH:
            return Batch(*value)
        return Batch(inputs=value) if self._part is SamplePart.INPUTS else Batch(targets=value)

    def _transformed(self, index: int, epoch: int, samples: Samples) -> Any:
        """The wanted part of a sample after the job's transform."""
        assert self._transform is not None
        try:
            sample = self._transform(samples.item(index), sample_generator(self._seed, epoch, index))
        except EdgeswarmError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"The job's transform failed on item {index} on {self._where}: {type(error).__name__}: {error}{line_of(error)}.",
                "Correct the transform.",
                detail="".join(traceback.format_exception(error)),
            ) from error
        return part_of(sample, self._part)


def sample_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """The generator for a sample's transform: a function of these three, so that every consumer draws the same."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
