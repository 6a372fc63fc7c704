"""A data service in the test's own process, behind real TLS, for tests of those who fetch samples."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc

from edgeswarm.job import Dataset
from edgeswarm.security.authority import create_cluster
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler, secure_channel, secure_server
from edgeswarm.wire.fetch import SamplePart, serve_blob
from edgeswarm.wire.tensor_samples import encode_items
from edgeswarm.wire.v1 import agent_pb2, data_pb2

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

    def fetch(self, data: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        request = data_pb2.FetchSamplesRequest.FromString(data)
        self.calls.append((list(request.indices), int(request.part)))
        assert self.may_answer.wait(30)
        dataset = self.dataset if request.set == data_pb2.SAMPLE_SET_TRAINING else self.other
        assert dataset is not None
        items = [dataset[index] for index in request.indices]
        yield from serve_blob(encode_items(items, SamplePart(int(request.part))))


class Cluster:
    """The service, and a channel to it. `close` it."""

    def __init__(self, folder: Path, dataset: Dataset) -> None:
        identity = create_cluster(authority_folder=folder / "authority", operator_folder=folder / "operator")[1]
        self.service = Service(dataset)
        handlers = [raw_service("edgeswarm.wire.v1.Samples", {"Fetch": raw_unary_stream_handler(self.service.fetch)})]
        self.server, port = secure_server(identity, address="127.0.0.1:0", workers=4, handlers=handlers)
        self.server.start()
        self.channel = secure_channel(f"127.0.0.1:{port}", identity=identity, node_id=identity.node_id)

    def close(self) -> None:
        self.channel.close()
        self.server.stop(None)
