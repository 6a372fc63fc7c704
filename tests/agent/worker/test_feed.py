from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import default_collate

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_samples import collate
from edgeswarm.wire.v1 import data_pb2
from edgeswarm_agent.worker import served_samples
from edgeswarm_agent.worker.errors import HaltedError
from edgeswarm_agent.worker.feed import Batch, FeedRequest, SampleFeed
from edgeswarm_agent.worker.sample_cache import SampleCache
from edgeswarm_agent.worker.samples import LocalSamples, PlainSamples, SampleSource
from edgeswarm_agent.worker.served_samples import ServedSamples
from edgeswarm_agent.worker.transforming import sample_generator

from .sample_service import Cluster, Service

LENGTH = 60


class Numbers:
    """Item i: an image full of i, a dict beside it, and its label. Item 50 can't be read."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if index == 50:
            raise EdgeswarmError(ErrorCode.DATA_FAILED, "Item 50 of the dataset can't be read: bad sector")
        return (torch.full((2, 2), index, dtype=torch.uint8), {"n": index}), index % 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), Numbers())
    yield made
    made.close()


@pytest.fixture
def service(cluster: Cluster) -> Service:
    cluster.service.calls.clear()
    return cluster.service


@pytest.fixture
def served(cluster: Cluster, service: Service) -> ServedSamples:
    return cluster.source()


def job(**fields: Any) -> Job:
    nothing = print
    return Job(model=nothing, dataset=Numbers, loss=nothing, optimizer=nothing, batch_size=8, **fields)  # type: ignore[arg-type]


def requests(rounds: int, order: Sequence[int] = range(48), epoch: int = 0) -> list[FeedRequest]:
    """Rounds of two micro-batches of four samples."""
    wanted = itertools.product(range(rounds), range(2))
    return [
        FeedRequest(round_number, micro_batch, tuple(order[8 * round_number + 4 * micro_batch :][:4]), epoch)
        for round_number, micro_batch in wanted
    ]


def feed(source: SampleSource, wanted: Sequence[FeedRequest], **changes: Any) -> SampleFeed:
    settings: dict[str, Any] = {"job": job(), "seed": 3, "part": SamplePart.BOTH, "ahead": 4} | changes
    return SampleFeed(source=source, requests=iter(wanted), **settings)


def same(batch: Batch, expected: Any, part: SamplePart = SamplePart.BOTH) -> bool:
    (image, extra), labels = expected
    if part is SamplePart.TARGETS:
        return batch.inputs is None and torch.equal(batch.targets, labels)
    inputs_same = (
        isinstance(batch.inputs, tuple)
        and torch.equal(batch.inputs[0], image)
        and batch.inputs[0].dtype == image.dtype
        and torch.equal(batch.inputs[1]["n"], extra["n"])
    )
    if part is SamplePart.INPUTS:
        return inputs_same and batch.targets is None
    return inputs_same and torch.equal(batch.targets, labels)


@pytest.mark.parametrize("part", list(SamplePart))
@pytest.mark.parametrize("kind", ["served", "local"])
def test_every_batch_is_what_a_data_loader_would_make(served: ServedSamples, part: SamplePart, kind: str) -> None:
    order = torch.randperm(48).tolist()
    wanted = requests(6, order)
    made = feed(served if kind == "served" else LocalSamples(Numbers()), wanted, part=part)
    for request in wanted:
        expected = default_collate([Numbers()[index] for index in request.indices])
        assert same(made.get(request.round, request.micro_batch), expected, part)
    made.close()


def test_only_the_wanted_part_travels_and_several_micro_batches_a_call(served: ServedSamples, service: Service) -> None:
    wanted = requests(6)
    made = feed(served, wanted, part=SamplePart.TARGETS)
    for request in wanted:
        made.get(request.round, request.micro_batch)
    made.close()
    assert {part for _, part in service.calls} == {SamplePart.TARGETS}
    assert sum(len(indices) for indices, _ in service.calls) == 48
    assert len(service.calls) < len(wanted)
    assert served.fetched_samples == 48


def test_many_samples_come_in_several_calls(
    served: ServedSamples, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data service answers for so many at a time, and a micro-batch may have more."""
    monkeypatch.setattr(served_samples, "MOST_SAMPLES_A_CALL", 20)
    found = served.read(range(48), SamplePart.TARGETS)
    assert [len(indices) for indices, _ in service.calls] == [1, 20, 20, 7]  # the first says how large one is
    assert found.collate(range(48)).tolist() == [index % 10 for index in range(48)]


