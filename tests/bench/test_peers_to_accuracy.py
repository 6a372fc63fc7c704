"""The peers that train until an accuracy is reached, as processes that talk over gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from bench.jobs.digits import TASKS
from bench.origin import REPOSITORY

_LIMIT_SECONDS = 120


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "options"),
    [("to_accuracy", ["--shares", "40,24"]), ("pipeline_to_accuracy", ["--cuts", "0,7,14", "--channels-last"])],
)
def test_two_ranks_train_to_an_accuracy_and_stop_there(script: str, options: list[str]) -> None:
    words = ["--model", "cnn", "--mini-batch", "64", "--micro-batch", "16", "--master", f"127.0.0.1:{free_port()}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", f"bench.peers.{script}", *words, *options, "--world", "2", "--rank"]
    ranks = [
        subprocess.Popen([*command, rank], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    try:
        said = [rank.communicate(timeout=_LIMIT_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0]
    lines = [[json.loads(line) for line in text.splitlines() if line.startswith("{")] for text in said]
    assert lines[1] == []  # rank 0 speaks for all
    target, accuracies = TASKS["cnn"].target, [told["accuracy"] for told in lines[0]]
    assert accuracies[-1] >= target
    assert all(accuracy < target for accuracy in accuracies[:-1])
    trained = [told["trained_seconds"] for told in lines[0]]
    assert trained == sorted(trained)
    assert trained[0] > 0
