"""The feed: gives the worker the inputs and targets of its micro-batches, ahead of need.

    requests   (round, micro-batch, indices) in the order of use
       |
    fetch thread:  read a run of them at once -> transform each sample -> collate
       |                                                     at most `ahead` of them, and `ahead_bytes`, wait here
       |
    get(round, micro_batch) -> Batch

What goes wrong in the thread latches: `get` raises it, from then on always.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from edgeswarm.feed_ahead import FEED_AHEAD_BYTES, most_ahead
from edgeswarm.job import Job
from edgeswarm.wire.sample_stream import SamplePart

from .errors import HaltedError
from .samples import LONG_FOR_AN_ITEM_SECONDS, LocalSamples, Samples, SampleSource
from .timing import Progress
from .transformed_samples import TransformedSamples
from .transforming import ReadSamples, Transforming

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
    """inputs: nested as an item's, each tensor [n, ...], texts as n of them; targets likewise. None for an unwanted part.

    indices: of the samples in the data set.
    """

    inputs: Any = None
    targets: Any = None
    indices: tuple[int, ...] = ()

    def rows(self, first: int, end: int) -> Batch:
        """Its samples first <= i < end."""
        wanted, count = slice(first, end), len(self.indices)
        return Batch(
            inputs=_rows(self.inputs, wanted, count=count),
            targets=_rows(self.targets, wanted, count=count),
            indices=self.indices[wanted],
        )


class SampleFeed:
    """Fetches in a thread of its own what `requests` names, in that order, up to `ahead` micro-batches before its use.

    part: what `get` gives. With a transform whole samples are read all the same, since it takes and returns whole ones.
    A transform may draw from PyTorch's default generator, `random` and numpy's legacy one too: they are seeded for it.
    ahead_bytes: what waits is no more than this, or one micro-batch where that is larger.
    requests may be endless. where: the device's name, for messages. transformed: what a transform that draws nothing made of
    samples before. changed: called where `has` may say something else than before; not under any lock of the feed.
    `close` it: it has a thread.
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
        ahead_bytes: int = FEED_AHEAD_BYTES,
        where: str = "this device",
        transformed: TransformedSamples | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        if ahead < 1:
            raise ValueError("ahead is at least 1 micro-batch")
        self._source = source
        self._part = part
        # What the user's code in its thread is at, for whoever waits for it.
        self.doing = (
            source.doing if isinstance(source, LocalSamples) else Progress(longest_seconds=LONG_FOR_AN_ITEM_SECONDS)
        )
        self._transforming: Transforming | None = None
        if job.transform is not None:
            self._transforming = Transforming(
                source=source,
                transform=job.transform,
                seed=seed,
                part=part,
                where=where,
                kept=transformed,
                doing=self.doing,
            )
        self._requests = requests
        self._tell = changed
        self._ahead = ahead
        self._ahead_bytes = ahead_bytes
        self._changed = threading.Condition()
        self._ready: dict[tuple[int, int], Batch] = {}
        self._ready_bytes = 0
        self._largest_bytes = 0  # of all batches so far
        self._pending: FeedRequest | None = None
        self._error: BaseException | None = None
        self._is_exhausted = False
        self._thread = threading.Thread(target=self._run, name="sample-feed", daemon=True)
        self._thread.start()

    def has(self, round_number: int, micro_batch: int) -> bool:
        """Whether `get` would give this one, or raise, without waiting."""
        with self._changed:
            is_there = (round_number, micro_batch) in self._ready
            return is_there or self._is_exhausted or self._error is not None

    def get(self, round_number: int, micro_batch: int) -> Batch:
        """The batch of a request, once. Waits for it.

        Raises EdgeswarmError for samples that can't be had, HaltedError after `close`, ValueError for what was never
        requested or was taken before.
        """
        key = (round_number, micro_batch)
        with self._changed:
            while key not in self._ready:
                if self._error is not None:
                    raise self._error
                if self._is_exhausted:
                    raise ValueError(f"round {round_number}, micro-batch {micro_batch} isn't among the requests")
                self._changed.wait()
            batch = self._ready.pop(key)
            self._ready_bytes -= bytes_of(batch)
            if not self._has_enough():  # else the thread would wake up for nothing
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
        self._tell()

    def _run(self) -> None:
        try:
            with torch.no_grad():  # a transform with a model of its own keeps no graph of it in a waiting batch
                while run := self._next_run():
                    self._make_ready(run)
        except BaseException as error:
            self._latch(error)

    def _make_ready(self, run: list[FeedRequest]) -> None:
        """In a method of its own, so that nothing of it is held while the thread waits."""
        samples = self._read_at_once(run)
        for request in run:
            if self._error is not None:  # closed: a transform may take long for what nobody waits for
                return
            batch = replace(self._batch(request, samples), indices=request.indices)
            size = bytes_of(batch)
            with self._changed:
                self._ready[request.round, request.micro_batch] = batch
                self._ready_bytes += size
                self._largest_bytes = max(self._largest_bytes, size)
                self._changed.notify_all()
            self._tell()

    def _next_run(self) -> list[FeedRequest]:
        """The next requests to read at once; waits while there is enough ahead. Empty at the end."""
        with self._changed:
            while self._has_enough() and self._error is None:
                self._changed.wait()
            if self._error is not None:
                return []
            room = max(1, self._most_ready() - len(self._ready))
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
            self._tell()
        return run

    def _has_enough(self) -> bool:
        """Half full before it goes on, so that one call brings several micro-batches."""
        return len(self._ready) > self._most_ready() // 2

    def _most_ready(self) -> int:
        """How many micro-batches may wait for their use, by the size of the largest so far."""
        return most_ahead(self._largest_bytes, ahead=self._ahead, ahead_bytes=self._ahead_bytes)

    def _take(self) -> FeedRequest | None:
        if self._pending is None:
            return next(self._requests, None)
        request, self._pending = self._pending, None
        return request

    def _read_at_once(self, run: list[FeedRequest]) -> Samples | ReadSamples:
        """What is missing of the samples of all these requests; in pieces where one micro-batch has many large ones."""
        indices = list(dict.fromkeys(index for request in run for index in request.indices))
        if self._transforming is None:
            return self._source.read(indices, self._part)
        return self._transforming.read(indices, in_pieces=len(run) == 1)

    def _batch(self, request: FeedRequest, samples: Samples | ReadSamples) -> Batch:
        if not request.indices:
            return Batch()
        if self._transforming is not None:
            assert isinstance(samples, ReadSamples)
            value = self._transforming.batch(request.indices, request.epoch, samples)
        else:
            assert not isinstance(samples, ReadSamples)
            value = samples.collate(request.indices)
        if self._part is SamplePart.BOTH:
            return Batch(*value)
        return Batch(inputs=value) if self._part is SamplePart.INPUTS else Batch(targets=value)


