"""What a transform made of a sample is used again where it draws nothing, and only there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from edgeswarm.errors import EdgeswarmError
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm_agent.worker import transformed_samples
from edgeswarm_agent.worker.sample_cache import SampleCache
from edgeswarm_agent.worker.samples import LocalSamples
from edgeswarm_agent.worker.timing import Progress
from edgeswarm_agent.worker.transformed_samples import SECOND_LOOKS, TransformedCache, TransformedSamples
from edgeswarm_agent.worker.transforming import Transforming, sample_generator

LENGTH, BATCH, SEED = 96, 8, 3


class Numbers:
    """Item i: an image full of i, and its number. A new tensor each time."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.full((2, 2), index, dtype=torch.uint8), index


@pytest.fixture
def cache(tmp_path: Path) -> TransformedCache:
    return TransformedCache(SampleCache(tmp_path / "samples", limit_bytes=10**8))


def kept_of(cache: TransformedCache, part: SamplePart = SamplePart.BOTH) -> TransformedSamples:
    kept = cache.of("job", 0, part)
    assert kept is not None
    return kept


def transforming(transform: Any, kept: TransformedSamples | None, **changes: Any) -> Transforming:
    settings: dict[str, Any] = {"source": LocalSamples(Numbers()), "part": SamplePart.BOTH} | changes
    return Transforming(transform=transform, seed=SEED, where="nano-1", kept=kept, doing=Progress(), **settings)


def order_of(epoch: int) -> list[int]:
    return torch.randperm(LENGTH, generator=torch.Generator().manual_seed(epoch)).tolist()


def in_batches(order: list[int], size: int) -> list[list[int]]:
    return [order[first : first + size] for first in range(0, len(order), size)]


def batches_of(made: Transforming, epochs: int, *, size: int = BATCH) -> list[list[Any]]:
    """Of each epoch, its batches, the samples each time in another order."""
    return [
        [made.batch(chosen, epoch, made.read(chosen, in_pieces=True)) for chosen in in_batches(order_of(epoch), size)]
        for epoch in range(epochs)
    ]


def expected_of(transform: Any, epochs: int, *, size: int = BATCH) -> list[list[Any]]:
    def value(epoch: int, index: int) -> Any:
        return transform(Numbers()[index], sample_generator(SEED, epoch, index))

    return [
        [default_collate([value(epoch, index) for index in chosen]) for chosen in in_batches(order_of(epoch), size)]
        for epoch in range(epochs)
    ]


