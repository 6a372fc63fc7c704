"""What this worker computes on, "cpu" or "cuda": how it is made ready, when its work is done, and what it holds.

    host    hands over kernels --->|  waits    |          A card computes behind the host's back: how long an action took is
    card       computes them ------------------|          known only once the host has waited for it.

A card's memory counts together with the process's own. On a Jetson both are one; where they are two, the scarcer one is the
device's limit (telemetry/card.py), so that a plan fits either.
"""

from __future__ import annotations

import contextlib

import torch

from edgeswarm import process_memory


def made_ready() -> str:
    """Which it is. A card's context and the handles of its libraries are there from now on: they are no model's memory."""
    if not torch.cuda.is_available():
        return "cpu"
    torch.use_deterministic_algorithms(True, warn_only=True)
    matrix = torch.ones(8, 8, device="cuda")
    torch.mm(matrix, matrix)
    wait_for("cuda")
    return "cuda"


def wait_for(accelerator: str) -> None:
    """Returns when what this thread handed over is done. Raises RuntimeError where it failed.

    The processor is free until then: a small board's other threads send and receive.
    """
    if accelerator == "cuda":
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record()
        done.synchronize()


def held_bytes(accelerator: str) -> int:
    """Memory that is this process's own, with that of its tensors on a card."""
    return process_memory.anonymous_bytes() + (torch.cuda.memory_allocated() if accelerator == "cuda" else 0)


def peak_bytes(accelerator: str) -> int:
    """The most of it since `reset_peak`; of both, whenever each of them was."""
    peak = process_memory.peak_anonymous_bytes()
    return peak + (torch.cuda.max_memory_allocated() if accelerator == "cuda" else 0)


def reset_peak(accelerator: str) -> None:
    """Starts the peak anew. Where the kernel doesn't allow it, the process's stays that of its whole life."""
    process_memory.reset_peak()
    if accelerator == "cuda":
        torch.cuda.reset_peak_memory_stats()


def give_back_free_memory(accelerator: str) -> None:
    """Returns what the allocators keep but don't use."""
    if accelerator == "cuda":
        # After an error on the card it refuses everything, and whoever ends the epoch has that error to tell, not this one.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
    process_memory.give_back_free_memory()
