"""A job's samples, as workers fetch them from the data service. Imports torch, and loads the user's file."""

from __future__ import annotations

import threading
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.feed_ahead import MOST_SAMPLES_A_CALL
from edgeswarm.job_file import load_job
from edgeswarm.wire.byte_stream import ByteStream
from edgeswarm.wire.sample_stream import SamplePart, answer_requests
from edgeswarm.wire.tensor_samples import encode_items
from edgeswarm.wire.v1 import data_pb2

from .data_service import DataServiceSettings
from .layer_server import refuse_another_job
from .sample_items import SampleItems


class SampleServer:
    """Answers whoever asks, each on a stream and a thread of its own. Raises as `load_job` does."""

    def __init__(self, settings: DataServiceSettings) -> None:
        self._settings = settings
        job = load_job(settings.job_folder, settings.job_file)
        folder, reading = Path(settings.job_folder).resolve(), threading.Lock()
        self._sets = {
            data_pb2.SAMPLE_SET_TRAINING: SampleItems(
                job.open_dataset, called="dataset", folder=folder, reading=reading
            )
        }
        if job.evaluation_dataset is not None:
            self._sets[data_pb2.SAMPLE_SET_EVALUATION] = SampleItems(
                job.open_evaluation_dataset, called="evaluation dataset", folder=folder, reading=reading
            )

    def open(self) -> None:
        """All sets: no device waits for one that takes long. Raises EdgeswarmError naming the user's line."""
        for each in self._sets.values():
            each.length()

    def serve(self, stream: ByteStream) -> None:
        """Until the other end closes it."""
        answer_requests(stream, self.samples, doing="Serving samples")

    def samples(self, request: data_pb2.FetchSamplesRequest) -> bytes:
        """The bytes of `encode_items`. Raises EdgeswarmError that names the item and the user's line."""
        refuse_another_job(request.job, job_id=self._settings.job_id)
        indices = list(request.indices)
        if len(indices) > MOST_SAMPLES_A_CALL:
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"{len(indices)} samples were asked for in one call.",
                "Install the same version of edgeswarm on all machines.",
            )
        wanted = self._sets.get(request.set)
        if wanted is None:
            raise EdgeswarmError(ErrorCode.STALE_CALL, f"Job {self._settings.job_id} has no data set {request.set}.")
        items = [wanted.item(index) for index in indices]
        try:
            return encode_items(items, SamplePart(int(request.part)))
        except EdgeswarmError as error:
            raise wanted.naming_the_item(items, indices, error) from error
