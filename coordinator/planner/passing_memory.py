"""What a device holds for the micro-batch at hand alone, beside weights and saved activations. Pure.

    layers' working memory  |  frames at both cuts  |  samples fetched ahead (first stage)
    the most of any layer      `frames_held` of each   `inputs_ahead` micro-batches

Beside the paper's Eq 3, which knows none of it. It is a line: fixed + per_sample x samples.
"""

from __future__ import annotations

import numpy as np

from edgeswarm.profile import FloatArray, IntArray, PlanningInstance


def passing_bytes(instance: PlanningInstance, *, first_layer: int, end_layer: int, samples: int) -> int:
    """Bytes of one replica that takes `samples` of a micro-batch through layers [first_layer, end_layer)."""
    fixed, per_sample = passing_lines(instance, np.array([first_layer]), np.array([end_layer]))
    return int(fixed[0] + per_sample[0] * samples)


def passing_lines(
    instance: PlanningInstance, first_layers: IntArray, end_layers: IntArray
) -> tuple[FloatArray, FloatArray]:
    """(fixed, per_sample) [R] in bytes, for runs of layers [first_layers[r], end_layers[r])."""
    model, training = instance.model, instance.training
    fixed = _most(np.array([layer.workspace_bytes for layer in model.layers]), first_layers, end_layers)
    per_sample = _most(np.array([layer.transient_bytes for layer in model.layers]), first_layers, end_layers)
    per_sample += training.frames_held * (model.cut_bytes[first_layers] + model.cut_bytes[end_layers])
    per_sample += np.where(first_layers == 0, training.inputs_ahead * model.input_bytes, 0)
    return fixed, per_sample


def passing_table(instance: PlanningInstance) -> tuple[FloatArray, FloatArray]:
    """(fixed, per_sample) [layer_count + 1, layer_count + 1] in bytes, of every run of layers [i, j); 0 where j <= i."""
    count = instance.model.layer_count
    first, end = np.triu_indices(count + 1, k=1)
    tables = np.zeros((2, count + 1, count + 1))
    tables[0, first, end], tables[1, first, end] = passing_lines(instance, first, end)
    return tables[0], tables[1]


def _most(values: IntArray, first_layers: IntArray, end_layers: IntArray) -> FloatArray:
    """[R]: the largest value of each run."""
    if not values.any():
        return np.zeros(len(first_layers))
    found = np.zeros(len(first_layers))
    for first in np.unique(first_layers):
        rows = first_layers == first
        found[rows] = np.maximum.accumulate(values[first:])[end_layers[rows] - first - 1]
    return found
