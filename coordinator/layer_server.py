"""The layers that a training begins with, as workers fetch them from the data service. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.layer_file import layer_file_name
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler
from edgeswarm.wire.fetch import FETCH_LAYER, announce_bytes, serve_file
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .data_service import DataServiceSettings


class LayerServer:
    """The method `Layers/Fetch`. gRPC calls it from several threads."""

    def __init__(self, settings: DataServiceSettings) -> None:
        self._settings = settings

    def handler(self) -> grpc.GenericRpcHandler:
        return service_of(FETCH_LAYER, self.fetch_layer)

    def fetch_layer(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """FetchLayerRequest -> the layer's file as the coordinator wrote it."""
        request = data_pb2.FetchLayerRequest.FromString(data)
        refuse_another_job(request.job, job_id=self._settings.job_id)
        path = Path(self._settings.snapshot_folder) / layer_file_name(request.layer)
        if request.round != self._settings.snapshot_round or not path.is_file():
            raise EdgeswarmError(
                ErrorCode.STALE_CALL,
                f"The data service has no state of layer {request.layer} at round {request.round}; "
                f"it has the layers of round {self._settings.snapshot_round}.",
                "Start the job again.",
            )
        announce_bytes(context, path.stat().st_size)
        yield from serve_file(path)


def service_of(
    method: str, function: Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]
) -> grpc.GenericRpcHandler:
    """method: "/Service/Name"."""
    _, service, name = method.split("/")
    return raw_service(service, {name: raw_unary_stream_handler(function)})


def refuse_another_job(job: agent_pb2.JobReference, *, job_id: str) -> None:
    if job.job_id != job_id:
        raise EdgeswarmError(ErrorCode.STALE_CALL, f"The data service belongs to job {job_id}, not to {job.job_id!r}.")
