"""What the scripts share: their command line, joining the others, and timing rounds that all ranks take in step."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.energy import joules_between, read_counters
from edgeswarm.process_memory import peak_anonymous_bytes

# Not timed: the first two rounds, or as many as this takes; of long rounds in a trial the first alone.
WARM_UP_ROUNDS, WARM_UP_SECONDS, LONG_ROUND_SECONDS = 2, 20.0, 30.0
# Timed at least, however long they take.
LEAST_ROUNDS = 3
READY = "has its model"  # what a script says once it has imported all that it needs
JOIN_SECONDS = 300.0
_LINKS = Path("/proc/self/net/dev")
_SENT = 8  # its column there, behind the link's name


def warm_up_rounds(round_seconds: float, *, warm_up_seconds: float = WARM_UP_SECONDS) -> int:
    """How many rounds go before those that are timed, for every method alike. warm_up_seconds: 0 in a trial."""
    if not warm_up_seconds and round_seconds >= LONG_ROUND_SECONDS:
        return 1
    return max(WARM_UP_ROUNDS, math.ceil(warm_up_seconds / max(round_seconds, 1e-3)))


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True)
    parser.add_argument("--mini-batch", type=int, required=True, help="samples of one optimizer step, over all devices")
    parser.add_argument("--micro-batch", type=int, required=True, help="samples that are computed at once")
    parser.add_argument("--rounds", type=int, default=10, help="to time, behind the first ones, which are not")
    parser.add_argument(
        "--least-rounds", type=int, default=LEAST_ROUNDS, help="to time at least, whatever --seconds says"
    )
    parser.add_argument("--seconds", type=float, default=90.0, help="after which no further round begins")
    parser.add_argument("--warm-up-seconds", type=float, default=WARM_UP_SECONDS, help="before what is timed")
    parser.add_argument("--channels-last", action="store_true", help="images and convolutions' weights pixel by pixel")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--master", default="", help="host:port of rank 0; none for one device alone")
    return parser


def memory_format(channels_last: bool) -> torch.memory_format:
    """Of weights and of images."""
    return torch.channels_last if channels_last else torch.contiguous_format


def laid_out(module: nn.Module, channels_last: bool) -> nn.Module:
    """For training, with its convolutions' weights as asked."""
    found: nn.Module = module.train().to(memory_format=memory_format(channels_last))  # type: ignore[call-overload]
    return found


def in_micro_batches(share: Tensor, at_once: int) -> tuple[Tensor, ...]:
    """Parts of nearly one size, of at most `at_once` samples: a small rest would cost a pass of its own, which hides little of an
    all-reduce, and a batch norm keeps what the last part says.
    """
    return torch.tensor_split(share, math.ceil(len(share) / at_once))


def sent_bytes(table: Path = _LINKS) -> int:
    """What left over this device's links so far, headers and all; what processes here send each other is not in it."""
    links = (line.partition(":") for line in table.read_text().splitlines())
    return sum(int(numbers.split()[_SENT]) for name, _, numbers in links if numbers and name.strip() != "lo")


def join(given: argparse.Namespace) -> None:
    """With the model in hand, which libraries are imported for: what comes before is not timed (launch.py). Raises RuntimeError
    where the others don't come.
    """
    print(READY, flush=True)
    torch.set_flush_denormal(True)  # as workers do: few would think of it, but then it isn't edgeswarm's doing
    torch.set_num_threads(1)
    if given.world > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{given.master}",
            rank=given.rank,
            world_size=given.world,
            timeout=datetime.timedelta(seconds=JOIN_SECONDS),
        )


def time_rounds(given: argparse.Namespace, train_round: Callable[[], None]) -> NoReturn:
    """Trains rounds at all ranks; rank 0 prints one line of JSON with their seconds, and what each rank and the machine used.
    Ends the process.
    """
    begin = time.perf_counter()
    train_round()
    left = torch.tensor(warm_up_rounds(time.perf_counter() - begin, warm_up_seconds=given.warm_up_seconds) - 1)
    if given.world > 1:
        dist.broadcast(left, 0)
    for _ in range(int(left)):
        train_round()
    cpu_before, sent_before = time.process_time(), sent_bytes()
    energy_before = read_counters()
    begin = time.monotonic()
    seconds: list[float] = []
    ends: list[float] = []
    go_on = torch.ones(1)
    while go_on.item():
        round_begin = time.monotonic()
        train_round()
        now = time.monotonic()
        seconds.append(now - round_begin)
        ends.append(now)
        in_time = now - begin < given.seconds or len(seconds) < given.least_rounds
        go_on[0] = len(seconds) < given.rounds and in_time
        if given.world > 1:
            dist.broadcast(go_on, 0)
    joules = joules_between(energy_before, read_counters())
    used = {
        "cpu_seconds": time.process_time() - cpu_before,
        "sent_bytes": sent_bytes() - sent_before,
        # As workers tell theirs. What getrusage says outlives fork and exec: it begins at the peak of who started this process.
        "peak_bytes": peak_anonymous_bytes(),
    }
    ranks: list[dict[str, float] | None] = [used]
    if given.world > 1:
        ranks = [None] * given.world
        dist.all_gather_object(ranks, used)
    if given.rank == 0:
        told = {"round_seconds": seconds, "round_ends": ends, "ranks": ranks, "joules": joules}
        print(json.dumps(told), flush=True)
    leave(given)


def leave(given: argparse.Namespace) -> NoReturn:
    """Together with the others. Ends the process at once: the interpreter's own end would take seconds of a slow device, which
    nobody times, and threads of autograd's and gloo's that want Python then can take the process down with SIGABRT.
    """
    if given.world > 1:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