def bytes_of(value: Any) -> int:
    """What the tensors of a batch take."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Batch):
        return bytes_of(value.inputs) + bytes_of(value.targets)
    if isinstance(value, Mapping):
        return sum(map(bytes_of, value.values()))
    return sum(map(bytes_of, value)) if isinstance(value, (tuple, list)) else 0


def rebuilt(value: Any, items: Iterable[Any]) -> Any:
    """A tuple or list of the same type with other items. A named tuple takes them one by one."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _rows(value: Any, wanted: slice, *, count: int) -> Any:
    """Some rows of a batch's value. count: of rows in the whole batch."""
    if isinstance(value, torch.Tensor) or _has_a_leaf_for_each_row(value, count):
        return value[wanted]
    if isinstance(value, Mapping):
        return {key: _rows(item, wanted, count=count) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return rebuilt(value, (_rows(item, wanted, count=count) for item in value))
    return value


def _has_a_leaf_for_each_row(value: Any, count: int) -> bool:
    """Whether a list is what collating makes of texts and bytes: as they are, one a row.

    A list or tuple that was in the items has the batches of its parts, each of which has rows of its own, or is None where
    all of them were. Inside a named tuple `default_collate` gives texts as a tuple.
    """
    return (
        type(value) in (list, tuple)
        and len(value) == count
        and not any(isinstance(item, (torch.Tensor, Mapping, tuple, list)) for item in value)
        and any(item is not None for item in value)
    )
