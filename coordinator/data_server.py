"""The data service's own process: on the coordinator's machine, serves samples, and the weights of round 0.

    coordinator  --- one line of JSON, then silence --->  stdin     the end of stdin ends the service
                 <-- one line of JSON ------------------  stdout    where it listens, or why it can't
    workers      --- mTLS: Samples/Fetch, Layers/Fetch -> port

A process of its own, so that reading data never holds up the command, nor the other way round. What the user's code
prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import grpc

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.job_file import load_job
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import layer_file_name
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler, secure_server
from edgeswarm.wire.fetch import FETCH_LAYER, FETCH_SAMPLES, SamplePart, announce_bytes, serve_blob, serve_file
from edgeswarm.wire.tensor_samples import encode_items
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .data_service import DataServiceSettings
from .sample_items import SampleItems

SERVER_THREADS = 16
MOST_SAMPLES_A_CALL = 65_536


class DataServer:
    """The two methods. gRPC calls them from several threads."""

    def __init__(self, settings: DataServiceSettings, job: Job) -> None:
        self._settings = settings
        folder, reading = Path(settings.job_folder).resolve(), threading.Lock()
        self.training = SampleItems(job.open_dataset, called="dataset", folder=folder, reading=reading)
        self._sets = {data_pb2.SAMPLE_SET_TRAINING: self.training}
        if job.evaluation_dataset is not None:
            self._sets[data_pb2.SAMPLE_SET_EVALUATION] = SampleItems(
                job.open_evaluation_dataset, called="evaluation dataset", folder=folder, reading=reading
            )

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [
            raw_service(method.split("/")[1], {method.split("/")[2]: raw_unary_stream_handler(function)})
            for method, function in ((FETCH_SAMPLES, self.fetch_samples), (FETCH_LAYER, self.fetch_layer))
        ]

    def fetch_samples(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """FetchSamplesRequest -> the bytes of `encode_items`."""
        request = data_pb2.FetchSamplesRequest.FromString(data)
        self._check_job(request.job)
        indices = list(request.indices)
        if len(indices) > MOST_SAMPLES_A_CALL:
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"{len(indices)} samples were asked for in one call.",
                "Install the same version of edgeswarm on all devices.",
            )
        wanted = self._sets.get(request.set)
        if wanted is None:
            raise EdgeswarmError(ErrorCode.STALE_CALL, f"Job {self._settings.job_id} has no data set {request.set}.")
        items = [wanted.item(index) for index in indices]
        try:
            encoded = encode_items(items, SamplePart(int(request.part)))
        except EdgeswarmError as error:
            raise wanted.naming_the_item(items, indices, error) from error
        announce_bytes(context, len(encoded))
        yield from serve_blob(encoded)

    def fetch_layer(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """FetchLayerRequest -> the layer's file as the coordinator wrote it."""
        request = data_pb2.FetchLayerRequest.FromString(data)
        self._check_job(request.job)
        path = Path(self._settings.snapshot_folder) / layer_file_name(request.layer)
        if request.round != 0 or not path.is_file():
            raise EdgeswarmError(
                ErrorCode.STALE_CALL,
                f"The data service has no state of layer {request.layer} at round {request.round}; "
                "it has the layers of round 0.",
                "Start the job again.",
            )
        announce_bytes(context, path.stat().st_size)
        yield from serve_file(path)

    def _check_job(self, job: agent_pb2.JobReference) -> None:
        if job.job_id != self._settings.job_id:
            raise EdgeswarmError(
                ErrorCode.STALE_CALL, f"The data service belongs to job {self._settings.job_id}, not to {job.job_id!r}."
            )


def serve(settings: DataServiceSettings, *, answer: TextIO, life: TextIO) -> int:
    """Serve until `life` ends; write the one line of JSON to `answer`. Returns the exit code.

    The first line of `life` says that the data set may be opened. The process leaves where `life` ends before it serves:
    the user's code may be opening the data set for minutes.
    """
    over = threading.Event()
    serving = threading.Event()
    may_open = threading.Event()

    def wait_for_the_end() -> None:
        if life.readline():
            may_open.set()
        while life.read(4096):
            pass
        if not serving.is_set():
            os._exit(0)
        over.set()

    threading.Thread(target=wait_for_the_end, name="life", daemon=True).start()
    try:
        identity = Identity.load(Path(settings.identity_folder), role=Role.OPERATOR)
        service = DataServer(settings, load_job(settings.job_folder, settings.job_file))
        may_open.wait()
        length = service.training.length()
        server, port = secure_server(
            identity, address=settings.listen_address, workers=SERVER_THREADS, handlers=service.handlers()
        )
        server.start()
    except EdgeswarmError as error:
        print(json.dumps({"error": error.to_json()}), file=answer, flush=True)
        return int(error.exit_code)
    serving.set()
    print(json.dumps({"port": port, "dataset_length": length}), file=answer, flush=True)
    over.wait()
    server.stop(grace=0.5).wait(1.0)
    return 0


def main() -> int:
    """Settings from the first line of stdin; then stdin is only waited on: who started us is gone when it ends."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the answer is one line, whatever the user's code prints
    try:
        settings = DataServiceSettings(**json.loads(sys.stdin.readline()))
    except (ValueError, TypeError) as error:
        print(f"not the settings of a data service: {error}", file=sys.stderr)
        return 2
    started = time.monotonic()
    code = serve(settings, answer=answer, life=sys.stdin)
    print(f"data service of job {settings.job_id} ends after {time.monotonic() - started:.0f} s", file=sys.stderr)
    return code


if __name__ == "__main__":
    exit_code = main()
    sys.stderr.flush()
    os._exit(exit_code)  # the user's data set may have left threads that would keep the process
