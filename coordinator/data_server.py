"""The data service's own process: on the coordinator's machine, serves the layers that a training begins with, and samples
where the job's data are served.

    coordinator  --- one line of JSON, then silence --->  stdin     the end of stdin ends the service
                 <-- one line of JSON ------------------  stdout    where it listens, or why it can't
    workers      --- gRPC: Layers/Fetch --------------->  data_port
                 --- streams of samples --------------->  the port behind it

A process of its own, so that reading data never holds up the command, nor the other way round. What the user's code
prints goes to stderr. Without samples it needs no torch, whose import would slow down the export beside it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TextIO, cast

from edgeswarm.config import host_and_port, join_host_and_port
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.listening import only_address
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.byte_stream import StreamListener
from edgeswarm.wire.channel import check_address_is_free, secure_server

from .data_service import DataServiceReady, DataServiceSettings
from .layer_server import LayerServer
from .lossy_stream import LossyStream

SERVER_THREADS = 16


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
        samples = None
        if settings.serves_samples:
            from .sample_server import SampleServer

            samples = SampleServer(settings)
            may_open.wait()
            samples.open()
        server, layers_port = secure_server(
            identity,
            address=settings.listen_address,
            workers=SERVER_THREADS,
            handlers=[LayerServer(settings).handler()],
        )
        listener = None
        if samples is not None:
            check_next_port_is_free(settings.listen_address)
            listener = StreamListener(identity, behind=settings.listen_address, taken=samples.serve)
        server.start()
    except EdgeswarmError as error:
        if error.code is ErrorCode.PORT_IN_USE:
            error.remedy = "Wait for the training that listens there, or choose another data_port in the settings."
        print(json.dumps({"error": error.to_json()}), file=answer, flush=True)
        return int(error.exit_code)
    serving.set()
    host, _ = host_and_port(settings.listen_address)
    ready = DataServiceReady(layers_port, 0 if listener is None else listener.port, only_address(host))
    print(json.dumps(asdict(ready)), file=answer, flush=True)
    over.wait()
    if listener is not None:
        listener.stop()
    server.stop(grace=0.5).wait(1.0)
    return 0


def check_next_port_is_free(listen_address: str) -> None:
    """Whoever chose a port lets devices in at that one and the next: any other would be shut. Raises as `secure_server` does."""
    host, port = host_and_port(listen_address)
    if port:
        check_address_is_free(join_host_and_port(host, port + 1))


def main() -> int:
    """Settings from the first line of stdin; then stdin is only waited on: who started us is gone when it ends."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the answer is one line, whatever the user's code prints
    # A full disk for what it prints is no reason to read no more items.
    sys.stdout, sys.stderr = cast(TextIO, LossyStream(sys.stdout)), cast(TextIO, LossyStream(sys.stderr))
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
