"""Gradients of ranks with unequal shares, in processes that talk over gloo, beside those of the whole mini-batch in one go."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from bench.origin import REPOSITORY

_LIMIT_SECONDS = 120


@pytest.mark.thorough
@pytest.mark.parametrize(("shares", "at_once"), [("13", "5"), ("9,4", "4,4"), ("7,5,1", "7,2,1")])
def test_all_ranks_have_the_gradient_of_the_whole(shares: str, at_once: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{listener.getsockname()[1]}"
    words = [sys.executable, "-m", "bench.peers.share_gradient", "--shares", shares, "--at-once", at_once]
    ranks = [
        subprocess.Popen(
            [*words, "--master", master, "--rank", str(rank)],
            cwd=REPOSITORY,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(shares.count(",") + 1)
    ]
    try:
        said = [process.communicate(timeout=_LIMIT_SECONDS)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0] * len(ranks)
    for text in said:
        told = json.loads(text.splitlines()[-1])
        assert told["largest"] > 0.01
        assert told["farthest"] < 1e-6
