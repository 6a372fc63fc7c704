"""Costs that were reckoned once are read the next time, and reckoned anew where anything is odd."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
import torch

from edgeswarm.model.costs import with_costs
from edgeswarm.model.export import export_and_cut
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm_coordinator import known_costs
from edgeswarm_coordinator.known_costs import KnownCosts
from tests.models import DigitsCNN


@functools.cache
def graph_of(channels: int = 4) -> LayerGraph:
    return export_and_cut(DigitsCNN(batch_norm=True, channels=channels), (torch.zeros(4, 1, 8, 8),), {})[0]


@pytest.fixture
def reckoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Layers of each graph whose costs were reckoned."""
    counts: list[int] = []

    def counting(graph: LayerGraph) -> LayerGraph:
        counts.append(len(graph.layers))
        return with_costs(graph)

    monkeypatch.setattr(known_costs, "with_costs", counting)
    return counts


def test_a_graph_is_reckoned_once(tmp_path: Path, reckoned: list[int]) -> None:
    graph = graph_of()
    first = KnownCosts(tmp_path / "costs").of(graph)
    assert first.layers[0].flops_forward > 0
    exported_again = graph_of.__wrapped__()
    assert KnownCosts(tmp_path / "costs").of(exported_again) == first == with_costs(graph)
    assert len(reckoned) == 1
    KnownCosts(tmp_path / "costs").of(graph_of(channels=5))
    assert len(reckoned) == 2


@pytest.mark.parametrize("text", [b"", b"{}", b"[1, 2", b'{"format": "edgeswarm-layer-graph/0"}', b"\xff\xfe"])
def test_what_cant_be_read_is_reckoned_and_written_again(tmp_path: Path, reckoned: list[int], text: bytes) -> None:
    graph = graph_of()
    first = KnownCosts(tmp_path).of(graph)
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    file.write_bytes(text)
    assert KnownCosts(tmp_path).of(graph) == first
    assert len(reckoned) == 2
    assert file.read_text() == whole


def test_nowhere_to_keep_it_is_no_error(tmp_path: Path, reckoned: list[int]) -> None:
    (tmp_path / "costs").write_text("no folder")
    assert KnownCosts(tmp_path / "costs").of(graph_of()).layers[0].flops_forward > 0
    assert len(reckoned) == 1


def test_the_newest_are_kept(tmp_path: Path, reckoned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_costs, "KEPT_GRAPHS", 2)
    known = KnownCosts(tmp_path)
    for channels in (2, 3, 4):
        known.of(graph_of(channels))
        for file in tmp_path.iterdir():
            seconds = file.stat().st_mtime - 10
            os.utime(file, (seconds, seconds))
    assert len(list(tmp_path.iterdir())) == 2
    for channels, done in ((4, 3), (3, 3), (2, 4)):
        known.of(graph_of(channels))
        assert len(reckoned) == done, channels
