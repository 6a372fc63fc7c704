from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgeswarm.chunk_owners import LEAST_CHUNK_BYTES
from edgeswarm_agent.worker.all_reduce import ReplicaGroup

from .lan import Lan, WorkerEnd


@pytest.mark.parametrize(
    ("size", "owners", "wire_dtype"),
    [
        (1, [], None),
        (2, [], None),
        (3, [], None),
        (5, [], None),
        (5, [2], None),
        (4, [3, 1], None),
        (2, [], "float16"),
        (2, [], "bfloat16"),
        (4, [], "float16"),
        (4, [2, 0], "bfloat16"),
    ],
)
def test_every_replica_ends_with_the_same_sum(
    tmp_path: Path, size: int, owners: list[int], wire_dtype: str | None
) -> None:
    """Of a buffer of three chunks and a bit: five owners are too many for it."""
    names = [f"n-{index:06x}" for index in range(size)]
    numbers = 3 * LEAST_CHUNK_BYTES // 4 + 1
    contents = {name: torch.randn(numbers, generator=torch.Generator().manual_seed(i)) for i, name in enumerate(names)}
    wanted = torch.stack([content.double() for content in contents.values()]).sum(0)
    with Lan(tmp_path / "ca", names) as lan:
        lan.connect()
        results: dict[str, torch.Tensor] = {}

        def reduce(end: WorkerEnd) -> None:
            group = ReplicaGroup(
                names,
                end.name,
                epoch=1,
                egress=end.egress,
                mailbox=end.mailbox,
                owners=[names[owner] for owner in owners],
                wire_dtype=wire_dtype,
            )
            buffer = contents[end.name].clone()
            group.reserve(buffer, at_once=1)
            in_turn = group.owners_in_turn()
            for bucket in range(2):
                chunk_owners = in_turn.of_next(buffer.nbytes)
                group.all_reduce(buffer, round_number=4, bucket=bucket, owners=chunk_owners)
            results[end.name] = buffer

        lan.at_once(reduce)
    first = results[names[0]]
    assert all(torch.equal(first, result) for result in results.values())
    error = {None: 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[wire_dtype]
    assert float((first.double() - wanted * size).norm() / (wanted * size).norm()) < error


def test_a_buffer_smaller_than_the_group_works(tmp_path: Path) -> None:
    names = [f"n-{index:06x}" for index in range(4)]
    with Lan(tmp_path / "ca", names) as lan:
        lan.connect()
        results: dict[str, torch.Tensor] = {}

        def reduce(end: WorkerEnd) -> None:
            buffer = torch.ones(2, dtype=torch.float64)
            ReplicaGroup(names, end.name, epoch=1, egress=end.egress, mailbox=end.mailbox).all_reduce(
                buffer, round_number=0, bucket=0, owners=names[:1]
            )
            results[end.name] = buffer

        lan.at_once(reduce)
    assert all(result.tolist() == [4.0, 4.0] for result in results.values())


@pytest.mark.parametrize("size", [2, 3])
def test_of_a_table_of_words_only_the_rows_that_were_met_travel(tmp_path: Path, size: int) -> None:
    names = [f"n-{index:06x}" for index in range(size)]
    rows, width = 4000, 256
    contents = {name: torch.zeros(rows, width) for name in names}
    for index, content in enumerate(contents.values()):
        content[[7, 100 * index + 1, rows - 1]] = torch.randn(3, width)
    with Lan(tmp_path / "ca", names) as lan:
        lan.connect()

        def reduce(end: WorkerEnd) -> None:
            group = ReplicaGroup(names, end.name, epoch=1, egress=end.egress, mailbox=end.mailbox)
            group.all_reduce(contents[end.name].view(-1), round_number=0, bucket=0, owners=names)

        before = torch.stack(list(contents.values())).sum(0)
        lan.at_once(reduce)
        sent = [end.egress.sent_bytes for end in lan.ends.values()]
        left_out = [end.egress.left_out_bytes for end in lan.ends.values()]
    # In another order; where they nearly cancel, what is left of a sum depends on it.
    assert all(torch.allclose(content, before, atol=1e-6) for content in contents.values())
    whole = rows * width * 4
    assert max(sent) < whole / 100
    assert sum(sent) + sum(left_out) == pytest.approx(2 * (size - 1) * whole, rel=1e-3)
