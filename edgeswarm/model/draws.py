"""Where random numbers come from: dropout's, and those of a transform that draws from the process's own generators.

PyTorch's default generator, `random` and numpy's legacy generator belong to the whole process. The thread that computes
seeds the first of them before each layer that draws; a feed's thread seeds all of them before each transform. So they
take turns, and the thread that computes goes first:

    compute   .... seed, dropout ....................... seed, dropout .... (waits for one transform at most)
    feed      transform ......... transform, transform ............... transform
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class DrawKey:
    """What the random numbers of one micro-batch's share are a function of, besides the layer.

    first_sample, end_sample: the interval of the micro-batch's samples that this replica computes.
    """

    seed: int
    round: int
    micro_batch: int
    first_sample: int
    end_sample: int

    def seed_of_layer(self, layer: int) -> int:
        """A 63-bit seed for this layer, counted in the whole model, so that a cut elsewhere draws the same."""
        text = f"{self.seed}/{self.round}/{self.micro_batch}/{layer}/{self.first_sample}/{self.end_sample}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


class Turns:
    """Who may use the process's own generators now. Not fair: those that come with `first` go before all others."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._waiting_first = 0

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        with self._changed:
            self._waiting_first += 1
            while self._taken:
                self._changed.wait()
            self._waiting_first -= 1
            self._taken = True
        try:
            yield
        finally:
            self._end()

    @contextlib.contextmanager
    def after_others(self) -> Iterator[None]:
        with self._changed:
            while self._taken or self._waiting_first:
                self._changed.wait()
            self._taken = True
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()


TURNS = Turns()


class _Saved:
    """The states of Python's and numpy's generators while somebody draws from others: of several threads' time together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._python_state: Any = None
        self._numpy_state: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._python_state, self._numpy_state = random.getstate(), np.random.get_state(legacy=False)
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                random.setstate(self._python_state)
                np.random.set_state(self._numpy_state)


_SAVED = _Saved()


@contextlib.contextmanager
def restored_generators() -> Iterator[None]:
    """After it, Python's `random` and numpy's legacy generator go on as if nothing had been drawn inside.

    Around a run of `drawing_from`: reading and setting these two costs more than seeding them.
    """
    _SAVED.enter()
    try:
        yield
    finally:
        _SAVED.leave()


@contextlib.contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside it the process's own generators draw what follows from the seed of this one alone.

    They are PyTorch's default generator (CPU), which then goes on as before, Python's `random` and numpy's legacy
    generator, which `restored_generators` restores. The generator itself isn't drawn from; its numbers are others.
    """
    digest = hashlib.blake2b(f"global/{generator.initial_seed()}".encode(), digest_size=20).digest()
    with TURNS.after_others():
        state = torch.default_generator.get_state()
        try:
            torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            random.seed(int.from_bytes(digest[8:16], "little"))
            np.random.seed(int.from_bytes(digest[16:], "little"))
            yield
        finally:
            torch.default_generator.set_state(state)
