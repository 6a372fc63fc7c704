"""What a worker holds, on the processor and on a card, and that a card's work is waited for."""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

from edgeswarm_agent.worker.accelerator import (
    give_back_free_memory,
    held_bytes,
    made_ready,
    peak_bytes,
    reset_peak,
    wait_for,
)
from tests.card_here import needs_card

MIB = 2**20
FLOATS_OF_64_MIB = 16 * MIB


def test_on_the_processor_it_holds_what_is_its_own() -> None:
    """And no file that it reads, which the kernel can drop; torch's library is one of hundreds of MiB."""
    give_back_free_memory("cpu")
    before = held_bytes("cpu")
    held = torch.ones(FLOATS_OF_64_MIB)
    assert abs(held_bytes("cpu") - before - 64 * MIB) < 8 * MIB
    library = max((Path(torch.__file__).parent / "lib").iterdir(), key=lambda path: path.stat().st_size)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 64 * MIB, access=mmap.ACCESS_READ) as pages:
        assert len(bytes(pages[:: mmap.PAGESIZE])) == 64 * MIB // mmap.PAGESIZE
        assert abs(held_bytes("cpu") - before - 64 * MIB) < 8 * MIB
    del held
    give_back_free_memory("cpu")
    assert abs(held_bytes("cpu") - before) < 8 * MIB
    wait_for("cpu")


def test_a_peak_is_no_less_than_what_was_held() -> None:
    reset_peak("cpu")
    held = torch.ones(FLOATS_OF_64_MIB)
    before = held_bytes("cpu")
    del held
    give_back_free_memory("cpu")
    assert peak_bytes("cpu") >= before - 8 * MIB


class TestWithACard:
    pytestmark = needs_card

    def test_what_tensors_take_there_counts(self) -> None:
        assert made_ready() == "cuda"
        before = held_bytes("cuda")
        held = torch.ones(FLOATS_OF_64_MIB, device="cuda")
        assert held_bytes("cuda") - before >= 64 * MIB
        del held
        assert held_bytes("cuda") - before < 32 * MIB

    def test_so_does_their_peak_until_it_is_begun_anew(self) -> None:
        made_ready()
        reset_peak("cuda")
        before = peak_bytes("cuda")
        torch.ones(FLOATS_OF_64_MIB, device="cuda").add_(1)
        assert peak_bytes("cuda") - before >= 64 * MIB
        reset_peak("cuda")
        give_back_free_memory("cuda")
        assert peak_bytes("cuda") - before < 32 * MIB

    def test_its_work_is_done_when_it_was_waited_for(self) -> None:
        made_ready()
        matrix = torch.ones(4096, 4096, device="cuda")
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        for _ in range(20):
            matrix = torch.mm(matrix, matrix).div_(4096)
        done.record()
        wait_for("cuda")
        assert done.query()  # type: ignore[no-untyped-call]
