"""`edgeswarm train` as a process that a test can have killed at a round of its choice.

    python -m tests.e2e.training_process '{"job": ..., "output": ..., "home": ..., "peers": [...], "kill_at": 7}'

kill_at: it kills itself when it hears of this round's end; `kill_at_checkpoint`: of that round's checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError
from edgeswarm_coordinator.controller import train
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.events import CheckpointWritten, Event, RoundDone
from edgeswarm_coordinator.options import DiscoveryOptions, TrainOptions


def run(cluster: ThrowawayCluster, job: Path, output: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Such a process, waited for. more: `plan`, `checkpoint_every`, `kill_at`, `kill_at_checkpoint`."""
    document = {
        "job": str(job),
        "output": str(output),
        "home": str(cluster.operator_home),
        "peers": cluster.addresses,
        **{name: str(value) if isinstance(value, Path) else value for name, value in more.items()},
    }
    command = [sys.executable, "-m", "tests.e2e.training_process", json.dumps(document)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def main() -> int:
    document = json.loads(sys.argv[1])

    def listener(event: Event) -> None:
        over = isinstance(event, RoundDone) and event.round == document.get("kill_at")
        over |= isinstance(event, CheckpointWritten) and event.round == document.get("kill_at_checkpoint")
        if over:
            os.kill(os.getpid(), signal.SIGKILL)

    options = TrainOptions(
        job_path=Path(document["job"]),
        output=Path(document["output"]),
        plan_path=Path(document["plan"]) if "plan" in document else None,
        checkpoint_every=document.get("checkpoint_every"),
        listen_address="127.0.0.1",
        discovery=DiscoveryOptions(peers=tuple(document["peers"]), mdns=False),
    )
    try:
        train(options, folders=Folders.within(Path(document["home"])), listener=listener)
    except EdgeswarmError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