def same(found: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> bool:
    pairs = zip(itertools.chain(*found), itertools.chain(*expected), strict=True)
    return all(
        torch.equal(image, wanted_image) and image.dtype == wanted_image.dtype and torch.equal(label, wanted_label)
        for (image, label), (wanted_image, wanted_label) in pairs
    )


class Counting:
    """Counts the calls of a transform."""

    def __init__(self, transform: Callable[[Any, torch.Generator], Any]) -> None:
        self.transform = transform
        self.calls = 0

    def __call__(self, sample: Any, generator: torch.Generator) -> Any:
        self.calls += 1
        return self.transform(sample, generator)


def halved(sample: Any, _: torch.Generator) -> Any:
    return sample[0] / 2, sample[1]


@pytest.mark.parametrize("size", [1, BATCH, 7])
def test_a_transform_that_draws_nothing_is_called_once_for_each_sample(cache: TransformedCache, size: int) -> None:
    transform = Counting(halved)
    made = transforming(transform, kept_of(cache))
    found = batches_of(made, 2, size=size)
    assert transform.calls == LENGTH + SECOND_LOOKS
    assert same(found, expected_of(halved, 2, size=size))
    # Of 256 that are used one is looked at.
    batches_of(made, 6, size=size)
    assert transform.calls == LENGTH + SECOND_LOOKS + 7 * LENGTH // transformed_samples.LOOK_AT_EVERY


def test_what_is_kept_outlives_who_asked_for_it_and_each_part_has_its_own(cache: TransformedCache) -> None:
    batches_of(transforming(halved, kept_of(cache)), 1)
    again = Counting(halved)
    assert same(batches_of(transforming(again, kept_of(cache)), 1), expected_of(halved, 1))
    assert again.calls == 0
    batches_of(transforming(again, kept_of(cache, SamplePart.INPUTS), part=SamplePart.INPUTS), 1)
    assert again.calls == LENGTH + SECOND_LOOKS


OWN = np.random.default_rng(5)
DRAWS: dict[str, Callable[[torch.Generator], float]] = {
    "the generator": lambda generator: float(torch.rand((), generator=generator)),
    "PyTorch's": lambda _: float(torch.rand(())),
    "Python's": lambda _: random.random(),
    "numpy's": lambda _: float(np.random.rand()),
    "one seeded from it": lambda generator: float(np.random.default_rng(generator.initial_seed()).random()),
    "one in its state": lambda generator: float(generator.get_state().sum()) + float(generator.initial_seed() % 97),
    "one of its own": lambda _: float(OWN.random()),
}


@pytest.mark.parametrize("draws", list(DRAWS))
def test_what_draws_is_transformed_in_every_epoch_anew(cache: TransformedCache, draws: str) -> None:
    def noisy(sample: Any, generator: torch.Generator) -> Any:
        return sample[0] + DRAWS[draws](generator), sample[1]

    transform = Counting(noisy)
    kept = kept_of(cache)
    first, second = batches_of(transforming(transform, kept), 2)
    assert not kept.is_trusted
    assert transform.calls <= 2 * LENGTH + 1
    images = [torch.cat([image for image, _ in epoch])[torch.tensor(order).argsort()]
              for epoch, order in ((first, order_of(0)), (second, order_of(1)))]  # fmt: skip
    assert not any(torch.equal(one, other) for one, other in zip(*images, strict=True))
    if draws != "one of its own":
        assert same([first, second], batches_of(transforming(noisy, None), 2))


def test_a_draw_for_few_samples_is_found_before_anything_kept_is_used(cache: TransformedCache) -> None:
    def seldom(sample: Any, generator: torch.Generator) -> Any:
        image, number = sample
        return (image + torch.rand((), generator=generator) if number % 5 == 0 else image / 1), number

    kept = kept_of(cache)
    found = batches_of(transforming(seldom, kept), 2)
    assert not kept.is_trusted
    assert same(found, batches_of(transforming(seldom, None), 2))


@pytest.mark.parametrize("place", range(SECOND_LOOKS, SECOND_LOOKS + 8))
def test_a_draw_for_a_single_sample_is_found(cache: TransformedCache, place: int) -> None:
    """Kept, it would have the same draw in each epoch, and inputs and targets two where one device alone keeps it."""
    drawing = order_of(0)[place]

    def once(sample: Any, generator: torch.Generator) -> Any:
        image, number = sample
        return (image + torch.rand((), generator=generator) if number == drawing else image / 1), number

    kept = kept_of(cache)
    found = batches_of(transforming(once, kept), 2)
    assert not kept.is_trusted
    assert same(found, expected_of(once, 2))


def test_what_changes_later_is_found_by_looking_again(cache: TransformedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformed_samples, "LOOK_AT_EVERY", 16)
    calls = itertools.count()

    def drifting(sample: Any, _: torch.Generator) -> Any:
        return sample[0] + float(next(calls) > LENGTH + SECOND_LOOKS), sample[1]

    kept = kept_of(cache)
    made = transforming(drifting, kept)
    batches_of(made, 2)
    assert not kept.is_trusted
    [last] = batches_of(made, 1)
    assert all(torch.equal(image, label.float()[:, None, None].expand(-1, 2, 2) + 1) for image, label in last)


def test_a_transform_may_write_into_its_sample_and_give_it_back(cache: TransformedCache) -> None:
    def in_place(sample: Any, _: torch.Generator) -> Any:
        return sample[0].add_(1), sample[1]

    assert same(batches_of(transforming(in_place, kept_of(cache)), 3), expected_of(in_place, 3))

    class Held(Numbers):
        """Gives its own memory, which stays as it is."""

        images = torch.zeros(LENGTH, 2, 2)

        def __getitem__(self, index: int) -> Any:
            return self.images[index], index

    kept = TransformedSamples(SampleCache().part_of_store(10**6))
    made = transforming(in_place, kept, source=LocalSamples(Held()))
    for epoch in range(3):
        assert made.batch([4, 5], epoch, made.read([4, 5], in_pieces=False))[0].unique().tolist() == [1]
    assert kept.is_trusted
    assert not Held.images.any()


class Pair(NamedTuple):
    image: torch.Tensor
    number: int


def test_what_cannot_be_written_down_is_not_kept(cache: TransformedCache) -> None:
    transform = Counting(lambda sample, _: (Pair(*sample), sample[1]))
    kept = kept_of(cache)
    found = batches_of(transforming(transform, kept), 2)
    assert not kept.is_trusted
    assert transform.calls == 2 * LENGTH
    assert found[1][0][0].number.tolist() == order_of(1)[:BATCH]


def test_where_there_is_no_more_room_the_rest_is_transformed() -> None:
    kept = TransformedSamples(SampleCache().part_of_store(3000))
    transform = Counting(halved)
    found = batches_of(transforming(transform, kept), 3)
    assert kept.is_trusted
    assert SECOND_LOOKS < transform.calls - LENGTH < 2 * LENGTH + SECOND_LOOKS
    assert same(found, expected_of(halved, 3))


def test_a_sample_that_fails_the_second_time_is_used_as_it_was(cache: TransformedCache) -> None:
    calls = itertools.count()

    def once(sample: Any, _: torch.Generator) -> Any:
        if next(calls) == 1:
            raise ValueError("not twice")
        return halved(sample, _)

    kept = kept_of(cache)
    assert same(batches_of(transforming(once, kept), 1), expected_of(halved, 1))
    assert not kept.is_trusted
    made = transforming(lambda *_: 1 // 0, kept_of(cache, SamplePart.TARGETS), part=SamplePart.TARGETS)
    read = made.read([1], in_pieces=False)
    with pytest.raises(EdgeswarmError, match="transform failed on item 1 on nano-1: ZeroDivisionError"):
        made.batch([1], 0, read)


def test_in_memory_nothing_is_kept_and_on_disk_no_more_than_a_part(tmp_path: Path) -> None:
    assert TransformedCache(SampleCache()).of("job", 0, SamplePart.BOTH) is None
    small = TransformedCache(SampleCache(tmp_path / "samples", limit_bytes=800)).of("job", 0, SamplePart.BOTH)
    assert small is not None
    small.add({0: torch.zeros(100)})
    assert small.find([0]) == {}
