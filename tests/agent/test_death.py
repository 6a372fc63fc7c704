"""Each way to die has its words and its remedy."""

from __future__ import annotations

import signal

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_agent.death import Remains, explain_death, last_words

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 3, in step\nValueError: 3 is not 4\n'
ALLOCATOR = "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory\n"


@pytest.mark.parametrize(
    ("remains", "in_message", "in_remedy"),
    [
        (Remains(7, -signal.SIGKILL, out_of_memory_kills=1), "out of memory (SIGKILL)", "--memory"),
        (Remains(7, -signal.SIGKILL), "somebody killed it", "dmesg"),
        (
            Remains(7, -signal.SIGKILL, log_tail=TRACEBACK, killed_by_agent=True),
            "after: ValueError: 3 is not 4",
            "log below",
        ),
        (Remains(7, -signal.SIGILL), "another processor (SIGILL)", "Install a PyTorch"),
        (Remains(7, -signal.SIGSEGV), "SIGSEGV", "log below"),
        (Remains(7, -signal.SIGABRT, log_tail="std::bad_alloc\n"), "out of memory (SIGABRT)", "--memory"),
        (Remains(7, -signal.SIGBUS), "SIGBUS", "/dev/shm"),
        (Remains(7, -signal.SIGUSR2), "SIGUSR2", "log below"),
        (Remains(7, -63), "63", "log below"),
        (Remains(7, 3), "exit code 3, and it wrote nothing", "log"),
        (Remains(7, 1, log_tail=TRACEBACK), "exit code 1: ValueError: 3 is not 4", "log below"),
        (Remains(7, 1, log_tail=ALLOCATOR), "out of memory", "--memory"),
        (
            Remains(7, 1, log_tail="ModuleNotFoundError: No module named 'torch'\n"),
            "No module named 'torch'",
            "Install",
        ),
        (Remains(7, 0), "exit code 0", "defect"),
    ],
)
def test_the_reason_and_the_remedy(remains: Remains, in_message: str, in_remedy: str) -> None:
    error = explain_death(remains, device="nano-1")
    assert error.code is ErrorCode.WORKER_DIED
    assert in_message in error.message
    assert "nano-1" in error.message
    assert in_remedy in error.remedy
    assert error.detail == remains.log_tail.rstrip()


def test_what_the_agent_ended_since_it_hung_is_no_defect_of_memory() -> None:
    remains = Remains(
        process_id=7, return_code=-6, log_tail="std::bad_alloc", hung="for more than 10 s it was at this: step"
    )
    error = explain_death(remains, device="nano-1")
    assert error.message == (
        "The worker on nano-1 (process 7) died: it hung and the agent ended it: for more than 10 s it was at this: step."
    )


def test_only_the_last_lines_of_a_long_log_are_shown() -> None:
    error = explain_death(Remains(7, 1, log_tail="".join(f"{line}\n" for line in range(500))), device="nano-1")
    assert error.detail.splitlines()[-1] == "499"
    assert len(error.detail.splitlines()) < 100


def test_what_the_worker_itself_said_of_its_end_is_the_reason() -> None:
    said = last_words(EdgeswarmError(ErrorCode.PORT_IN_USE, "Port 7601 is taken.", "Choose another --worker-port."))
    error = explain_death(Remains(7, 1, log_tail=f"loading\n{said}\n"), device="nano-1")
    assert error.message == "The worker on nano-1 (process 7) died: Port 7601 is taken."
    assert error.remedy == "Choose another --worker-port."
