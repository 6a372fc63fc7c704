"""Gradients of a stage as flat buckets: sums over samples until the step, each all-reduced as soon as it is done.

    parameters, last used first     | head | block 3 | block 2 | ... |
    buckets (gradient_pieces.py)    |   bucket 0   | bucket 1 | last |
    backward of the last micro-batch  ------------------------------->
    all-reduce, on its own thread          bucket 0 ---> bucket 1 --->

Every parameter's `.grad` is a view into its bucket, so that nothing is copied together for sending, and the one division
by the count of samples is one operation a bucket. The bucket of a larger parameter is all-reduced in pieces, so that what is on
its way at a time stays a small part of the model; in not too many, since each waits for its latencies.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from edgeswarm.gradient_pieces import LEAST_BUCKET_BYTES, begins_bucket, cut_places, pieces_of

from .all_reduce import ReplicaGroup
from .epoch_state import EpochSwitch


class GradientBuckets:
    """Flat gradient buffers over the trainable parameters of a stage, given in the order of the forward.

    bucket_bytes: the most that a bucket of several parameters has; a larger parameter's is reduced in pieces of about as much.
    as_parameters_lie: weights of convolutions that lie channels last have gradients that do: a backward gives them so, and
    adding them to others costs late layers of ResNet-50 a twelfth more. Not where replicas add up their buckets, which must mean
    the same everywhere, whatever layout each computes in.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        *,
        bucket_bytes: int = LEAST_BUCKET_BYTES,
        as_parameters_lie: bool = False,
    ) -> None:
        self.names = [name for name, _ in parameters]
        self._bucket_of: dict[str, int] = {}
        self._views: dict[str, torch.Tensor] = {}
        self._parameters = dict(parameters)
        self.flat: list[torch.Tensor] = []
        # Views of `flat`, by bucket: what is all-reduced at a time.
        self.pieces: list[tuple[torch.Tensor, ...]] = []
        self._bucket_bytes = bucket_bytes
        # Parameters that got a gradient in this round. The others' zeros are no gradient: an optimizer leaves those alone.
        self.touched: set[str] = set()
        members: list[tuple[str, torch.nn.Parameter]] = []
        before = sum(_size_bytes(parameter) for _, parameter in parameters)
        for name, parameter in reversed(parameters):
            size = _size_bytes(parameter)
            before -= size
            same_kind = not members or members[0][1].dtype == parameter.dtype
            held = sum(_size_bytes(member) for _, member in members)
            if members and (not same_kind or begins_bucket(size, held=held, before=before, largest=bucket_bytes)):
                self._make_bucket(members, as_parameters_lie=as_parameters_lie)
                members = []
            members.append((name, parameter))
        if members:
            self._make_bucket(members, as_parameters_lie=as_parameters_lie)

    def _make_bucket(self, members: Sequence[tuple[str, torch.nn.Parameter]], *, as_parameters_lie: bool) -> None:
        first = members[0][1]
        flat = torch.zeros(sum(p.numel() for _, p in members), dtype=first.dtype, device=first.device)
        start = 0
        for name, parameter in members:
            self._bucket_of[name] = len(self.flat)
            of_parameter = flat[start : start + parameter.numel()]
            self._views[name] = (
                _as_it_lies(of_parameter, parameter) if as_parameters_lie else of_parameter.view(parameter.shape)
            )
            parameter.grad = self._views[name]
            start += parameter.numel()
        self.flat.append(flat)
        pieces = pieces_of(flat.numel() * flat.element_size(), piece_bytes=self._bucket_bytes)
        self.pieces.append(flat.tensor_split(cut_places(flat.numel(), pieces)))

    def bucket_of(self, name: str) -> int:
        return self._bucket_of[name]

    def members(self, bucket: int) -> list[str]:
        return [name for name in self.names if self._bucket_of[name] == bucket]

    def gradient(self, name: str) -> torch.Tensor:
        return self._views[name]

    def zero(self) -> None:
        """Begins a round."""
        self.touched.clear()
        for flat in self.flat:
            flat.zero_()
        for name, parameter in self._parameters.items():
            if parameter.grad is not self._views[name]:  # an optimizer's step may end with zero_grad()
                parameter.grad = self._views[name]

    def divide(self, count: float) -> None:
        """The one division by the mini-batch's global count."""
        for flat in self.flat:
            flat.div_(count)

    def scale(self, factor: float) -> None:
        for flat in self.flat:
            flat.mul_(factor)

    def sum_of_squares(self, names: Sequence[str]) -> float:
        """Over the gradients of these parameters, in double precision."""
        total = 0.0
        for name in names:
            norm = float(torch.linalg.vector_norm(self._views[name], dtype=torch.float64))
            total += norm * norm  # infinite where it is too large, for which ** raises
        return total


