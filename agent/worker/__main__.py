"""`python -m edgeswarm_agent.worker`: the process that computes, started and supervised by the agent's daemon."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from edgeswarm.errors import EdgeswarmError

from ..death import last_words
from ..pipe import MessagePipe


def main() -> None:
    parser = argparse.ArgumentParser(prog="edgeswarm_agent.worker", description=__doc__)
    parser.add_argument("--identity", type=Path, required=True, help="folder with this device's key and certificate")
    parser.add_argument("--listen", required=True, help="host:port of the tensor server; port 0 for any")
    parser.add_argument("--slow-down", type=float, default=1.0, help="stretch computing by this factor")
    parser.add_argument("--threads", type=int, default=1, help="threads of an operation")
    parser.add_argument("--sample-folder", type=Path, help="where to keep fetched samples")
    parser.add_argument("--sample-cache-bytes", type=int, default=0, help="how much of them at most")
    parser.add_argument("--events-fd", type=int, required=True, help="file descriptor to write events to")
    arguments = parser.parse_args()
    # Commands come on standard input. Libraries that read it, and programs that they start, would take them away.
    commands = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    events = os.fdopen(arguments.events_fd, "wb", buffering=0)
    from .main import Worker
    from .sample_cache import SampleCache

    try:
        worker = Worker(
            MessagePipe(commands, events),
            identity_folder=arguments.identity,
            listen=arguments.listen,
            slow_down=arguments.slow_down,
            threads=arguments.threads,
            sample_cache=SampleCache(arguments.sample_folder, limit_bytes=arguments.sample_cache_bytes),
        )
    except EdgeswarmError as error:
        print(last_words(error), file=sys.stderr, flush=True)
        os._exit(1)  # an orderly end of torch and gRPC takes longer than the agent waits
    worker.run()


if __name__ == "__main__":
    main()
