"""What a rank tells of its rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.origin import REPOSITORY
from bench.peers.rounds import in_micro_batches, sent_bytes, warm_up_rounds

_CHILD = """
from bench.peers.rounds import arguments, time_rounds

words = ["--model", "x", "--mini-batch", "1", "--micro-batch", "1", "--rounds", "2"]
time_rounds(arguments(None).parse_args(words), lambda: None)
"""
_TABLE = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0:    2000      20    0    0    0     0          0         0    30000      30    0    0    0     0       0          0
  eth1:       5       1    0    0    0     0          0         0        7       1    0    0    0     0       0          0
"""


@pytest.mark.thorough
def test_a_peak_is_of_the_rank_alone_and_not_of_who_started_it() -> None:
    held = bytearray(b"\1") * (600 << 20)
    child = subprocess.run([sys.executable, "-c", _CHILD], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    told = json.loads(child.stdout)
    (rank,) = told["ranks"]
    assert 1 << 20 < rank["peak_bytes"] < len(held)
    assert rank["sent_bytes"] >= 0
    assert len(told["round_seconds"]) == 2


def test_long_rounds_have_two_before_those_that_count_but_in_a_trial() -> None:
    assert [warm_up_rounds(seconds) for seconds in (1.0, 7.0, 45.0)] == [20, 3, 2]
    assert [warm_up_rounds(seconds, warm_up_seconds=0) for seconds in (1.0, 45.0)] == [2, 1]


def test_bytes_that_left_over_the_links(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    table.write_text(_TABLE)
    assert sent_bytes(table) == 30007


@pytest.mark.parametrize(
    ("share", "at_once", "sizes"), [(130, 128, [65, 65]), (128, 128, [128]), (5, 2, [2, 2, 1]), (1, 16, [1])]
)
def test_micro_batches_are_of_nearly_one_size(share: int, at_once: int, sizes: list[int]) -> None:
    parts = in_micro_batches(torch.arange(share), at_once)
    assert [len(part) for part in parts] == sizes
    assert torch.cat(parts).tolist() == list(range(share))
