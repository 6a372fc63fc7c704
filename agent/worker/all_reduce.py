"""All-reduce among the replicas of a stage: sums of flat buffers, over the same links as everything else.

Two replicas exchange the whole buffer. More than two send each chunk to its owner, who adds up and sends the sum to all
(edgeswarm/chunk_owners.py). A sum is computed by one replica and copied by the others, so that all hold the same bits. On a
narrow wire everybody, the owner of a chunk too, goes on with what the others get of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from edgeswarm.chunk_owners import owners_of_buffer
from edgeswarm.gradient_pieces import ALIGNED_NUMBERS, cut_places
from edgeswarm.wire.frames import FrameKey, FrameKind
from edgeswarm.wire.tensor_frames import OutgoingFrame

from .egress import EgressScheduler
from .mailbox import Mailbox

_ALIGNMENT_BYTES = 8 * ALIGNED_NUMBERS  # so much longer than others a chunk of a buffer is at most
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

    def all_reduce(self, buffer: torch.Tensor, *, round_number: int, bucket: int) -> None:
        """Replaces `buffer` (flat) by the sum of all replicas' buffers; blocks until that is done.

        `bucket` tells this buffer from the others of the round; all replicas use the same numbers.
        Raises what ended the epoch when it ends first.
        """
        if self.size == 2:
            self._exchange(buffer, round_number, bucket)
        elif self.size > 2:
            self._by_owners(buffer, round_number, bucket)

    def _exchange(self, buffer: torch.Tensor, round_number: int, bucket: int) -> None:
        key = FrameKey(FrameKind.ALL_REDUCE, round_number, bucket, _TO_OWNER, 0, 0)
        self._send_copy(self._others, key, buffer)
        with self._mailbox.taken((self._others[0], key)) as arrived:
            buffer.add_(arrived.to(buffer.device))

    def _by_owners(self, buffer: torch.Tensor, round_number: int, bucket: int) -> None:
        owners = owners_of_buffer(self._owners, buffer.numel() * buffer.element_size())
        chunks = dict(zip(owners, buffer.tensor_split(cut_places(buffer.numel(), len(owners))), strict=True))

        def key(step: int, owner: str) -> FrameKey:
            return FrameKey(FrameKind.ALL_REDUCE, round_number, bucket, step, owners.index(owner), 0)

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
        sums = [(owner, key(_SUM, owner)) for owner in owners if owner != self._device]
        if sums:
            self._mailbox.wait_any((tuple(sums),))
        for owner, sum_key in sums:
            with self._mailbox.taken((owner, sum_key)) as arrived:
                chunks[owner].copy_(arrived.to(buffer.device))

    def _send_copy(self, peers: Sequence[str], key: FrameKey, part: torch.Tensor) -> None:
        """Sends a part of the buffer to these, and leaves there what they get."""
        # A copy: what follows, and the step of the optimizer, write here while the frames may still be leaving.
        size = part.numel() * part.element_size()
        piece = self._mailbox.pieces.take(size)
        copy = piece[:size].view(part.dtype)
        copy.copy_(part)
        left = len(peers)

        def taken() -> None:  # one at a time, by the egress scheduler
            nonlocal left
            left -= 1
            if left == 0:
                self._mailbox.pieces.give_back(piece)

        first = self._frame(key, copy, taken=taken)
        frames = [first, *(first.again() for _ in peers[1:])]
        first.leave_as_sent(part)
        for peer, frame in zip(peers, frames, strict=True):
            self._egress.send(peer, frame)

    def _frame(self, key: FrameKey, part: torch.Tensor, *, taken: Callable[[], None] | None = None) -> OutgoingFrame:
        # A table of words has a gradient for those few alone that a replica met.
        return OutgoingFrame(
            key, part, epoch=self._epoch, wire_dtype=self._wire_dtype, taken=taken, leave_out_zeros=True
        )

    def reserve(self, largest_bytes: int, *, at_once: int) -> None:
        """Makes the memory for buffers of this size, so many at once: for what arrives, and the copy that leaves."""
        if self.size == 1:
            return
        if self.size == 2:
            self._mailbox.pieces.reserve(largest_bytes, 3 * at_once)
            return
        owners = len(owners_of_buffer(self._owners, largest_bytes))
        arriving = owners if self._device not in self._owners[:owners] else self.size + owners - 2
        leaving = 1 if self._device in self._owners[:owners] else 0
        chunk_bytes = -(-largest_bytes // owners) + _ALIGNMENT_BYTES
        self._mailbox.pieces.reserve(chunk_bytes, (arriving + leaving) * at_once)
