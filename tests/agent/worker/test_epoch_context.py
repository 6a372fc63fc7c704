from __future__ import annotations

import threading
import time

import pytest

from edgeswarm_agent.worker.egress import EgressScheduler
from edgeswarm_agent.worker.epoch_context import EpochContext
from edgeswarm_agent.worker.epoch_state import EpochSwitch
from edgeswarm_agent.worker.errors import HaltedError
from edgeswarm_agent.worker.mailbox import Mailbox
from edgeswarm_agent.worker.timing import Progress, RoundClock


def context(*, slow_down: float) -> EpochContext:
    switch = EpochSwitch()
    return EpochContext(
        epoch=1,
        seed=0,
        switch=switch,
        mailbox=Mailbox(switch, epoch=1),
        egress=EgressScheduler(switch),
        clock=RoundClock(),
        progress=Progress(),
        slow_down=slow_down,
    )


def compute(cpu_seconds: float) -> None:
    end = time.thread_time() + cpu_seconds
    while time.thread_time() < end:
        pass


def test_computing_is_stretched_by_its_cpu_seconds() -> None:
    started = time.monotonic()
    with context(slow_down=4.0).computing():
        compute(0.05)
    assert time.monotonic() - started >= 4 * 0.05


def test_a_halt_ends_the_stretch() -> None:
    shared = context(slow_down=1e6)
    started = time.monotonic()
    threading.Timer(0.1, shared.switch.halt).start()

    def stretch() -> None:
        with shared.computing():
            compute(0.01)

    with pytest.raises(HaltedError):
        stretch()
    assert time.monotonic() - started < 5
