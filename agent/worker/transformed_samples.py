"""What a job's transform made of samples, kept on disk as long as it seems to make the same of a sample each time.

Most of what transforms do (decoding, resizing, tokens, numbers between 0 and 1) draws nothing, and in a later epoch comes out
as before: on a small device that is much of what a small model takes. Nobody has to say so. A transform is trusted

    while nothing is drawn as it runs, from its generator or from the process's own ones: at each sample that is to be kept, for
    one whose inputs are kept here and whose targets elsewhere are not would be made of two draws,
    while the first SECOND_LOOKS samples come out alike twice, with another seed the second time,
    while one of LOOK_AT_EVERY kept samples that are used, transformed anew when its turn comes, is as it was.

Once it is not, all samples are transformed in each epoch, whatever was kept. In the first epoch nothing that is kept is used.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from edgeswarm.errors import EdgeswarmError
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_samples import encode_values

from .sample_cache import KeptSamples, Place, SampleCache, StorePart

# Of one job: beside the samples themselves, and small enough for most of it to stay in the page cache.
KEPT_BYTES = 256 * 1024**2
# And no more than this part of what may be kept in all: samples that aren't kept would be fetched again.
KEPT_SHARE = 1 / 8
SECOND_LOOKS = 64
LOOK_AT_EVERY = 256
_PLAIN = (bool, int, float, str, bytes, type(None))


class TransformedSamples:
    """Of one set, or one part of each sample. For one thread at a time; it may outlive a feed."""

    def __init__(self, store: StorePart) -> None:
        self._store = store
        self._kept = KeptSamples(store)
        self._second_looks_left = SECOND_LOOKS
        self._used_since_look = 0
        self.is_trusted = True

    def find(self, indices: Sequence[int]) -> dict[int, Place]:
        """The places of those that are kept."""
        return self._kept.find(indices) if self.is_trusted else {}

    def to_look_at(self, places: Mapping[int, Place]) -> frozenset[int]:
        """Those of some kept samples, which are used now, whose turn it is to be transformed anew and compared."""
        chosen = set()
        for index in places:
            self._used_since_look += 1
            if self._used_since_look == LOOK_AT_EVERY:
                self._used_since_look = 0
                chosen.add(index)
        return frozenset(chosen)

    @property
    def keeps(self) -> bool:
        """Whether samples that are transformed now are to be kept, and so watched for draws."""
        return self.is_trusted and not self._store.is_full

    def wants_second_look(self) -> bool:
        """Whether the sample that was transformed just now is to be transformed once more; counts those."""
        if not self.keeps or self._second_looks_left == 0:
            return False
        self._second_looks_left -= 1
        return True

    def compare(self, value: Any, before: Any) -> None:
        """Gives up where a value isn't what its sample was made into before."""
        if not same(value, before):
            self.give_up()

    def give_up(self) -> None:
        """The transform isn't trusted any more."""
        self.is_trusted = False
        self._kept = KeptSamples(self._store)

    def add(self, values: Mapping[int, Any]) -> None:
        """Keeps these by their index in the data set, as far as there is room. Gives up where they can't be written down."""
        if not values or not self.keeps:
            return
        try:
            data = bytearray(encode_values(list(values.values())))
        except EdgeswarmError:
            self.give_up()
            return
        self._kept.add(list(values), data)


class UnknownTypeError(TypeError):
    """A value that can't be copied and compared."""


def copied(value: Any) -> Any:
    """The same with memory of its own. Raises UnknownTypeError."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.copy()
    if kind in _PLAIN:
        return value
    if kind in (tuple, list):
        return kind(map(copied, value))
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    raise UnknownTypeError(kind)


def same(one: Any, other: Any) -> bool:
    """Whether types, shapes and all numbers are the same, of what `copied` takes; what is no number is as itself."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):  # a subclass is kept as a tensor
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and (torch.equal(one, other) or torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True))
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return bool(one == other) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


class TransformedCache:
    """All that a worker keeps of this, where its samples are kept on a disk."""

    def __init__(self, cache: SampleCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._stores: dict[str, StorePart] = {}
        self._kept: dict[tuple[str, int, int], TransformedSamples] = {}

    def of(self, job_id: str, sample_set: int, part: SamplePart) -> TransformedSamples | None:
        """Of one of a job's sets: the same each time. None where only memory could keep it, which the plan has other uses for."""
        if not self._cache.is_on_disk:
            return None
        with self._lock:
            if job_id not in self._stores:
                limit = min(KEPT_BYTES, int(self._cache.limit_bytes * KEPT_SHARE))
                self._stores[job_id] = self._cache.part_of_store(limit)
            key = (job_id, sample_set, int(part))
            if key not in self._kept:
                self._kept[key] = TransformedSamples(self._stores[job_id])
            return self._kept[key]
