"""How much a device asks of the data service at once, and what is told of one that reads; the rest is in test_feed.py."""

from __future__ import annotations

import threading
import time

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.feed_ahead import FEED_CALL_BYTES, MOST_SAMPLES_A_CALL
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.fetch import SamplePart
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_agent.worker.samples import LONG_FOR_AN_ITEM_SECONDS, LocalSamples, ServedSamples, check_length
from edgeswarm_agent.worker.timing import READING, Doing

from ..processes import Cluster


@pytest.fixture
def operator(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return Cluster.create(tmp_path_factory.mktemp("cluster")).operator


def test_of_slow_samples_fewer_are_asked_for_at_once(operator: Identity) -> None:
    """So that one call takes no longer than ten seconds, and who waits behind it isn't taken for dead."""
    with secure_channel("localhost:1", identity=operator, node_id="desk-000001") as channel:
        source = ServedSamples(channel, agent_pb2.JobReference(job_id="digits-1"), holder="desk-000001")
        assert source.samples_a_call() == 1, "nothing is known yet"
        source._sample_bytes, source.fetched_samples, source.fetch_seconds = 1024, 100, 0.1
        assert source.samples_a_call() == FEED_CALL_BYTES // 1024
        source._sample_bytes, source.fetch_seconds = 8, 1e-6
        assert source.samples_a_call() == MOST_SAMPLES_A_CALL
        source._sample_bytes, source.fetch_seconds = 1024, 50.0
        assert source.samples_a_call() == 20
        source.fetch_seconds = 5000.0
        assert source.samples_a_call() == 1


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
