"""All-reduce among the replicas of a stage: sums of flat buffers, over the same links as everything else.

Two replicas exchange the whole buffer. More than two pass chunks around a ring; with three replicas a, b, c and chunks 0, 1, 2:

    reduce-scatter   step 0:  a sends 0 to b, b sends 1 to c, c sends 2 to a; each adds what comes to its own
                     step 1:  a sends 2 to b, b sends 0 to c, c sends 1 to a; now a has the sum of 1, b of 2, c of 0
    all-gather       steps 2, 3: the finished chunks go on around the ring

A finished chunk is computed by one replica and copied by the others, so that all hold the same bits. Each replica sends
2 (G-1)/G of the buffer (Asteroid, Eq 5), for two replicas that is the buffer once. On a narrow wire everybody, the owner
of a chunk too, goes on with what the others get of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame

from .egress import EgressScheduler
from .mailbox import Mailbox

_ALIGNMENT_BYTES = 8  # parts of a buffer differ by an element at most


class ReplicaGroup:
    """This replica and the others of its stage, in the plan's order. wire_dtype: how float32 travels, None for as it is."""

    def __init__(
        self,
        replicas: Sequence[str],
        device: str,
        *,
        epoch: int,
        egress: EgressScheduler,
        mailbox: Mailbox,
        wire_dtype: str | None = None,
    ) -> None:
        self._replicas = tuple(replicas)
        self._rank = self._replicas.index(device)
        self._epoch = epoch
        self._egress = egress
        self._mailbox = mailbox
        self._wire_dtype = wire_dtype

    @property
    def size(self) -> int:
        return len(self._replicas)

    def all_reduce(self, buffer: torch.Tensor, *, round_number: int, bucket: int) -> None:
        """Replaces `buffer` (flat, on the CPU) by the sum of all replicas' buffers; blocks until that is done.

        `bucket` tells this buffer from the others of the round; all replicas use the same numbers.
        Raises what ended the epoch when it ends first.
        """
        if self.size == 2:
            self._exchange(buffer, round_number, bucket)
        elif self.size > 2:
            self._ring(buffer, round_number, bucket)

    def _exchange(self, buffer: torch.Tensor, round_number: int, bucket: int) -> None:
        other = self._replicas[1 - self._rank]
        key = FrameKey(FrameKind.ALL_REDUCE, round_number, bucket, 0, 0, 0)
        self._send(other, key, buffer)
        with self._mailbox.taken((other, key)) as arrived:
            buffer.add_(arrived.to(buffer.device))

    def _ring(self, buffer: torch.Tensor, round_number: int, bucket: int) -> None:
        size, rank = self.size, self._rank
        successor, predecessor = self._replicas[(rank + 1) % size], self._replicas[(rank - 1) % size]
        bounds = [buffer.numel() * index // size for index in range(size + 1)]
        chunks = [buffer[bounds[index] : bounds[index + 1]] for index in range(size)]
        for step in range(2 * (size - 1)):
            gathering = step >= size - 1
            outgoing, incoming = (rank - step) % size, (rank - step - 1) % size
            out_key = FrameKey(FrameKind.ALL_REDUCE, round_number, bucket, step, outgoing, 0)
            in_key = FrameKey(FrameKind.ALL_REDUCE, round_number, bucket, step, incoming, 0)
            self._send(successor, out_key, chunks[outgoing])
            with self._mailbox.taken((predecessor, in_key)) as arrived:
                if gathering:
                    chunks[incoming].copy_(arrived.to(buffer.device))
                else:
                    chunks[incoming].add_(arrived.to(buffer.device))

    def _send(self, peer: str, key: FrameKey, part: torch.Tensor) -> None:
        """Sends a part of the buffer, and leaves there what the peer gets."""
        # A copy: the next steps, and the step of the optimizer, write here while the frame may still be leaving.
        piece = self._mailbox.pieces.take(part.numel() * part.element_size())
        copy = piece[: part.numel() * part.element_size()].view(part.dtype)
        copy.copy_(part)
        frame = OutgoingFrame(
            key,
            copy,
            epoch=self._epoch,
            wire_dtype=self._wire_dtype,
            taken=lambda: self._mailbox.pieces.give_back(piece),
        )
        frame.leave_as_sent(part)
        self._egress.send(peer, frame)

    def reserve(self, largest_bytes: int, *, at_once: int) -> None:
        """Makes the memory for buffers of this size, so many at once: for each a piece that leaves and two that arrive."""
        if self.size > 1:
            piece_bytes = largest_bytes if self.size == 2 else math.ceil(largest_bytes / self.size) + _ALIGNMENT_BYTES
            self._mailbox.pieces.reserve(piece_bytes, 3 * at_once)
