"""What a cell's document has of a peer's run."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from bench import matrix_on_bed
from bench.cell import Cell
from bench.matrix_on_bed import LOOKS, SETTLING_LOOKS, Effort, OnBed, counted_rounds
from bench.peers import settings
from bench.peers.launch import PeerRun
from bench.peers.settings import PeerSettings


def test_what_a_peer_used_in_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = PeerRun((1.0, 2.0), (11.0, 13.0), cpu_seconds=(3.0, 1.0), peak_bytes=(5, 6), sent_bytes=(8, 10))
    monkeypatch.setattr(matrix_on_bed, "run_peer", lambda *_, **__: done)
    monkeypatch.setattr(settings, "slowness", lambda _, begin, end: begin + end)
    bed, cluster = mock.MagicMock(), mock.MagicMock(folder=tmp_path)
    on_bed = OnBed(Cell.parse("C:100:mobilenet_v2"), bed, cluster, effort=Effort(), mini_batch=64)
    told = on_bed.run_peer(PeerSettings("data_parallel", ["nx-1", "nano-1"], 8))
    assert told["round_seconds"] == [1.0, 2.0]
    assert told["slowness"] == [21.0, 24.0]
    # Not peak_bytes: earlier runs have numbers of that name that mean nothing.
    assert told["devices"] == {
        "nx-1": {"own_peak_bytes": 5, "cpu_seconds": 1.5, "sent_bytes": 4.0},
        "nano-1": {"own_peak_bytes": 6, "cpu_seconds": 0.5, "sent_bytes": 5.0},
    }


@pytest.mark.parametrize(
    ("warm_up", "rounds", "settled", "wanted"),
    [
        (6, 10, 0, (6, 10)),  # no look is waited for
        (6, 10, 12, (14, 10)),  # up to the next look
        (2, 5, 6, (8, 4)),  # fewer than wanted before it
        (9, 10, 6, (9, 3)),
        (10, 10, 6, (14, 10)),  # too few: behind it
        (6, 20, 12, (14, 10)),
        (22, 10, 12, (26, 10)),
    ],
)
def test_no_look_comes_between_the_rounds_that_count(
    warm_up: int, rounds: int, settled: int, wanted: tuple[int, int]
) -> None:
    assert LOOKS[:3] == (6, 12, 24)
    assert settled in (0, *SETTLING_LOOKS)
    assert counted_rounds(warm_up, rounds, settled=settled) == wanted
