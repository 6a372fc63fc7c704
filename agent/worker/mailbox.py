"""Frames that have arrived, until somebody takes them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from edgeswarm.wire.frames import HEADER_BYTES, FrameHeader, FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import IncomingFrame

from .epoch_state import EpochSwitch
from .piece_buffers import PieceBuffers

Address = tuple[str, FrameKey]


def _never() -> bool:
    return False


class _Waiter:
    """Somebody who waits until all addresses of at least one group are there, or `or_else` says so; under the mailbox's lock."""

    def __init__(
        self, groups: Sequence[Sequence[Address]], lock: threading.Lock, or_else: Callable[[], bool] = _never
    ) -> None:
        self.groups = groups
        self.condition = threading.Condition(lock)
        self.or_else = or_else


class Mailbox:
    """Frames by (sender, key). Streams deliver chunks from threads of the server; the worker's threads take whole tensors.

    How much can lie here is bounded by the schedule: nobody has more than K_p micro-batches in flight. What an all-reduce sends
    arrives in `pieces`, and goes back there by `taken`; or where `expect` says.
    """

    def __init__(self, switch: EpochSwitch, *, epoch: int) -> None:
        self._switch = switch
        self.epoch = epoch
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self.pieces = PieceBuffers()
        self._arriving: dict[Address, IncomingFrame] = {}
        self._piece_of: dict[Address, torch.Tensor] = {}
        self._expected: dict[Address, torch.Tensor] = {}
        self._arrived: dict[Address, torch.Tensor] = {}
        self.received_bytes = 0
        switch.on_thrown(self._end)

    def _end(self) -> None:
        """Wakes whoever waits, and keeps nothing: the server knows this mailbox until the next epoch comes."""
        with self._lock:
            self._arriving.clear()
            self._piece_of.clear()
            self._expected.clear()
            self._arrived.clear()
            self.pieces.end()
            for waiter in self._waiters:
                waiter.condition.notify()

    def deliver(self, sender: str, header: FrameHeader, size: int, *, fill: Callable[[memoryview], None]) -> None:
        """One chunk of a stream from `sender`; `fill` writes its `size` bytes to where they belong.

        Raises ValueError for a frame that doesn't fit, and what `fill` raises.
        """
        if header.epoch != self.epoch:
            raise ValueError(f"a frame of epoch {header.epoch} on a stream of epoch {self.epoch}")
        address = (sender, header.key)
        frame = self._frame(address, header)
        # Only this stream's thread writes to this frame: that needs no lock.
        fill(frame.room(header, size))
        tensor = frame.tensor() if frame.filled(size) else None
        with self._lock:
            self.received_bytes += HEADER_BYTES + size
            if tensor is not None and self._arriving.pop(address, None) is not None:
                self._arrived[address] = tensor
                self._wake()

    def _frame(self, address: Address, header: FrameHeader) -> IncomingFrame:
        with self._lock:
            if address in self._arrived:
                raise ValueError(f"frame {address} came twice")
            if address not in self._arriving:
                piece = None
                if address in self._expected:
                    piece = self._expected.pop(address)
                    if piece.numel() != header.tensor_bytes:
                        raise ValueError(f"frame {address} has {header.tensor_bytes} bytes in place of {piece.numel()}")
                elif header.key.kind is FrameKind.ALL_REDUCE:
                    piece = self._piece_of[address] = self.pieces.take(header.tensor_bytes)
                self._arriving[address] = IncomingFrame(header, piece)
            return self._arriving[address]

    def expect(self, address: Address, tensor: torch.Tensor) -> None:
        """A frame that isn't on its way yet comes straight into this tensor (contiguous, on the CPU), as it is."""
        storage = tensor.view(-1).view(torch.uint8)
        with self._lock:
            if not self._switch.is_thrown:
                self._expected[address] = storage

    def has_all(self, addresses: Iterable[Address]) -> bool:
        with self._lock:
            return all(address in self._arrived for address in addresses)

    def missing(self, addresses: Iterable[Address]) -> list[Address]:
        with self._lock:
            return [address for address in addresses if address not in self._arrived]

    def take(self, address: Address) -> torch.Tensor:
        """Waits for a frame and removes it. Raises what ended the epoch when it ends first."""
        with self._lock:
            self._wait(((address,),))
            return self._arrived.pop(address)

    @contextlib.contextmanager
    def taken(self, address: Address) -> Iterator[torch.Tensor]:
        """`take` for a piece of an all-reduce: its memory is used for the next one as soon as the block is left."""
        tensor = self.take(address)
        yield tensor
        with self._lock:
            piece = self._piece_of.pop(address, None)
        if piece is not None:
            self.pieces.give_back(piece)

    def wait_any(self, candidates: Iterable[tuple[Address, ...]], *, or_else: Callable[[], bool] = _never) -> None:
        """Waits until all addresses of at least one candidate are there. Raises what ended the epoch.

        or_else: ends the waiting, too. It is asked under the mailbox's lock, whenever `look_again` is called.
        """
        groups = list(candidates)
        with self._lock:
            self._wait(groups, or_else)

    def look_again(self) -> None:
        """What an `or_else` looks at has changed."""
        with self._lock:
            for waiter in self._waiters:
                if waiter.or_else is not _never:
                    waiter.condition.notify()

    def _wait(self, groups: Sequence[Sequence[Address]], or_else: Callable[[], bool] = _never) -> None:
        waiter = _Waiter(groups, self._lock, or_else)
        self._waiters.append(waiter)
        try:
            while not (self._has_one_of(groups) or or_else()):
                self._switch.check()
                waiter.condition.wait()
        finally:
            self._waiters.remove(waiter)
        self._switch.check()

    def _wake(self) -> None:
        """Those only who have what they wait for: each wake-up of the others would cost as much as a frame."""
        for waiter in self._waiters:
            if self._has_one_of(waiter.groups):
                waiter.condition.notify()

    def _has_one_of(self, groups: Sequence[Sequence[Address]]) -> bool:
        return any(all(address in self._arrived for address in group) for group in groups)
