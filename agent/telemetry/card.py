"""The graphics card that the worker will compute on, as NVIDIA's own library tells it. Never imports torch.

    CUDA_VISIBLE_DEVICES    unset: 0    "1", "GPU-8932f937": that one    "", "-1": none

The worker sees cards in the order of the library (CUDA_DEVICE_ORDER, see supervisor.py) and takes the first that it may see.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

from .memory import Memory, read_memory

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Card:
    """name: as its maker has it. memory: of the card alone; None where it shares the device's."""

    name: str
    memory: Memory | None


def chosen_card(environment: Mapping[str, str]) -> str | None:
    """Number or identity (GPU-..., MIG-...) of the first card that a process with this environment may use; None for none."""
    first = environment.get(_VISIBLE, "0").split(",")[0].strip()
    return first if first.isdigit() or first.startswith(("GPU-", "MIG-")) else None


def read_card(environment: Mapping[str, str] = os.environ) -> Card | None:
    """The card as it is now; None without one, or where NVIDIA's library is not there to ask (older Jetsons have none)."""
    chosen = chosen_card(environment)
    if chosen is None:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = _handle_of(chosen)
        return None if handle is None else Card(pynvml.nvmlDeviceGetName(handle), _memory_of(handle))
    except pynvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def read_training_memory(accelerator: str) -> Memory:
    """Of the device or, where it computes on a card that leaves less, of that: what a plan needs has to fit into both."""
    card = read_card() if accelerator == "cuda" else None
    return scarcer(read_memory(), None if card is None else card.memory)


def scarcer(device: Memory, card: Memory | None) -> Memory:
    return device if card is None or device.budget() <= card.budget() else card


def _handle_of(chosen: str) -> Any:
    if chosen.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(chosen))
    if chosen.startswith("MIG-"):
        return pynvml.nvmlDeviceGetHandleByUUID(chosen)
    # CUDA takes the beginning of an identity, the library the whole of it.
    handles = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount()))
    return next((handle for handle in handles if pynvml.nvmlDeviceGetUUID(handle).startswith(chosen)), None)


def _memory_of(handle: Any) -> Memory | None:
    """None where the library says that there is none to speak of: a GPU of a system on a chip."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:
        return None
    return Memory(total=int(memory.total), available=int(memory.free)) if memory.total else None
