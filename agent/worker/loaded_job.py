"""What a worker has of the user's job: its file loaded, its data sets opened, each when it is first asked for and then kept.

    coordinator  | load job | export the model ............... | plan |
    worker                  | load job, open data sets |              | prepare: both are there

A worker does so ahead where its device had a part in the last training of that file (agent/device.py): what a job imports takes
a small device seconds.
"""

from __future__ import annotations

import contextlib
import threading
from functools import cached_property
from pathlib import Path

from edgeswarm.job import LOCAL, Dataset, Job
from edgeswarm.job_file import load_job


class LoadedJob:
    """folder: of the unpacked bundle. job_file: in there. where: the device's name, for messages.

    Whatever the user's code raises goes through, as `load_job` has it for the file.
    """

    def __init__(self, folder: Path, job_file: str, *, where: str) -> None:
        self._folder = folder
        self._job_file = job_file
        self._where = where
        # Held while an item of either data set is read: most are made for one reader at a time, and both may share a file.
        self.reading = threading.Lock()

    def is_of(self, folder: Path, job_file: str) -> bool:
        return (self._folder, self._job_file) == (folder, job_file)

    @cached_property
    def job(self) -> Job:
        return load_job(self._folder, self._job_file, where=self._where)

    @cached_property
    def dataset(self) -> Dataset:
        return self.job.open_dataset()

    @cached_property
    def evaluation_dataset(self) -> Dataset:
        """Of a job that has one."""
        return self.job.open_evaluation_dataset()

    def load_ahead(self, *, opens_data: bool) -> None:
        """What goes wrong is left to the one who needs it, tried once more there, and told."""
        with contextlib.suppress(Exception, SystemExit):  # the user's code may raise anything
            job = self.job
            if opens_data and job.data == LOCAL:
                _ = self.dataset
                if job.evaluation_dataset is not None:
                    _ = self.evaluation_dataset
