"""Where a worker's samples come from: the job's data service, or the data set on this device."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import grpc

from edgeswarm.errors import EdgeswarmError, ErrorCode, said_by
from edgeswarm.feed_ahead import FEED_CALL_BYTES, MOST_SAMPLES_A_CALL
from edgeswarm.item_copies import load_images, own_copy
from edgeswarm.job import Dataset
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.fetch import FETCH_SAMPLES, SamplePart, fetch_blob
from edgeswarm.wire.tensor_misfits import collate_named, name_misfits
from edgeswarm.wire.tensor_samples import collate_rows, part_of
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .errors import line_of
from .sample_cache import Place, SampleCache
from .timing import READING, Progress

# A data set that is slow isn't dead: all that ask it wait for one another.
FETCH_TIMEOUT_SECONDS = 600.0
_CALL_SECONDS = 10.0  # that one call is to take at most, by what calls have taken so far
# As if reading or transforming an item had taken this before, for whoever tells by that whether it hangs: a disk that slept spins
# up, a share of the network comes back.
LONG_FOR_AN_ITEM_SECONDS = 15.0


class Samples(Protocol):
    """Samples that are here now, by their index in the data set."""

    def item(self, index: int) -> Any:
        """One sample (or the part of it that was read), as the data set gave it. The caller may write into it."""

    def collate(self, indices: Sequence[int]) -> Any:
        """The batch of some of them, in this order."""


class SampleSource(Protocol):
    """Gives samples by index. It may outlive a feed: what it keeps is of use to the next. Any thread may call."""

    def read(self, indices: Sequence[int], part: SamplePart) -> Samples:
        """The samples of these indices, or one part of each. Raises EdgeswarmError."""

    def samples_a_call(self) -> int:
        """How many samples one `read` best asks for, by what is known so far."""

    def cancel(self) -> None:
        """Ends a `read` that is under way with an error."""


def check_length(dataset: Dataset, expected: int, *, called: str, where: str) -> None:
    """Raises EdgeswarmError (DATA_FAILED) where this device has another data set than the coordinator's machine.

    Which items a device reads is told by their numbers: with others at these, inputs would get the targets of others.
    """
    found = len(dataset)
    if found != expected:
        raise EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"The {called} has {found} items on {where}, and {expected} on the coordinator's machine.",
            'Put the same files on all machines, and let the job list them in one order; or use data="served".',
        )


class LocalSamples:
    """The data set as this device opened it itself. where: the device's name, for messages. doing: for whoever waits for it.

    reading: held while an item is read, by all who may read from it or from what it shares.
    """

    def __init__(self, dataset: Dataset, *, where: str = "this device", reading: threading.Lock | None = None) -> None:
        self._dataset = dataset
        self._where = where
        self._reading = reading or threading.Lock()
        self.doing = Progress(longest_seconds=LONG_FOR_AN_ITEM_SECONDS)

    def read(self, indices: Sequence[int], part: SamplePart) -> Samples:
        values = {}
        for index in indices:
            try:
                with self.doing.during(f"reading item {index} of the dataset", kind=READING), self._reading:
                    item = self._dataset[index]
                    load_images(item)
                values[index] = part_of(item, part)
            except EdgeswarmError:
                raise
            except (Exception, SystemExit) as error:  # the user's code may raise anything
                raise EdgeswarmError(
                    ErrorCode.DATA_FAILED,
                    f"Item {index} of the dataset can't be read on {self._where}: {said_by(error)}{line_of(error)}.",
                    "Correct the job's dataset, or the files that it reads there.",
                    detail="".join(traceback.format_exception(error)),
                ) from error
        return PlainSamples(values)

    def samples_a_call(self) -> int:
        return 1

    def cancel(self) -> None:
        """Nothing to do: reading the user's data set can't be interrupted."""


class PlainSamples:
    """Samples as the user's data set gave them."""

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._values = values

    def item(self, index: int) -> Any:
        return own_copy(self._values[index])

    def collate(self, indices: Sequence[int]) -> Any:
        return collate_named([self._values[index] for index in indices], indices)


class FetchedSamples:
    """Samples as they came from the data service: rows of blocks."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = places

    def item(self, index: int) -> Any:
        block, row = self._places[index]
        return block.item(row)

    def collate(self, indices: Sequence[int]) -> Any:
        try:
            return collate_rows([self._places[index] for index in indices])
        except EdgeswarmError as error:
            raise name_misfits([self.item(index) for index in indices], indices, error) from error


class ServedSamples:
    """Samples of the job's data service. What was fetched is kept as far as the cache has room: later epochs are local.

    What was kept stays: with a new order in each epoch no choice of what to drop is better than none.
    channel: to the data service. holder: who runs it, for messages. sample_set: of which of the job's data sets.
    cache: may be shared by several, and outlive this one.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        job: agent_pb2.JobReference,
        *,
        holder: str,
        sample_set: data_pb2.SampleSet = data_pb2.SAMPLE_SET_TRAINING,
        cache: SampleCache | None = None,
        timeout_seconds: float = FETCH_TIMEOUT_SECONDS,
    ) -> None:
        self._channel = channel
        self._job = job
        self._holder = holder
        self._set = sample_set
        self._cache = cache or SampleCache()
        self._timeout_seconds = timeout_seconds
        self._sample_bytes = 0
        self._reading = threading.Lock()
        self._call: grpc.Call | None = None
        self.calls = 0
        self.fetched_samples = 0
        self.fetched_bytes = 0
        self.fetch_seconds = 0.0

    def read(self, indices: Sequence[int], part: SamplePart) -> Samples:
        with self._reading:
            kept = self._cache.kept(self._job.job_id, int(self._set), int(part))
            places = kept.find(indices)
            missing = [index for index in dict.fromkeys(indices) if index not in places]
            for first in range(0, len(missing), MOST_SAMPLES_A_CALL):
                piece = missing[first : first + MOST_SAMPLES_A_CALL]
                data = self._fetch(piece, part)
                try:
                    places |= kept.add(piece, data)
                except ValueError as error:
                    raise self._unsound(str(error)) from error
            return FetchedSamples(places)

    def samples_a_call(self) -> int:
        if not self._sample_bytes:
            return 1
        by_time = _CALL_SECONDS * self.fetched_samples / max(self.fetch_seconds, 1e-9)
        return max(1, min(FEED_CALL_BYTES // self._sample_bytes, int(by_time), MOST_SAMPLES_A_CALL))

    def cancel(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()

    def _fetch(self, indices: list[int], part: SamplePart) -> bytearray:
        request = data_pb2.FetchSamplesRequest(
            job=self._job,
            indices=indices,
            part=int(part),  # type: ignore[arg-type]
            set=self._set,
        )
        started = time.monotonic()
        try:
            data = fetch_blob(
                self._channel,
                FETCH_SAMPLES,
                request,
                timeout_seconds=self._timeout_seconds,
                on_call=self._remember,
            )
        except grpc.RpcError as error:
            raise error_of_call(error, device=f"the data service on {self._holder}", doing="fetch samples") from error
        self._sample_bytes = max(self._sample_bytes, -(-len(data) // len(indices)))
        self.calls += 1
        self.fetched_samples += len(indices)
        self.fetched_bytes += len(data)
        self.fetch_seconds += time.monotonic() - started
        return data

    def _remember(self, call: grpc.Call) -> None:
        self._call = call

    def _unsound(self, why: str) -> EdgeswarmError:
        return EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"The data service on {self._holder} sent samples that can't be read: {why}.",
            "Use the same version of edgeswarm on all devices.",
        )
