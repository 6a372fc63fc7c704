"""A training as a command of its own that tells when each evaluation was done: what it imports counts, as a peer's does.

python -m bench.accuracy_process '{"job": ..., "output": ..., "home": ..., "seed": 1, "devices": [...], ...}'

{"accuracy": 0.31, "trained_seconds": 4.2, "when": 1764212345.6}     a line after each evaluation; when: seconds since 1970
{"problem": "..."}                                                    at the end, where there was one
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
from edgeswarm_coordinator.events import EvaluationDone, Event, RoundDone
from edgeswarm_coordinator.options import DiscoveryOptions, TrainOptions

_OWN_LINES = ('{"accuracy": ', '{"problem": ')


def trained(options: TrainOptions, *, home: Path) -> dict[str, Any]:
    """After each epoch: seconds of training so far, seconds since the command was started, and the accuracy.

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
    if lines and "problem" in lines[-1]:
        return {"problem": lines[-1]["problem"]}
    if ran.returncode != 0 or not lines:
        return {"problem": f"exit code {ran.returncode}, after {len(lines)} evaluations"}
    return {
        "epochs": [
            {
                "trained_seconds": told["trained_seconds"],
                "seconds": told["when"] - started,
                "accuracy": told["accuracy"],
            }
            for told in lines
        ]
    }


class TrainingClock:
    """Seconds of training: of each epoch from its first round's begin to its last one's end, with what passes between rounds, and
    without the test behind it and what is kept of that. All times are of one clock, in seconds.
    """

    def __init__(self) -> None:
        self.trained_seconds = 0.0
        self._begin: float | None = None
        self._end = 0.0

    def round_done(self, when: float, seconds: float) -> None:
        """seconds: what the round took."""
        if self._begin is None:
            self._begin = when - seconds
        self._end = when

    def evaluated(self) -> None:
        if self._begin is not None:
            self.trained_seconds += self._end - self._begin
        self._begin = None


def main() -> int:
    given = json.loads(sys.argv[1])
    options = TrainOptions(
        job_path=Path(given["job"]),
        output=Path(given["output"]),
        seed=given["seed"],
        listen_address=given["listen"],
        discovery=DiscoveryOptions(**{name: _as_tuple(value) for name, value in given["discovery"].items()}),
    )

    clock = TrainingClock()

    def listen(event: Event) -> None:
        now = time.time()
        if isinstance(event, RoundDone):
            clock.round_done(now, event.seconds)
        if isinstance(event, EvaluationDone):
            clock.evaluated()
            _tell(accuracy=event.metrics["accuracy"], trained_seconds=clock.trained_seconds, when=now)

    try:
        train(options, folders=Folders.within(Path(given["home"])), listener=listen)
    except EdgeswarmError as error:
        _tell(problem=f"{error.code.word}: {error.message}")
    return 0


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
