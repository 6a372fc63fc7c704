"""Which dimensions a squeeze takes away, decided once where the model is exported.

    shape as exported    [batch, 512, 1, 1]      x.squeeze() takes away 2 and 3
    of one sample        [1, 512, 1, 1]          and would take away 0, 2 and 3: the batch with them

A device may get one sample of a micro-batch, where the user's own batches never have one.
"""

from __future__ import annotations

from torch import fx


def squeezed_dimensions(node: fx.Node) -> list[int]:
    """node: a call of squeeze, squeeze.dim or squeeze.dims. Of what it asks for those that have one element in any batch."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    shape = source.meta["val"].shape
    asked = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    wanted = range(len(shape)) if asked is None else [asked] if isinstance(asked, int) else asked
    assert isinstance(wanted, (range, list, tuple))
    places = {int(place) % len(shape) for place in wanted} if len(shape) else set()
    return [place for place in sorted(places) if isinstance(shape[place], int) and shape[place] == 1]
