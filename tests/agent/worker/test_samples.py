"""What is told of a device that reads its own data set; the rest is in test_feed.py."""

from __future__ import annotations

import threading
import time

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm_agent.worker.samples import LONG_FOR_AN_ITEM_SECONDS, LocalSamples, check_length
from edgeswarm_agent.worker.timing import READING, Doing


def test_it_is_told_what_a_data_set_on_this_device_is_at() -> None:
    class Slow:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> tuple[int, int]:
            seen.append(samples.doing.read())
            return index, index

    seen: list[Doing] = []
    samples = LocalSamples(Slow())
    samples.read([2], SamplePart.BOTH)
    assert [(doing.action, doing.kind) for doing in seen] == [("reading item 2 of the dataset", READING)]
    assert seen[0].longest_seconds == LONG_FOR_AN_ITEM_SECONDS
    assert samples.doing.read().kind == ""


def test_data_sets_that_share_a_file_are_read_one_item_at_a_time() -> None:
    """An evaluation begins while the feed of the training reads ahead, and an epoch while the one before still reads."""

    class OneReader:
        readers = most = 0

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[int, int]:
            self.readers += 1
            self.most = max(self.most, self.readers)
            time.sleep(0.001)
            self.readers -= 1
            return index, index

    shared, reading = OneReader(), threading.Lock()
    sources = [LocalSamples(shared, reading=reading), LocalSamples(shared, reading=reading)]
    threads = [threading.Thread(target=source.read, args=(range(20), SamplePart.BOTH)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a reader is stuck"
    assert shared.most == 1


def test_a_data_set_of_another_length_than_the_coordinators_is_told() -> None:
    check_length(range(4), 4, called="dataset", where="nano-1")
    with pytest.raises(EdgeswarmError, match="The dataset has 5 items on nano-1, and 4 on the coordinator's") as caught:
        check_length(range(5), 4, called="dataset", where="nano-1")
    assert caught.value.code is ErrorCode.DATA_FAILED
