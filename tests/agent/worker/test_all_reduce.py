from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgeswarm_agent.worker.all_reduce import ReplicaGroup

from .lan import Lan, WorkerEnd


@pytest.mark.parametrize(
    ("size", "wire_dtype"),
    [(1, None), (2, None), (3, None), (5, None), (2, "float16"), (2, "bfloat16"), (4, "float16")],
)
def test_every_replica_ends_with_the_same_sum(tmp_path: Path, size: int, wire_dtype: str | None) -> None:
    names = [f"n-{index:06x}" for index in range(size)]
    contents = {name: torch.randn(1001, generator=torch.Generator().manual_seed(i)) for i, name in enumerate(names)}
    wanted = torch.stack([content.double() for content in contents.values()]).sum(0)
    with Lan(tmp_path / "ca", names) as lan:
        lan.connect()
        results: dict[str, torch.Tensor] = {}

        def reduce(end: WorkerEnd) -> None:
            group = ReplicaGroup(
                names, end.name, epoch=1, egress=end.egress, mailbox=end.mailbox, wire_dtype=wire_dtype
            )
            buffer = contents[end.name].clone()
            for bucket in range(2):
                group.all_reduce(buffer, round_number=4, bucket=bucket)
            results[end.name] = buffer

        lan.at_once(reduce)
    first = results[names[0]]
    assert all(torch.equal(first, result) for result in results.values())
    error = {None: 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[wire_dtype]
    assert float((first.double() - wanted * size).norm() / (wanted * size).norm()) < error


def test_a_buffer_smaller_than_the_ring_works(tmp_path: Path) -> None:
    names = [f"n-{index:06x}" for index in range(4)]
    with Lan(tmp_path / "ca", names) as lan:
        lan.connect()
        results: dict[str, torch.Tensor] = {}

        def reduce(end: WorkerEnd) -> None:
            buffer = torch.ones(2, dtype=torch.float64)
            ReplicaGroup(names, end.name, epoch=1, egress=end.egress, mailbox=end.mailbox).all_reduce(
                buffer, round_number=0, bucket=0
            )
            results[end.name] = buffer

        lan.at_once(reduce)
    assert all(result.tolist() == [4.0, 4.0] for result in results.values())