def _as_it_lies(elements: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """A view of so many elements in the parameter's shape and, for images' weights that lie channels last, its layout."""
    if parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
        outputs, inputs, height, width = parameter.shape
        return elements.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
    return elements.view(parameter.shape)


def _size_bytes(parameter: torch.nn.Parameter) -> int:
    return parameter.numel() * parameter.element_size()


# While a bucket waits for its sums, the other one has the link.
REDUCED_AT_ONCE = 2


class OverlappedReducer:
    """Runs the all-reduce of a round's buckets on threads of its own while the backward goes on.

    Pieces of buckets are begun in order at every replica, REDUCED_AT_ONCE of them at a time: each waits for the others' piece
    of that number, and the lowest that isn't done is under way at all of them.
    """

    def __init__(
        self,
        buckets: GradientBuckets,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        *,
        group: ReplicaGroup,
        switch: EpochSwitch,
    ) -> None:
        self._buckets = buckets
        self._group = group
        self._switch = switch
        self._armed = False
        self._later: Collection[str] = ()
        self._members = [frozenset(buckets.members(bucket)) for bucket in range(len(buckets.flat))]
        self._missing: list[set[str]] = []
        self._next_bucket = 0
        self._submitted = 0
        self._round = 0
        self._owners = group.owners_in_turn()
        self._work: queue.SimpleQueue[tuple[int, int, torch.Tensor, tuple[str, ...]] | None] = queue.SimpleQueue()
        self._condition = threading.Condition()
        self._reduced = 0
        self._hooks = [self._hook(name, parameter) for name, parameter in parameters]
        switch.on_thrown(self._wake)
        pieces = [piece for of_bucket in buckets.pieces for piece in of_bucket]
        if pieces:
            group.reserve(max(pieces, key=lambda piece: piece.nbytes), at_once=REDUCED_AT_ONCE)
        self._threads = [
            threading.Thread(target=self._run, name="all-reduce", daemon=True)
            for _ in range(REDUCED_AT_ONCE if group.size > 1 else 0)
        ]
        for thread in self._threads:
            thread.start()

    def _hook(self, name: str, parameter: torch.nn.Parameter) -> RemovableHandle:
        def gradient_done(_: torch.Tensor) -> None:
            self._gradient_done(name)

        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(gradient_done)  # type: ignore[no-untyped-call]
        return handle

    def begin_round(self, round_number: int) -> None:
        self._round = round_number
        self._armed = False
        self._next_bucket = self._submitted = 0
        self._owners = self._group.owners_in_turn()
        self._missing = [set(members) for members in self._members]
        with self._condition:
            self._reduced = 0

    def arm(self, is_last: bool, *, but: Collection[str] = ()) -> None:
        """Whether what comes next is this replica's last backward of the round, or the last gradients of its weights: gradients
        are final then once accumulated, those of the parameters `but` excepted, which come later.
        """
        self._armed = is_last
        self._later = but

    def finish_backward(self) -> None:
        """The last backward has run: what got no gradient in it is final too."""
        for missing in self._missing:
            missing.clear()
        self._release()

    def reduce_beside(self, buffer: torch.Tensor) -> None:
        """Hands in a buffer that is no gradient: at every replica between the same two buckets, or before or after all."""
        self._submit(buffer)

    def wait(self) -> None:
        """Blocks until all that was handed in is reduced. Raises what ended the epoch."""
        if self._group.size == 1:
            return
        with self._condition:
            while self._reduced < self._submitted:
                self._switch.check()
                self._condition.wait()
        self._switch.check()

    def close(self) -> None:
        """Ends the threads and lets go of the parameters. Call it once the epoch is over."""
        for hook in self._hooks:
            hook.remove()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _gradient_done(self, name: str) -> None:
        self._buckets.touched.add(name)
        if self._armed and name not in self._later:
            self._missing[self._buckets.bucket_of(name)].discard(name)
            self._release()

    def _release(self) -> None:
        while self._next_bucket < len(self._missing) and not self._missing[self._next_bucket]:
            for piece in self._buckets.pieces[self._next_bucket]:
                self._submit(piece)
            self._next_bucket += 1

    def _submit(self, buffer: torch.Tensor) -> None:
        """Every replica hands in the same buffers in the same order, by which they are numbered."""
        if self._group.size > 1:
            owners = self._owners.of_next(buffer.numel() * buffer.element_size())
            self._work.put((self._round, self._submitted, buffer, owners))
            self._submitted += 1

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            round_number, number, buffer, owners = work
            try:
                self._group.all_reduce(buffer, round_number=round_number, bucket=number, owners=owners)
            except BaseException as error:
                # The epoch is over; whoever waits in `wait` raises why.
                self._switch.fail(error)
                return
            with self._condition:
                self._reduced += 1
                if self._reduced == self._submitted:
                    self._condition.notify_all()

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()
