"""Whether ranks with unequal shares have the gradient of the whole mini-batch (weighted_share.py), for a small model.

    python -m bench.peers.share_gradient --shares 9,4 --at-once 4,4 --master HOST:PORT --rank 0      and likewise rank 1

Each rank says how far its gradients are from those of the mean loss over all samples in one go, and how large those are.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.peers.rounds import in_micro_batches, join, leave
from bench.peers.weighted_share import backward_of_share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", required=True, help="samples of each rank, with commas")
    parser.add_argument("--at-once", required=True, help="the micro-batch of each rank, with commas")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--master", default="", help="host:port of rank 0; none for one rank alone")
    given = parser.parse_args()
    shares, at_once = ([int(part) for part in text.split(",")] for text in (given.shares, given.at_once))
    given.world = len(shares)
    torch.manual_seed(0)
    inputs, targets = torch.randn(sum(shares), 6), torch.randint(4, (sum(shares),))
    whole = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    nn.CrossEntropyLoss()(whole(inputs), targets).backward()
    shared = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    shared.load_state_dict(whole.state_dict())
    join(given)
    first = sum(shares[: given.rank])
    mine = (
        in_micro_batches(each[first : first + shares[given.rank]], at_once[given.rank]) for each in (inputs, targets)
    )
    model = shared if given.world == 1 else DistributedDataParallel(shared, gradient_as_bucket_view=True)
    backward_of_share(model, list(zip(*mine, strict=True)), ranks=given.world, samples_of_all=sum(shares))
    told, right = (torch.cat([_gradient(each).flatten() for each in net.parameters()]) for net in (shared, whole))
    far, largest = float((told - right).abs().max()), float(right.abs().max())
    print(json.dumps({"farthest": far, "largest": largest}), flush=True)
    leave(given)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


if __name__ == "__main__":
    main()
