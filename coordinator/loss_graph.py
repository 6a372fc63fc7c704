"""What a loss reaches by gradients beside the model's output: weights that it has from elsewhere. Imports torch.

parameters --> model --> output --> loss            a device that computes the loss has the output
     +-----------------------------> +              and no parameters: no gradient of these gets anywhere
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .job_errors import invalid

_NAMED = 3


def nodes_of(output: Any) -> list[Any]:
    """Where the model's graph ends. To be asked before the loss, which may change the output in place."""
    return [leaf.grad_fn for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.grad_fn]


def other_weights(loss: torch.Tensor, nodes: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors for which a backward of the loss has gradients, but for what lies behind these nodes."""
    seen = {*nodes}
    ahead, found = [loss.grad_fn], []
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        ahead += [before for before, _ in node.next_functions]
    return found


def warnings_of_weights(weights: Iterable[torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """parameters: the model's. Raises EdgeswarmError (JOB_INVALID) where the loss has some of these."""
    by_id = {id(parameter): name for name, parameter in parameters.items()}
    own = [weight for weight in weights if id(weight) not in by_id]
    names = [by_id[id(weight)] for weight in weights if id(weight) in by_id]
    if names:
        more = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
        invalid(
            f"The loss computes with parameters of the model itself ({', '.join(sorted(names)[:_NAMED])}{more}): devices compute "
            "it of the output alone, and would train them as if it didn't.",
            "For a penalty on weights use the optimizer's weight_decay; else let forward return what the loss needs.",
        )
    if not own:
        return ()
    return (
        f"The loss has weights of its own ({len(own)} of them with requires_grad): nothing trains them, and no result has them. "
        "Let the model have what is to be trained, and set requires_grad to False for what isn't.",
    )
