"""How often a process waited for memory from a disk, by what the kernel counts."""

from __future__ import annotations

import os
import resource
import subprocess

from edgeswarm.process_memory import major_page_faults


def test_the_count_is_the_kernels_own() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    assert before <= major_page_faults(os.getpid()) <= resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def test_a_process_that_has_ended_has_none() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert major_page_faults(process.pid) == 0