def test_where_samples_are_slow_a_call_asks_for_few(served: ServedSamples, service: Service) -> None:
    """A micro-batch of many would take longer than a call may, though nothing is wrong."""
    served.read([0], SamplePart.TARGETS)
    served.fetch_seconds = 2.0  # which one sample took
    served.read(range(1, 8), SamplePart.TARGETS)
    first, second = (len(indices) for indices, _ in service.calls[1:3])
    assert first == 5  # 10 s, by what the first one took
    assert second == 2


def test_a_later_epoch_is_local_as_far_as_the_budget_goes(cluster: Cluster, service: Service, tmp_path: Path) -> None:
    for budget, refetched in ((10**6, 0), (0, 48)):
        cache = SampleCache(tmp_path / "samples", limit_bytes=budget)
        source = cluster.source(cache=cache)
        fetched = []
        for epoch, order in enumerate((list(range(48)), list(range(47, -1, -1)))):
            service.calls.clear()
            wanted = requests(6, order, epoch)
            made = feed(source, wanted)
            for request in wanted:
                expected = default_collate([Numbers()[index] for index in request.indices])
                assert same(made.get(request.round, request.micro_batch), expected)
            made.close()
            fetched.append(source.fetched_bytes)
        assert sum(len(indices) for indices, _ in service.calls) == refetched
        assert (fetched[1] > fetched[0]) == (refetched > 0)


def test_the_evaluation_set_is_asked_for_and_kept_apart(cluster: Cluster, service: Service) -> None:
    cache = SampleCache()
    service.other = [(index, -index) for index in range(9)]
    sets = (data_pb2.SAMPLE_SET_TRAINING, data_pb2.SAMPLE_SET_EVALUATION)
    training, evaluation = (cluster.source(sample_set=number, cache=cache) for number in sets)
    for _ in range(2):
        assert training.read([5], SamplePart.TARGETS).item(5) == 5
        assert evaluation.read([5], SamplePart.TARGETS).item(5) == -5
    assert len(service.calls) == 2


def test_it_goes_no_further_ahead_than_told(served: ServedSamples, service: Service) -> None:
    taken: list[int] = []

    def endless() -> Iterator[FeedRequest]:
        for number in itertools.count():
            taken.append(number)
            yield FeedRequest(number, 0, (number % 48,), 0)

    made = SampleFeed(source=served, job=job(), seed=0, part=SamplePart.BOTH, requests=endless(), ahead=4)
    for number in range(20):
        made.get(number, 0)
        assert len(taken) <= number + 1 + 4 + 1
    made.close()


