"""What is read off a peer's run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers import launch
from bench.peers.launch import PeerRun, run_peer
from bench.peers.rounds import READY
from bench.scaling import nanos
from bench.testbed.bed import EmulatedLan


@pytest.mark.parametrize("problem", ["", "nano-1 ended with 1", "out of memory on nano-2"])
def test_what_the_ranks_told_of_their_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    ranks = [{"cpu_seconds": rank + 0.5, "peak_bytes": 10 * rank, "sent_bytes": 100 * rank} for rank in (1, 2)]
    log = tmp_path / "0-nano-1.log"
    told = {"round_seconds": [1.0, 2.0], "round_ends": [5.0, 7.0], "ranks": ranks, "joules": None}
    log.write_text(f"{READY}\n{json.dumps(told)}\n")
    monkeypatch.setattr(launch, "run_script", lambda *_, **__: (log, problem))
    done = run_peer(EmulatedLan(nanos(2)), "pipeline", ["nano-1", "nano-2"], folder=tmp_path, limit_seconds=1.0)
    whole = PeerRun((1.0, 2.0), (5.0, 7.0), cpu_seconds=(1.5, 2.5), peak_bytes=(10, 20), sent_bytes=(100, 200))
    short_of_memory = "nano-2" if "memory" in problem else ""
    assert done == (PeerRun(problem=problem, short_of_memory=short_of_memory) if problem else whole)
