"""Where a worker's samples come from: the data set on this device here, the job's data service in served_samples.py."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from edgeswarm.errors import EdgeswarmError, ErrorCode, said_by
from edgeswarm.item_copies import load_images, own_copy
from edgeswarm.job import Dataset
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_misfits import collate_named, name_misfits
from edgeswarm.wire.tensor_samples import collate_rows, part_of

from .errors import line_of
from .sample_cache import Place
from .timing import READING, Progress

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
