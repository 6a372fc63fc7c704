"""Runs of layers between two of some cuts, in a row: what is worked out for all of them has no place for pairs that are none.

cuts 0 to 3    0-1  0-2  0-3  1-2  1-3  2-3        those from one cut stand together, to the last cut last
"""

from __future__ import annotations

import numpy as np

from edgeswarm.model_costs import IntArray


class Runs:
    """cuts: how many; one before all layers and one behind them are among them.

    first, end: [runs] the place of the cut at which each begins, and ends. to_end: [cuts - 1] by first cut, the run to the last.
    """

    def __init__(self, cuts: int) -> None:
        first, end = np.triu_indices(cuts, k=1)
        self.cuts = cuts
        self.first: IntArray = first
        self.end: IntArray = end
        self.to_end: IntArray = np.flatnonzero(end == cuts - 1)

    def __len__(self) -> int:
        return len(self.first)

    def of_first_cuts(self, count: int) -> int:
        """How many begin at one of the first so many cuts: these stand first."""
        return int(self.to_end[count - 1]) + 1
