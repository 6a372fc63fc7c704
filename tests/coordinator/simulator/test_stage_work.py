from __future__ import annotations

import pytest

from edgeswarm.gradient_pieces import LAST_BUCKET_BYTES
from edgeswarm_coordinator.simulator.stage_work import replica_works

from .plans import make_instance, make_plan


@pytest.mark.parametrize(
    ("layers", "buckets"),
    [
        pytest.param(10, [(6, 0.6), (4, 1.0)], id="the first four layers apart"),
        pytest.param(7, [(4, 4 / 7), (3, 1.0)], id="in the middle of the first four"),
        pytest.param(70, [(64, 64 / 70), (4, 68 / 70), (2, 1.0)], id="a full one closes before"),
        pytest.param(4, [(4, 1.0)], id="nothing else"),
        pytest.param(
            1000,
            [*((128, 0.128 * place) for place in range(1, 8)), (100, 0.996), (4, 1.0)],
            id="several of the worker's taken together",
        ),
    ],
)
def test_buckets_are_the_workers(layers: int, buckets: list[tuple[int, float]]) -> None:
    """Of layers of a quarter of the last bucket: as tests/agent/worker/test_gradients.py has them."""
    each = LAST_BUCKET_BYTES // 4
    instance = make_instance([(1.0, 2.0)] * layers, devices=2, mini_batch=2, gradient_bytes=each)
    work = replica_works(instance, make_plan((layers, {"a": 1, "b": 1}, 1), micro_batches=1))[0]
    assert sum(bucket.gradient_bytes for bucket in work.buckets) == layers * each
    assert [bucket.gradient_bytes / each for bucket in work.buckets] == [size for size, _ in buckets]
    assert [bucket.ready for bucket in work.buckets] == pytest.approx([ready for _, ready in buckets])
