from __future__ import annotations

import pytest
import torch

from edgeswarm_agent.out_of_memory import is_out_of_memory, tells_out_of_memory


def test_memory_that_really_is_not_there_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_what_cuda_and_python_say_is_recognised() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert is_out_of_memory(MemoryError())


def test_other_failures_are_not_taken_for_it() -> None:
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"))


@pytest.mark.parametrize(
    "line",
    [
        "numpy.core._exceptions.MemoryError: Unable to allocate 8.00 EiB",
        "OSError: [Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_a_dead_process_tells_of_it_in_its_log(line: str) -> None:
    assert tells_out_of_memory(f"Traceback (most recent call last):\n{line}\n")
    assert not tells_out_of_memory("Traceback (most recent call last):\nKeyError: 'memory'\n")
