from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeswarm_agent import device, supervisor

from .called_agent import Agent
from .processes import Cluster


@pytest.fixture(autouse=True)
def impatient_agents() -> Iterator[None]:
    """Agents of this process wait less for a worker that does not listen, and between two heartbeats."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "TERMINATE_SECONDS", 0.25)
        patch.setattr(device, "HEARTBEAT_SECONDS", 0.05)
        yield


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster.create(tmp_path)


@pytest.fixture
def start_agent(cluster: Cluster) -> Iterator[Callable[..., Agent]]:
    numbers = itertools.count()
    with contextlib.ExitStack() as started:

        def begin(mode: str = "answer", **more: int) -> Agent:
            agent = Agent(cluster, f"box{next(numbers)}", mode, **more)
            started.callback(agent.close)
            return agent

        yield begin
