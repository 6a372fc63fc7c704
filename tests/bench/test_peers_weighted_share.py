"""Gradients of ranks with unequal shares, in processes that talk over gloo, beside those of the whole mini-batch in one go."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.origin import REPOSITORY
from bench.peers.rounds import in_micro_batches
from bench.peers.weighted_share import backward_of_share

SAMPLES = 13
_LIMIT_SECONDS = 120
# Its arguments: the rank, shares and samples at once with commas, where rank 0 listens, and a folder for its gradients.
ONE_RANK = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.peers.weighted_share import backward_of_share
from tests.bench.test_peers_weighted_share import SAMPLES, gradients, make, micro_batches

rank, (shares, at_once) = int(sys.argv[1]), [[int(part) for part in text.split(",")] for text in sys.argv[2:4]]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=sys.argv[4], rank=rank, world_size=len(shares))
model = DistributedDataParallel(make(), broadcast_buffers=False, gradient_as_bucket_view=True)
first = sum(shares[:rank])
parts = micro_batches(first, first + shares[rank], at_once=at_once[rank])
backward_of_share(model, parts, ranks=len(shares), samples_of_all=SAMPLES)
torch.save(gradients(model), f"{sys.argv[5]}/{rank}.pt")
dist.destroy_process_group()
"""


def make() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def mini_batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    return torch.randn(SAMPLES, 6), torch.randint(4, (SAMPLES,))


def micro_batches(first: int, end: int, *, at_once: int) -> list[tuple[Tensor, Tensor]]:
    inputs, targets = (in_micro_batches(each[first:end], at_once) for each in mini_batch())
    return list(zip(inputs, targets, strict=True))


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def wanted() -> list[Tensor]:
    """Of the mean loss over all samples, in one go."""
    model = make()
    inputs, targets = mini_batch()
    nn.CrossEntropyLoss()(model(inputs), targets).backward()
    return gradients(model)


def test_by_itself_a_rank_sums_its_micro_batches() -> None:
    model = make()
    backward_of_share(model, micro_batches(0, SAMPLES, at_once=5), ranks=1, samples_of_all=SAMPLES)
    for told, right in zip(gradients(model), wanted(), strict=True):
        torch.testing.assert_close(told, right)


@pytest.mark.thorough
@pytest.mark.parametrize(("shares", "at_once"), [("9,4", "4,4"), ("7,5,1", "7,2,1")])
def test_all_ranks_have_the_gradient_of_the_whole(shares: str, at_once: str, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        master = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    words = (sys.executable, "-c", ONE_RANK)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([*words, str(rank), shares, at_once, master, str(tmp_path)], cwd=REPOSITORY, env=environment)
        for rank in range(shares.count(",") + 1)
    ]
    try:
        assert [process.wait(_LIMIT_SECONDS) for process in ranks] == [0] * len(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    right = wanted()
    assert len(right) == len(list(make().parameters()))
    for rank in range(len(ranks)):
        for told, each in zip(torch.load(tmp_path / f"{rank}.pt", weights_only=True), right, strict=True):
            torch.testing.assert_close(told, each)
