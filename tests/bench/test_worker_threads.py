"""What threads are for, what they used between two looks, and which functions a sampling saw."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from bench.worker_threads import functions_of, kind_of, seconds_by_kind, seconds_of_threads

RUN = '"MainThread";<module> (agent/worker/__main__.py:50);run_round (agent/worker/executor.py'
STACKS = f"""\
thread (0x7F01): {RUN}:93);backward (torch/x.py:1) 60
thread (0x7F01): {RUN}:99);backward (torch/y.py:7) 20
thread (0x7F02): "to-nano-2";_bootstrap (threading.py:966);send (edgeswarm/wire/byte_stream.py:104) 15
thread (0x7F03): "";_serve (grpc/_server.py:1009) 5
"""


@pytest.mark.parametrize(
    ("thread", "kind"),
    [
        ("MainThread", "compute"),
        ("to-nano-2-1234", "sending"),
        ("stream", "receiving"),
        ("all-reduce", "all-reduce"),
        ("Thread-3 (_serve)", "other"),
        ("", "other"),
    ],
)
def test_a_thread_is_known_by_the_beginning_of_its_name(thread: str, kind: str) -> None:
    assert kind_of(thread) == kind


def test_seconds_between_two_looks_are_added_up_by_kind() -> None:
    before = {1: 5.0, 2: 1.0}
    after = {1: 7.0, 2: 1.5, 3: 0.25, 4: 0.125}  # two threads began in between, of which one isn't Python's
    names = {1: "MainThread", 2: "to-a", 3: "to-b"}
    assert seconds_by_kind(before, after, names) == {"compute": 2.0, "sending": 0.75, "other": 0.125}


def test_a_sample_counts_for_the_innermost_function_of_our_own() -> None:
    assert functions_of(STACKS.splitlines(), most=2) == [
        ("compute", "run_round (executor.py)", 0.8),
        ("sending", "send (byte_stream.py)", 0.15),
    ]


def test_a_sample_without_any_of_ours_counts_for_its_last_function() -> None:
    assert ("other", "_serve (_server.py)", 0.05) in functions_of(STACKS.splitlines(), most=9)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_the_kernel_tells_the_seconds_of_each_thread() -> None:
    """A thread that computes has used more behind it than before, and the one that waits for it hardly any."""
    me, seen = threading.get_native_id(), {}

    def compute() -> None:
        other = threading.get_native_id()
        seen["before"] = seconds_of_threads(os.getpid())[other]
        sum(number * number for number in range(300_000))
        seen["after"] = seconds_of_threads(os.getpid())[other]

    waited = seconds_of_threads(os.getpid())[me]
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    waited = seconds_of_threads(os.getpid())[me] - waited
    assert seen["after"] - seen["before"] > waited >= 0.0