class Large:
    """Items of 8 KB. What is read at once is written down."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def read(self, indices: Sequence[int], part: SamplePart) -> PlainSamples:
        self.reads.append(len(indices))
        return PlainSamples({index: (torch.full((8000,), index, dtype=torch.uint8), index) for index in indices})

    def samples_a_call(self) -> int:
        return 3 if self.reads else 1

    def cancel(self) -> None:
        """Nothing waits."""


def test_no_more_bytes_wait_than_told_but_one_micro_batch() -> None:
    for ahead_bytes, most in ((1, 1), (70_000, 2), (10**9, 6)):
        taken = 0

        def endless() -> Iterator[FeedRequest]:
            nonlocal taken
            for number in itertools.count():
                taken += 1
                yield FeedRequest(number, 0, (4 * number, 4 * number + 1, 4 * number + 2, 4 * number + 3), 0)

        made = SampleFeed(
            source=Large(),
            job=job(),
            seed=0,
            part=SamplePart.BOTH,
            requests=endless(),
            ahead=6,
            ahead_bytes=ahead_bytes,
        )
        for number in range(12):
            made.get(number, 0)
            assert taken <= number + 1 + most + 1
        made.close()


def test_a_micro_batch_of_large_samples_is_read_piece_by_piece_where_it_is_transformed() -> None:
    source = Large()
    made = feed(
        source,
        [FeedRequest(0, 0, tuple(range(10)), 0)],
        job=job(transform=lambda sample, _: (sample[0][:2], sample[1])),
    )
    batch = made.get(0, 0)
    assert source.reads == [1, 3, 3, 3]
    assert batch.inputs.tolist() == [[index, index] for index in range(10)]
    made.close()


def noise(sample: Any, generator: torch.Generator) -> Any:
    (image, extra), label = sample
    image.add_(100)  # what is kept must not change
    return (image + torch.rand(2, 2, generator=generator), extra), label


@pytest.mark.parametrize("part", list(SamplePart))
def test_a_transform_draws_from_seed_epoch_and_index_alone(served: ServedSamples, part: SamplePart) -> None:
    for epoch in (0, 1):
        wanted = requests(2, list(range(16)), epoch)
        for order in (wanted, wanted[::-1]):
            made = feed(served, order, job=job(transform=noise), part=part)
            for request in order:
                items = [noise(Numbers()[i], sample_generator(3, epoch, i)) for i in request.indices]
                assert same(made.get(request.round, request.micro_batch), default_collate(items), part)
            made.close()


def test_generators_differ_in_each_of_the_three() -> None:
    seeds = {sample_generator(*key).initial_seed() for key in itertools.product(range(3), repeat=3)}
    assert len(seeds) == 27
    assert sample_generator(1, 2, 3).initial_seed() == sample_generator(1, 2, 3).initial_seed()


def test_a_replica_without_samples_gets_an_empty_batch(served: ServedSamples) -> None:
    made = feed(served, [FeedRequest(0, 0, (), 0)])
    assert made.get(0, 0) == Batch()
    made.close()


@pytest.mark.parametrize("kind", ["served", "local"])
def test_an_error_comes_after_what_went_well_and_stays(served: ServedSamples, kind: str) -> None:
    wanted = [FeedRequest(0, 0, (1, 2), 0), FeedRequest(0, 1, (50,), 0)]
    made = feed(served if kind == "served" else LocalSamples(Numbers()), wanted, ahead=1)
    assert made.get(0, 0).targets.tolist() == [1, 2]
    for _ in range(2):
        with pytest.raises(EdgeswarmError, match="Item 50 of the dataset can't be read") as caught:
            made.get(0, 1)
        assert caught.value.code is ErrorCode.DATA_FAILED
    made.close()


def test_it_says_when_a_batch_can_be_taken_without_waiting(served: ServedSamples) -> None:
    """Its error is one of the answers that `get` gives at once."""
    told = threading.Semaphore(0)
    wanted = [FeedRequest(0, 0, (1, 2), 0), FeedRequest(0, 1, (50,), 0)]
    made = feed(served, wanted, ahead=1, changed=told.release)
    assert told.acquire(timeout=10)
    assert made.has(0, 0)
    made.get(0, 0)
    assert told.acquire(timeout=10)
    assert made.has(0, 1)
    with pytest.raises(EdgeswarmError, match="Item 50 of the dataset can't be read"):
        made.get(0, 1)
    made.close()


def fail(sample: Any, generator: torch.Generator) -> Any:
    raise ValueError("wrong size")


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (fail, "transform failed on item 1 on .*: ValueError: wrong size"),
        (lambda sample, _: sample[0][0], "not a pair"),
    ],
)
def test_a_transform_that_fails_is_named(served: ServedSamples, transform: Any, said: str) -> None:
    made = feed(served, [FeedRequest(0, 0, (1, 2), 0)], job=job(transform=transform))
    with pytest.raises(EdgeswarmError, match=said):
        made.get(0, 0)
    made.close()


def test_what_was_never_requested_is_a_mistake(served: ServedSamples) -> None:
    made = feed(served, requests(1))
    with pytest.raises(ValueError, match="round 7, micro-batch 0 isn't among the requests"):
        made.get(7, 0)
    made.close()


def test_closing_wakes_a_waiting_get_and_ends_the_call_under_way(
    served: ServedSamples, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.may_answer.clear()
    made = feed(served, requests(1))
    caught: list[BaseException] = []
    waits, wait_as_before = threading.Event(), made._changed.wait

    def noted(timeout: float | None = None) -> bool:
        waits.set()
        return wait_as_before(timeout)

    monkeypatch.setattr(made._changed, "wait", noted)

    def wait() -> None:
        try:
            made.get(0, 0)
        except BaseException as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert waits.wait(10)
    made.close()
    waiting.join(10)
    service.may_answer.set()
    assert [type(error) for error in caught] == [HaltedError]
    assert not any(thread.name == "sample-feed" for thread in threading.enumerate())
    # The source is still good for the next feed.
    again = feed(served, requests(1))
    assert again.get(0, 0).targets.tolist() == [0, 1, 2, 3]
    again.close()


class Target(NamedTuple):
    """As data sets return them."""

    label: Any
    name: Any


@pytest.mark.parametrize(
    "item",
    [
        lambda index: (torch.full((2,), index), index),
        lambda index: (torch.tensor(index), f"text {index}"),
        lambda index: f"{index}".encode(),
        lambda index: Target(torch.tensor(index), f"text {index}"),
        lambda index: {"a": Target([torch.tensor(index)], {"name": f"{index}"}), "b": None},
        # As many parts as samples: of each part a text for every sample, and nothing at all.
        lambda index: [f"{part} of {index}" for part in range(4)],
        lambda index: [None, None, None, None],
    ],
)
def test_rows_are_the_batch_that_their_items_alone_make(item: Callable[[int], Any]) -> None:
    items = [item(index) for index in range(4)]
    batch = Batch(inputs=collate(items), targets=collate(items[::-1]), indices=(10, 11, 12, 13))
    for first, end in ((0, 4), (1, 3), (3, 4)):
        part = batch.rows(first, end)
        assert repr(part.inputs) == repr(collate(items[first:end]))
        assert repr(part.targets) == repr(collate(items[::-1][first:end]))
        assert part.indices == (10, 11, 12, 13)[first:end]


def test_one_that_is_closed_transforms_nothing_more_of_what_it_has_read() -> None:
    begun, go_on = threading.Event(), threading.Event()
    transformed: list[Any] = []

    def slow(sample: Any, generator: torch.Generator) -> Any:
        transformed.append(sample)
        begun.set()
        go_on.wait(10)
        return sample

    wanted = [FeedRequest(0, index, (index,), 0) for index in range(8)]
    made = feed(LocalSamples(Numbers()), wanted, job=job(transform=slow), ahead=8)
    assert begun.wait(10)
    closing = threading.Thread(target=made.close)
    closing.start()
    with pytest.raises(HaltedError):
        made.get(0, 7)  # so it is closed now
    go_on.set()
    closing.join(10)
    assert len(transformed) == 1


def test_a_data_set_that_exits_is_told_as_one_that_fails() -> None:
    class Exits(Numbers):
        def __getitem__(self, index: int) -> Any:
            sys.exit("no such folder")

    made = feed(LocalSamples(Exits(), where="nano-1"), requests(1))
    with pytest.raises(
        EdgeswarmError, match="Item 0 of the dataset can't be read on nano-1: SystemExit: no such folder"
    ):
        made.get(0, 0)
    made.close()
