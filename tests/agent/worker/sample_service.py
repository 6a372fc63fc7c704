"""A data service in the test's own process, behind real TLS, for tests of those who fetch samples."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

from edgeswarm.job import Dataset
from edgeswarm.security.authority import create_cluster
from edgeswarm.wire.byte_stream import StreamListener, open_stream
from edgeswarm.wire.sample_stream import SamplePart, answer_requests
from edgeswarm.wire.tensor_samples import encode_items
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from edgeswarm_agent.worker.served_samples import ServedSamples

JOB = agent_pb2.JobReference(job_id="job", term=1, epoch=1)


class Service:
    """A data service in this process, which writes down what it was asked for, and can be made to hang.

    dataset: what it serves, and in `other` the evaluation set.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.other: Dataset | None = None
        self.calls: list[tuple[list[int], int]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self, request: data_pb2.FetchSamplesRequest) -> bytes:
        self.calls.append((list(request.indices), int(request.part)))
        assert self.may_answer.wait(30)
        dataset = self.dataset if request.set == data_pb2.SAMPLE_SET_TRAINING else self.other
        assert dataset is not None
        items = [dataset[index] for index in request.indices]
        return encode_items(items, SamplePart(int(request.part)))


class Cluster:
    """The service, and sources that fetch from it. `close` it, which closes them."""

    def __init__(self, folder: Path, dataset: Dataset) -> None:
        identity = create_cluster(authority_folder=folder / "authority", operator_folder=folder / "operator")[1]
        self.service = Service(dataset)
        serve = partial(answer_requests, answer=self.service.answer, doing="Serving samples")
        self.listener = StreamListener(identity, behind="127.0.0.1:0", taken=serve)
        address = f"127.0.0.1:{self.listener.port}"
        self.connect = partial(open_stream, address, identity=identity, node_id=identity.node_id)
        self._sources: list[ServedSamples] = []

    def source(self, **settings: Any) -> ServedSamples:
        """settings: as ServedSamples has them."""
        made = ServedSamples(**{"connect": self.connect, "job": JOB, "holder": "desk", **settings})
        self._sources.append(made)
        return made

    def close(self) -> None:
        for source in self._sources:
            source.close()
        self.listener.stop()
