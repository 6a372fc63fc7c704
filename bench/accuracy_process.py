"""A training as a command of its own that tells when each evaluation was done: what it imports counts, as a peer's does.

python -m bench.accuracy_process '{"job": ..., "output": ..., "home": ..., "seed": 1, "devices": [...], ...}'

{"round": 11, "accuracy": 0.31, "when": 1764212345.6}     a line after each evaluation; when: seconds since 1970
{"round_seconds": [0.6, 0.4, ...]}                         at the end, or {"problem": "..."}
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError
from edgeswarm_coordinator.controller import train
from edgeswarm_coordinator.events import EvaluationDone, Event
from edgeswarm_coordinator.options import DiscoveryOptions, TrainOptions

_OWN_LINES = ('{"round": ', '{"round_seconds": ', '{"problem": ')


def trained(options: TrainOptions, *, home: Path) -> dict[str, Any]:
    """After each epoch: seconds in rounds so far, seconds since the command was started, and the accuracy.

    options: of these the job, the output, the seed and where to find devices count. home: the operator's folder.
    """
    document = {
        "job": str(options.job_path),
        "output": str(options.output),
        "seed": options.seed,
        "listen": options.listen_address,
        "home": str(home),
        "discovery": asdict(options.discovery),
    }
    started = time.time()
    ran = subprocess.run(
        [sys.executable, "-m", "bench.accuracy_process", json.dumps(document)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    # The user's code may print, too.
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith(_OWN_LINES)]
    if ran.returncode != 0 or not lines or "problem" in lines[-1]:
        return {"problem": lines[-1]["problem"] if lines and "problem" in lines[-1] else f"exit code {ran.returncode}"}
    *evaluated, end = lines
    return {
        "epochs": [
            {
                "trained_seconds": sum(end["round_seconds"][: told["round"]]),
                "seconds": told["when"] - started,
                "accuracy": told["accuracy"],
            }
            for told in evaluated
        ]
    }


def main() -> int:
    given = json.loads(sys.argv[1])
    options = TrainOptions(
        job_path=Path(given["job"]),
        output=Path(given["output"]),
        seed=given["seed"],
        listen_address=given["listen"],
        discovery=DiscoveryOptions(**{name: _as_tuple(value) for name, value in given["discovery"].items()}),
    )

    def listen(event: Event) -> None:
        if isinstance(event, EvaluationDone):
            _tell(round=event.round, accuracy=event.metrics["accuracy"], when=time.time())

    try:
        result = train(options, folders=Folders.within(Path(given["home"])), listener=listen)
    except EdgeswarmError as error:
        _tell(problem=f"{error.code.value}: {error.message}")
        return 0
    _tell(round_seconds=[done["seconds"] for done in result.metrics["rounds"]])
    return 0


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
