"""A data set of the job as the data service reads it: opened when it is wanted, one reader at a time, errors by item."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode, said_by
from edgeswarm.item_copies import load_images
from edgeswarm.job import Dataset
from edgeswarm.job_file import user_error, user_line
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_samples import encode_items


class SampleItems:
    """One of the job's data sets. `open` is called when the first item is wanted.

    called: "dataset" or "evaluation dataset", for messages. folder: of the job's files.
    reading: held while the user's code runs, since most data sets are made for one reader at a time.
    """

    def __init__(self, open: Callable[[], Dataset], *, called: str, folder: Path, reading: threading.Lock) -> None:
        self._open = open
        self._called = called
        self._folder = folder
        self._reading = reading
        self._opened: tuple[Dataset, int] | None = None

    def length(self) -> int:
        """Opens the data set. Raises EdgeswarmError that names the user's line."""
        with self._reading:
            return self._opened_now()[1]

    def item(self, index: int) -> object:
        """Raises EdgeswarmError (DATA_FAILED) that names the item and the user's line."""
        with self._reading:
            dataset, length = self._opened_now()
            if index >= length:
                raise EdgeswarmError(
                    ErrorCode.DATA_FAILED,
                    f"Item {index} was asked for, and the {self._called} has {length}.",
                    "Let the length of the data set stay what it is while a training runs.",
                )
            try:
                item: object = dataset[index]
                load_images(item)
                return item
            except EdgeswarmError:
                raise
            except (Exception, SystemExit) as error:  # the user's code may raise anything
                raise self._failed(index, error) from error

    def naming_the_item(self, items: list[object], indices: list[int], error: EdgeswarmError) -> EdgeswarmError:
        """The error with the index of the first item that can't be sent."""
        for index, item in zip(indices, items, strict=True):
            try:
                encode_items([item], SamplePart.BOTH)
            except EdgeswarmError as cause:
                message = cause.message.replace("An item of the dataset", f"Item {index} of the {self._called}", 1)
                return EdgeswarmError(cause.code, message, cause.remedy)
        return error

    def _opened_now(self) -> tuple[Dataset, int]:
        if self._opened is None:
            try:
                dataset = self._open()
                self._opened = dataset, len(dataset)
            except (Exception, SystemExit) as error:
                raise user_error(
                    error, self._folder, where="this machine", doing=f"opening the {self._called}"
                ) from error
        return self._opened

    def _failed(self, index: int, error: BaseException) -> EdgeswarmError:
        doing = f"reading item {index} of the {self._called}"
        if isinstance(error, ImportError):
            return user_error(error, self._folder, where="the coordinator's machine", doing=doing)
        line = user_line(error, self._folder)
        return EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"Item {index} of the {self._called} can't be read: {f'{line}: ' if line else ''}{said_by(error)}.",
            "Correct the job file, or the files that it reads on the coordinator's machine.",
            detail="".join(traceback.format_exception(error)),
        )
