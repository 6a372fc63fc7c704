"""The job as a worker has it: what its file made, and its data sets where this device opens them itself."""

from __future__ import annotations

from pathlib import Path

from edgeswarm.job import SERVED, Dataset, Job
from edgeswarm.job_file import load_job


class OpenedJob:
    """folder, job_file: of the unpacked bundle, and the file within. where: the device's name, for messages.

    Raises what `load_job` raises.
    """

    def __init__(self, folder: Path, job_file: str, *, where: str) -> None:
        self.folder = folder
        self.job_file = job_file
        self.job: Job = load_job(folder, job_file, where=where)
        self._training: Dataset | None = None
        self._evaluation: Dataset | None = None

    def is_of(self, folder: Path, job_file: str) -> bool:
        return (self.folder, self.job_file) == (folder, job_file)

    def open_data(self) -> None:
        """Both sets, where the devices of this job have their own. Raises what the user's functions raise."""
        if self.job.data != SERVED:
            self.training()
            if self.job.evaluation_dataset is not None:
                self.evaluation()

    def training(self) -> Dataset:
        """The training set, opened once. Raises as `Job.open_dataset` does."""
        if self._training is None:
            self._training = self.job.open_dataset()
        return self._training

    def evaluation(self) -> Dataset:
        """The evaluation set, opened once. Raises as `Job.open_evaluation_dataset` does."""
        if self._evaluation is None:
            self._evaluation = self.job.open_evaluation_dataset()
        return self._evaluation
