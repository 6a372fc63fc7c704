"""Where random numbers come from: dropout's, and those of a transform that draws from the process's own generators.

PyTorch's default generator, `random` and numpy's legacy generator belong to the whole process. The thread that computes
seeds the first of them before each layer that draws, and before a loss or metric that does; a feed's thread seeds all of them
before each transform. So they take turns, and the thread that computes goes first:

    compute   .... seed, dropout ....................... seed, dropout .... (waits for one transform at most)
    feed      transform ......... transform, transform ............... transform
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
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

    @property
    def first_waits(self) -> bool:
        """Whether somebody who goes first waits for the turn of another one to end."""
        return self._waiting_first > 0

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


def seed_generators(seed: int, device: torch.device) -> None:
    """PyTorch's default generator of the device that computes. Within a turn."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class SeededCalls:
    """Calls of a function of the job's, a loss or a metric, that may draw random numbers as a layer may.

    Whether it does is seen at its first call; one that doesn't is called as it is from then on, and waits for nobody.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._draws: bool | None = None

    def __call__(self, output: Any, targets: Any, *, seed: int, device: torch.device) -> Any:
        """What the function returns, with the same numbers for the same seed."""
        if self._draws is False:
            return self._function(output, targets)
        with TURNS.first():
            # On a card it may draw from the host's generator all the same.
            for place in {device, torch.device("cpu")}:
                seed_generators(seed, place)
            before = _states(device) if self._draws is None else None
            result = self._function(output, targets)
            if before is not None:
                self._draws = not all(map(torch.equal, before, _states(device)))
        return result


def _states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.default_generator.get_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


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


class WatchedGenerator(torch.Generator):
    """Remembers whether somebody asked for what follows from its seed without drawing: a transform may seed others with it."""

    was_asked = False

    def initial_seed(self) -> int:
        self.was_asked = True
        return super().initial_seed()

    def get_state(self) -> torch.Tensor:
        self.was_asked = True
        return super().get_state()


@contextlib.contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[Callable[[], bool]]:
    """Inside it the process's own generators draw what follows from the seed of this one alone.

    They are PyTorch's default generator (CPU), which then goes on as before, Python's `random` and numpy's legacy
    generator, which `restored_generators` restores. The generator itself isn't drawn from; its numbers are others.
    It gives a function that tells whether anything was drawn so far, from them or from it. That draws itself: call it last.
    """
    seed = torch.Generator.initial_seed(generator)
    digest = hashlib.blake2b(f"global/{seed}".encode(), digest_size=20).digest()
    torch_seed, python_seed, numpy_seed = (
        int.from_bytes(part, "little") for part in (digest[:8], digest[8:16], digest[16:])
    )
    torch_seed >>= 1
    default = torch.default_generator

    def drew() -> bool:
        if isinstance(generator, WatchedGenerator) and generator.was_asked:
            return True
        states = default.get_state(), torch.Generator.get_state(generator)
        as_seeded = default.manual_seed(torch_seed).get_state(), torch.Generator().manual_seed(seed).get_state()
        if not all(map(torch.equal, states, as_seeded)):
            return True
        numbers = random.random(), np.random.random_sample()
        random.seed(python_seed)
        np.random.seed(numpy_seed)
        return numbers != (random.random(), np.random.random_sample())

    with TURNS.after_others():
        state = default.get_state()
        try:
            default.manual_seed(torch_seed)
            random.seed(python_seed)
            np.random.seed(numpy_seed)
            yield drew
        finally:
            default.set_state(state)


def states_of_generators() -> tuple[object, ...]:
    """Of Python's `random` and numpy's legacy generator: equal before and after where nobody drew."""
    return random.getstate(), str(np.random.get_state(legacy=False))


def states_of_all_generators() -> tuple[object, ...]:
    """Likewise, and of torch's default one: of those from which code draws that has no generator of its own."""
    return *states_of_generators(), torch.get_rng_state().numpy().tobytes()
