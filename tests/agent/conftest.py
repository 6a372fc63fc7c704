from __future__ import annotations

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
    agents: list[Agent] = []

    def begin(mode: str = "answer", **more: int) -> Agent:
        agents.append(Agent(cluster, f"box{len(agents)}", mode, **more))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.close()
