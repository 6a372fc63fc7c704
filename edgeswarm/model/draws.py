"""Where dropout's random numbers come from."""

from __future__ import annotations

import dataclasses
import hashlib


@dataclasses.dataclass(frozen=True)
class DrawKey:
    """What the random numbers of one micro-batch's share are a function of, besides the layer.

    first_sample, end_sample: the interval of the micro-batch's samples that this replica computes.
    """

    seed: int
    round: int
    micro_batch: int
    first_sample: int
    end_sample: int

    def seed_of_layer(self, layer: int) -> int:
        """A 63-bit seed for this layer, counted in the whole model, so that a cut elsewhere draws the same."""
        text = f"{self.seed}/{self.round}/{self.micro_batch}/{layer}/{self.first_sample}/{self.end_sample}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
