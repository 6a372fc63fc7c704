"""Frames that have arrived, until somebody takes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch

from edgeswarm.wire.frames import HEADER_BYTES, FrameHeader, FrameKey
from edgeswarm.wire.tensor_frames import IncomingFrame

from .epoch_state import EpochSwitch

Address = tuple[str, FrameKey]


class Mailbox:
    """Frames by (sender, key). Streams deliver chunks from threads of the server; the worker's threads take whole tensors.

    How much can lie here is bounded by the schedule: nobody has more than K_p micro-batches in flight.
    """

    def __init__(self, switch: EpochSwitch, *, epoch: int) -> None:
        self._switch = switch
        self.epoch = epoch
        self._condition = threading.Condition()
        self._arriving: dict[Address, IncomingFrame] = {}
        self._arrived: dict[Address, torch.Tensor] = {}
        self.received_bytes = 0
        switch.on_thrown(self._end)

    def _end(self) -> None:
        """Wakes whoever waits, and keeps nothing: the server knows this mailbox until the next epoch comes."""
        with self._condition:
            self._arriving.clear()
            self._arrived.clear()
            self._condition.notify_all()

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
        with self._condition:
            self.received_bytes += HEADER_BYTES + size
            if tensor is not None and self._arriving.pop(address, None) is not None:
                self._arrived[address] = tensor
                self._condition.notify_all()

    def _frame(self, address: Address, header: FrameHeader) -> IncomingFrame:
        with self._condition:
            if address in self._arrived:
                raise ValueError(f"frame {address} came twice")
            if address not in self._arriving:
                self._arriving[address] = IncomingFrame(header)
            return self._arriving[address]

    def has_all(self, addresses: Iterable[Address]) -> bool:
        with self._condition:
            return all(address in self._arrived for address in addresses)

    def missing(self, addresses: Iterable[Address]) -> list[Address]:
        with self._condition:
            return [address for address in addresses if address not in self._arrived]

    def take(self, address: Address) -> torch.Tensor:
        """Waits for a frame and removes it. Raises what ended the epoch when it ends first."""
        with self._condition:
            while address not in self._arrived:
                self._switch.check()
                self._condition.wait()
            self._switch.check()
            return self._arrived.pop(address)

    def wait_any(self, candidates: Iterable[tuple[Address, ...]]) -> None:
        """Waits until all addresses of at least one candidate are there. Raises what ended the epoch."""
        groups = list(candidates)
        with self._condition:
            while not any(all(address in self._arrived for address in group) for group in groups):
                self._switch.check()
                self._condition.wait()
        self._switch.check()
