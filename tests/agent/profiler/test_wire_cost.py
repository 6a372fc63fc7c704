"""What frames and optimizers cost a worker, measured on itself; nothing of it is left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from pathlib import Path

import pytest

from edgeswarm_agent.profiler.update_cost import OPTIMIZERS, measure_updates
from edgeswarm_agent.profiler.wire_cost import measure_wire
from edgeswarm_agent.worker.epoch_state import EpochSwitch
from edgeswarm_agent.worker.errors import HaltedError
from tests.agent.worker.lan import Lan


def test_a_worker_talks_to_itself_and_then_to_others_as_before(tmp_path: Path) -> None:
    with Lan(tmp_path, ("a-000001", "b-000002"), opened=False) as lan:
        end = lan.ends["a-000001"]
        switch = EpochSwitch()
        cost = measure_wire(end.identity, end.server, switch=switch)
        assert cost.frame_seconds > 0
        assert cost.byte_seconds >= 0
        assert switch.is_thrown, "its streams are over"
        for each, other in (("a-000001", "b-000002"), ("b-000002", "a-000001")):
            lan.ends[each].open_epoch([other])
        lan.connect()


def test_a_neighbour_that_is_ready_first_waits_for_the_first_epoch(tmp_path: Path) -> None:
    """What was measured is no epoch of another job that would be over."""
    with Lan(tmp_path, ("a-000001", "b-000002"), opened=False) as lan, ThreadPoolExecutor(1) as pool:
        slow = lan.ends["a-000001"]
        measure_wire(slow.identity, slow.server, switch=EpochSwitch())
        lan.ends["b-000002"].open_epoch(["a-000001"])
        connecting = pool.submit(lan.connect)
        with pytest.raises(StillRunning):
            connecting.result(0.5)
        slow.open_epoch(["b-000002"])
        connecting.result(10.0)


def test_a_halt_ends_it(tmp_path: Path) -> None:
    with Lan(tmp_path, ("a-000001",), opened=False) as lan:
        switch = EpochSwitch()
        switch.halt()
        with pytest.raises(HaltedError):
            measure_wire(lan.ends["a-000001"].identity, lan.ends["a-000001"].server, switch=switch)


def test_every_kind_of_optimizer_is_measured() -> None:
    costs = measure_updates("cpu")
    assert [cost.optimizer for cost in costs] == list(OPTIMIZERS)
    assert all(cost.tensor_seconds > 0 and cost.byte_seconds >= 0 for cost in costs)
