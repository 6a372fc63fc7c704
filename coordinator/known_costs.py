"""What the layers of a graph cost, kept from one command to the next: reckoning it takes as long as the export itself.

    graph without costs --sha256--> <cache>/costs/<sha256>.json: the same graph with them

They follow from the graph alone, and from the code that reckons them, which is in the sum. Imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

import edgeswarm.model
from edgeswarm.errors import EdgeswarmError
from edgeswarm.model.costs import with_costs
from edgeswarm.model.layer_graph import LayerGraph

# About half a megabyte each.
KEPT_GRAPHS = 32


class KnownCosts:
    """folder: of files that may be removed at any time. What can't be read there is reckoned; nothing is raised for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, graph: LayerGraph) -> LayerGraph:
        """The graph with its costs."""
        path = self._folder / f"{_sum_of(graph)}.json"
        with contextlib.suppress(OSError, ValueError, EdgeswarmError):
            known = LayerGraph.from_json(path.read_text())
            os.utime(path)
            return known
        costed = with_costs(graph)
        with contextlib.suppress(OSError):
            self._keep(path, costed)
        return costed

    def _keep(self, path: Path, graph: LayerGraph) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            unfinished.write_text(json.dumps(graph.to_json()))
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        newest_first = sorted(self._folder.glob("*.json"), key=lambda kept: kept.stat().st_mtime, reverse=True)
        for old in newest_first[KEPT_GRAPHS:]:
            old.unlink(missing_ok=True)


def _sum_of(graph: LayerGraph) -> str:
    digest = hashlib.sha256(json.dumps(graph.to_json(), sort_keys=True).encode())
    for source in sorted(Path(edgeswarm.model.__path__[0]).glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()
