"""Of which rows of a table of words a gradient has anything but zeros, from how many samples: only those rows travel.

input "tokens" of n samples ── reshaped at most ──> embedding(table, tokens)      rows: the different tokens among them
samples     1      2      4    ...   256            mini-batch
rows       90    160    290    ...  7000   extrapolated: words that are new grow fewer by a power of the samples
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgeswarm.model import operators
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.node import Node

from .model_facts import MetRows

# Read from the data set to count words in.
COUNTED_SAMPLES = 256
# A smaller table is not worth reading samples.
_LEAST_TABLE_BYTES = 1 << 20


def tables_of_inputs(graph: LayerGraph) -> dict[str, int]:
    """By trained table that nothing but lookups of one input's numbers reads: which input of the model that is."""
    nodes = {node.name: node for node in graph.nodes}
    inputs = {value.name: index for index, value in enumerate(graph.cuts[0])}
    found: dict[str, set[int | None]] = {}
    for node in graph.nodes:
        for name in node.tensors:
            is_lookup = operators.packet_of(node.op) == "embedding" and node.args[0] == {"tensor": name}
            # Numbers that the model has itself, positions say, are no node's.
            source = _source(node.args[1].get("node", ""), nodes) if is_lookup else ""
            found.setdefault(name, set()).add(inputs.get(source))
    return {
        name: index
        for name, (index, *others) in ((name, tuple(read)) for name, read in found.items())
        if index is not None
        and not others
        and graph.tensors[name].trainable
        and graph.tensors[name].bytes >= _LEAST_TABLE_BYTES
    }


def _source(name: str, nodes: Mapping[str, Node]) -> str:
    """What has the same numbers, in another shape."""
    while (node := nodes.get(name)) is not None and operators.packet_of(node.op) in operators.SHAPE_PACKETS:
        if len(node.reads) != 1:
            break
        name = node.reads[0]
    return name


def count_met_rows(
    graph: LayerGraph, tables: Mapping[str, int], inputs: Mapping[int, npt.NDArray[np.int64]], *, mini_batch: int
) -> dict[str, MetRows]:
    """By table of `tables_of_inputs`, from those inputs of the model, by index, of some samples, a row each.

    Samples beyond those that are given bring new words as the second half of them did.
    """
    return {
        table: _counted(inputs[index], graph.tensors[table].shape[0], mini_batch) for table, index in tables.items()
    }


def _counted(numbers: npt.NDArray[np.int64], rows: int, mini_batch: int) -> MetRows:
    given = min(len(numbers), mini_batch)
    sizes = [size for size in (1 << power for power in range(given.bit_length())) if size < given]
    counts = [(size, len(np.unique(numbers[:size]))) for size in (*sizes, given)]
    if given < mini_batch:
        half = len(np.unique(numbers[: max(1, given // 2)]))
        growth = math.log2(counts[-1][1] / half) if given > 1 else 1.0
        counts.append((mini_batch, min(rows, round(counts[-1][1] * (mini_batch / given) ** growth))))
    return tuple(counts)
