from __future__ import annotations

import pytest

from edgeswarm_agent.worker.epoch_state import EpochSwitch
from edgeswarm_agent.worker.errors import HaltedError


def test_the_first_error_latches() -> None:
    switch = EpochSwitch()
    switch.check()
    assert switch.fail(ValueError("first"))
    assert not switch.fail(ValueError("second"))
    assert not switch.halt()
    with pytest.raises(ValueError, match="first"):
        switch.check()
    with pytest.raises(ValueError, match="first"):
        switch.sleep(60)


def test_wake_ups_run_once_even_when_registered_late() -> None:
    switch = EpochSwitch()
    woken: list[str] = []
    switch.on_thrown(lambda: woken.append("early"))
    switch.halt()
    switch.halt()
    switch.on_thrown(lambda: woken.append("late"))
    assert woken == ["early", "late"]
    with pytest.raises(HaltedError):
        switch.check()


def test_a_wake_up_that_finds_no_thread_keeps_no_other_one_asleep() -> None:
    switch = EpochSwitch()
    woken: list[str] = []

    def starts_a_thread() -> None:
        raise RuntimeError("can't start new thread")

    switch.on_thrown(starts_a_thread)
    switch.on_thrown(lambda: woken.append("all-reduce"))
    assert switch.halt()
    assert woken == ["all-reduce"]


def test_the_end_that_is_told_is_the_first_error_and_no_halt() -> None:
    broken = EpochSwitch()
    broken.fail(ValueError("the link broke"))
    told = broken.end_with(HaltedError())  # from a feed, which is closed for any reason
    assert isinstance(told, ValueError)
    own = EpochSwitch()
    assert isinstance(own.end_with(TypeError()), TypeError)
    assert own.is_thrown
    halted = EpochSwitch()
    halted.halt()
    assert halted.end_with(ValueError("the link broke, since the others were halted too")) is None
