"""One cluster of four agents for all end-to-end tests: real processes of this machine, joined with a real token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

DEVICES = ("a", "b", "c", "d")


@pytest.fixture(scope="session")
def cluster() -> Iterator[ThrowawayCluster]:
    with ThrowawayCluster(DEVICES, mdns=False) as cluster:
        yield cluster
