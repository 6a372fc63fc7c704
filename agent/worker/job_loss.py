"""The job's loss and metrics, called on a device: where labels are out of range, the item is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgeswarm.labels import label_error


def called(
    function: Callable[[Any, Any], Any],
    output: Any,
    targets: Any,
    *,
    indices: Sequence[int],
    device: str,
    dataset: str = "dataset",
) -> Any:
    """What a loss or a metric returns. indices: of the batch's items in the data set, which is called `dataset` where
    a person reads it.

    Raises what the function raises, but EdgeswarmError (DATA_FAILED) for a label that the model has no output for.
    """
    try:
        return function(output, targets)
    except Exception as error:  # the user's code may raise anything
        labels = label_error(error, output, targets, indices=indices, where=device, dataset=dataset)
        if labels is not None:
            raise labels from error
        raise
