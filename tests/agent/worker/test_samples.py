"""How much a device asks of the data service at once, and what is told of one that reads; the rest is in test_feed.py."""

from __future__ import annotations

import pytest

from edgeswarm.feed_ahead import FEED_CALL_BYTES
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.fetch import SamplePart
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_agent.worker.samples import LONG_FOR_AN_ITEM_SECONDS, LocalSamples, ServedSamples
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
        source.fetch_seconds = 50.0
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
