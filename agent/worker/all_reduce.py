"""All-reduce among the replicas of a stage: sums of flat buffers, over the same links as everything else.

Two replicas exchange the whole buffer. More than two send each chunk to its owner, who adds up and sends the sum to all
(edgeswarm/chunk_owners.py). A sum is computed by one replica and copied by the others, so that all hold the same bits. On a
narrow wire everybody, the owner of a chunk too, goes on with what the others get of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from edgeswarm.chunk_owners import OwnersInTurn, chunks_of_buffer
from edgeswarm.gradient_pieces import ALIGNED_NUMBERS, cut_places
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame
from edgeswarm.wire.tensor_narrowing import travelling_dtype

from .egress import EgressScheduler
from .mailbox import Mailbox

_TO_OWNER, _SUM = 0, 1


class ReplicaGroup:
    """This replica and the others of its stage, in the plan's order. wire_dtype: how float32 travels, None for as it is.

    owners: who adds up chunks; all replicas where none is named.
    """

    def __init__(
        self,
        replicas: Sequence[str],
        device: str,
        *,
        epoch: int,
        egress: EgressScheduler,
        mailbox: Mailbox,
        owners: Sequence[str] = (),
        wire_dtype: str | None = None,
    ) -> None:
        self._replicas = tuple(replicas)
        self._device = device
        self._owners = tuple(owners) or self._replicas
        rank = self._replicas.index(device)
        # Behind this one first: not all send to the same one at a time.
        self._others = self._replicas[rank + 1 :] + self._replicas[:rank]
        self._epoch = epoch
        self._egress = egress
        self._mailbox = mailbox
        self._wire_dtype = wire_dtype

    @property
    def size(self) -> int:
        return len(self._replicas)

    def owners_in_turn(self) -> OwnersInTurn[str]:
        """Of the buffers of a round, which all replicas have in the same order."""
        return OwnersInTurn(self._owners)

    def all_reduce(self, buffer: torch.Tensor, *, round_number: int, bucket: int, owners: Sequence[str]) -> None:
        """Replaces `buffer` (flat) by the sum of all replicas' buffers; blocks until that is done.

        `bucket` tells this buffer from the others of the round; all replicas use the same numbers, and the same owners.
        Raises what ended the epoch when it ends first.
        """
        if self.size == 2:
            self._exchange(buffer, round_number, bucket)
        elif self.size > 2:
            self._by_owners(buffer, round_number, bucket, owners)

    def _exchange(self, buffer: torch.Tensor, round_number: int, bucket: int) -> None:
        key = FrameKey(FrameKind.ALL_REDUCE, round_number, bucket, _TO_OWNER, 0, 0)
        self._send_copy(self._others, key, buffer)
        with self._mailbox.taken((self._others[0], key)) as arrived:
            buffer.add_(arrived.to(buffer.device))

    def _by_owners(self, buffer: torch.Tensor, round_number: int, bucket: int, owners: Sequence[str]) -> None:
        chunks = dict(zip(owners, buffer.tensor_split(cut_places(buffer.numel(), len(owners))), strict=True))
        in_place = self._arrives_in(buffer)

        def key(step: int, owner: str) -> FrameKey:
            return FrameKey(FrameKind.ALL_REDUCE, round_number, bucket, step, owners.index(owner), 0)

        sums = [(owner, key(_SUM, owner)) for owner in owners if owner != self._device]
        if in_place:  # no owner sends a sum before it has all of this replica's chunk
            for owner, sum_key in sums:
                self._mailbox.expect((owner, sum_key), chunks[owner])
        for owner in self._others:
            if owner in chunks:
                # No copy: the chunk stays as it is until the owner's sum has come, for which the owner has to have it.
                self._egress.send(owner, self._frame(key(_TO_OWNER, owner), chunks[owner]))
        if self._device in chunks:
            mine = chunks[self._device]
            to_me = key(_TO_OWNER, self._device)
            # In the plan's order, whoever comes first: the same sum each time.
            addresses = [(replica, to_me) for replica in self._replicas if replica != self._device]
            self._mailbox.wait_any((tuple(addresses),))
            for address in addresses:
                with self._mailbox.taken(address) as arrived:
                    mine.add_(arrived.to(mine.device))
            self._send_copy(self._others, key(_SUM, self._device), mine)
        if sums:
            self._mailbox.wait_any((tuple(sums),))
        for owner, sum_key in sums:
            with self._mailbox.taken((owner, sum_key)) as arrived:
                if not in_place:
                    chunks[owner].copy_(arrived.to(buffer.device))

    def _send_copy(self, peers: Sequence[str], key: FrameKey, part: torch.Tensor) -> None:
        """Sends a part of the buffer to these, and leaves there what they get."""
        # What is narrowed is a copy in any case.
        is_copy = self._is_narrowed(part)
        first = self._frame(key, part) if is_copy else self._frame_of_copy(key, part, frames=len(peers))
        frames = [first, *(first.again() for _ in peers[1:])]
        first.leave_as_sent(part)
        for peer, frame in zip(peers, frames, strict=True):
            self._egress.send(peer, frame)

    def _frame_of_copy(self, key: FrameKey, part: torch.Tensor, *, frames: int) -> OutgoingFrame:
        """What follows, and the step of the optimizer, write to the part while the frames, so many, may still be leaving."""
        size = part.numel() * part.element_size()
        piece = self._mailbox.pieces.take(size)
        copy = piece[:size].view(part.dtype)
        copy.copy_(part)
        missing = frames

        def left() -> None:  # one at a time, by the egress scheduler
            nonlocal missing
            missing -= 1
            if missing == 0:
                self._mailbox.pieces.give_back(piece)

        return self._frame(key, copy, left=left)

    def _frame(self, key: FrameKey, part: torch.Tensor, *, left: Callable[[], None] | None = None) -> OutgoingFrame:
        # A table of words has a gradient for those few alone that a replica met.
        return OutgoingFrame(key, part, epoch=self._epoch, wire_dtype=self._wire_dtype, left=left, leave_out_zeros=True)

    def _arrives_in(self, buffer: torch.Tensor) -> bool:
        """Whether sums come straight into the buffer: what travels narrowed, or belongs on a GPU, comes into pieces first."""
        return not (self._is_narrowed(buffer) or buffer.is_cuda)

    def _is_narrowed(self, part: torch.Tensor) -> bool:
        return travelling_dtype(part.dtype, self._wire_dtype) != part.dtype

    def reserve(self, largest: torch.Tensor, *, at_once: int) -> None:
        """Makes the memory for buffers like this one, so many at once: for what arrives, and the copy that leaves."""
        largest_bytes = largest.numel() * largest.element_size()
        if self.size == 1:
            return
        if self.size == 2:
            self._mailbox.pieces.reserve(largest_bytes, 3 * at_once)
            return
        chunks = chunks_of_buffer(len(self._owners), largest_bytes)
        is_owner = self._device in self._owners
        arriving = (self.size - 1 if is_owner else 0) + (0 if self._arrives_in(largest) else chunks)
        numbers = -(-largest.numel() // chunks) + ALIGNED_NUMBERS  # so much longer than others a chunk is at most
        of_arriving = travelling_dtype(largest.dtype, self._wire_dtype)
        leaving = 1 if is_owner and not self._is_narrowed(largest) else 0
        self._mailbox.pieces.reserve(numbers * of_arriving.itemsize, (arriving + leaving) * at_once)
