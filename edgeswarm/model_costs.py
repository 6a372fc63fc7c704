"""What the planner knows of a model: the costs of its layers, whatever the device. Pure data; its JSON is in profile_json.py."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LayerCosts:
    """One layer, whatever the device. Bytes and FLOPs are per sample, those of parameters and gradients excepted.

    trained_bytes: of param_bytes, those with a gradient and the optimizer's state; None for all of them.
    output_bytes: all that crosses the cut after this layer, as it travels. saved_bytes: held from forward to backward.
    answered_bytes: of the gradients that come back over that cut; None for as many as output_bytes.
    held_input_bytes: likewise, beside these, of its inputs where it is the first of a stage.
    waiting_bytes: held behind the backward for gradients of weights that come apart from it; None for all of saved_bytes.
    gradient_bytes: what an all-reduce of its gradients is about, as it travels; None for as many as are trained.
    met_gradient_bytes: (samples, bytes), ascending, of a gradient of which only the rows travel that the samples of a replica
    met; gradient_bytes has those of the mini-batch, whose pair is the last. Empty where all of it travels.
    narrow_output_bytes: output_bytes if float32 travelled in two bytes; None where that is unknown, or done already.
    statistics_bytes: the sums of batch norms that replicas add up once a round.
    flops_*: None where unknown. least_batch: the fewest samples that the layer can take at once.
    transient_bytes: held while the layer computes, beside saved_bytes. workspace_bytes: likewise, whatever the batch.
    joint_workspace_bytes: what the layer adds to that of a stage with several, beyond the largest of them.
    output_frames, answered_frames: in how many frames these two cross the cut to one device: each tensor has its own.
    kernel_bytes: held all the time for the code that was made for the layer's operations, for each batch size that they meet.
    """

    name: str
    param_bytes: int
    output_bytes: int
    saved_bytes: int
    flops_forward: float | None = None
    flops_backward: float | None = None
    least_batch: int = 1
    gradient_bytes: int | None = None
    transient_bytes: int = 0
    workspace_bytes: int = 0
    joint_workspace_bytes: int = 0
    kernel_bytes: int = 0
    narrow_output_bytes: int | None = None
    statistics_bytes: int = 0
    met_gradient_bytes: tuple[tuple[int, int], ...] = ()
    held_input_bytes: int = 0
    trained_bytes: int | None = None
    answered_bytes: int | None = None
    waiting_bytes: int | None = None
    output_frames: int = 1
    answered_frames: int = 1

    def __post_init__(self) -> None:
        pairs = tuple((samples, size) for samples, size in self.met_gradient_bytes)
        object.__setattr__(self, "met_gradient_bytes", pairs)
        if any(below >= above for (below, _), (above, _) in itertools.pairwise(((0, 0), *pairs))):
            raise ValueError(f"layer {self.name}: the samples of met_gradient_bytes don't grow")
        for what in (
            "param_bytes", "output_bytes", "saved_bytes", "gradient_bytes", "transient_bytes", "workspace_bytes",
            "joint_workspace_bytes", "kernel_bytes", "narrow_output_bytes", "statistics_bytes", "held_input_bytes",
            "trained_bytes", "answered_bytes", "waiting_bytes",
        ):  # fmt: skip
            if (getattr(self, what) or 0) < 0:
                raise ValueError(f"layer {self.name}: {what} is below 0")
        if self.trained_bytes is not None and self.trained_bytes > self.param_bytes:
            raise ValueError(
                f"layer {self.name}: trained_bytes is {self.trained_bytes}, of {self.param_bytes} param_bytes"
            )
        if min(self.output_frames, self.answered_frames) < 1:
            raise ValueError(f"layer {self.name}: output_frames or answered_frames is below 1")
        if self.least_batch < 1:
            raise ValueError(f"layer {self.name}: least_batch is {self.least_batch}; it must be at least 1")

    @property
    def all_trained_bytes(self) -> int:
        """Bytes of the parameters that are trained."""
        return self.param_bytes if self.trained_bytes is None else self.trained_bytes


@dataclass(frozen=True)
class TiedCosts:
    """A parameter that several layers use, and which is among the bytes of each of them.

    A stage with several of these layers has it once; stages that share it sum its gradients before they step.
    layers: their places, ascending. gradient_bytes: as they travel, 0 where it isn't trained.
    """

    layers: tuple[int, ...]
    param_bytes: int
    gradient_bytes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if len(self.layers) < 2 or any(a >= b for a, b in itertools.pairwise(self.layers)) or self.layers[0] < 0:
            raise ValueError(f"the layers of a tied parameter are {self.layers}; two at least, ascending")
        if self.param_bytes < 0 or self.gradient_bytes < 0:
            raise ValueError("param_bytes or gradient_bytes of a tied parameter is below 0")


@dataclass(frozen=True)
class ModelCosts:
    """A model as the planner sees it: the bytes of one sample's input, its layers in order, and what some of them share.

    target_bytes: of one sample's target, which the last stage has.
    """

    input_bytes: int
    layers: tuple[LayerCosts, ...]
    tied: tuple[TiedCosts, ...] = ()
    target_bytes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "tied", tuple(self.tied))
        if not self.layers:
            raise ValueError("a model has at least one layer")
        if self.target_bytes < 0:
            raise ValueError("target_bytes is below 0")
        if any(tensor.layers[-1] >= len(self.layers) for tensor in self.tied):
            raise ValueError(f"a tied parameter is of a layer that isn't among the {len(self.layers)}")

    @property
    def layer_count(self) -> int:
        return len(self.layers)

    @cached_property
    def param_bytes_before(self) -> IntArray:
        """[layer_count + 1]: parameter bytes of the layers before each cut."""
        return sums_before([layer.param_bytes for layer in self.layers])

    @cached_property
    def gradient_bytes_before(self) -> IntArray:
        """[layer_count + 1]: bytes of gradients, as they travel, of the layers before each cut; tied ones with each layer."""
        return sums_before(
            [layer.all_trained_bytes if layer.gradient_bytes is None else layer.gradient_bytes for layer in self.layers]
        )

    @cached_property
    def saved_bytes_before(self) -> IntArray:
        """[layer_count + 1]: bytes per sample that the layers before each cut hold for backward."""
        return sums_before([layer.saved_bytes for layer in self.layers])

    @cached_property
    def saved_bytes_from(self) -> IntArray:
        """[layer_count + 1]: what saved_bytes_before of a stage's end is more than, by what the stage holds for backward if it
        begins with each layer: its inputs are held, too.
        """
        held_inputs = [*(layer.held_input_bytes for layer in self.layers), 0]
        return self.saved_bytes_before - np.array(held_inputs, dtype=np.int64)

    @cached_property
    def transient_bytes(self) -> FloatArray:
        """[layer_count]: bytes per sample that each layer takes while it computes."""
        return np.array([layer.transient_bytes for layer in self.layers], dtype=np.float64)

    @cached_property
    def workspace_bytes(self) -> FloatArray:
        """[layer_count]: bytes that each layer takes while it computes, whatever the batch."""
        return np.array([layer.workspace_bytes for layer in self.layers], dtype=np.float64)

    @cached_property
    def joint_workspace_bytes(self) -> FloatArray:
        """[layer_count]: bytes that each layer adds to that of a stage with several."""
        return np.array([layer.joint_workspace_bytes for layer in self.layers], dtype=np.float64)

    @cached_property
    def cut_bytes(self) -> IntArray:
        """[layer_count + 1]: bytes per sample that cross each cut; the first is the input, the last the output."""
        return np.array([self.input_bytes, *(layer.output_bytes for layer in self.layers)], dtype=np.int64)

    @cached_property
    def answered_bytes(self) -> IntArray:
        """[layer_count + 1]: bytes per sample that come back over each cut as gradients; none for the model's own input."""
        of_layers = [
            layer.output_bytes if layer.answered_bytes is None else layer.answered_bytes for layer in self.layers
        ]
        return np.array([0, *of_layers], dtype=np.int64)

    @cached_property
    def trained_bytes_before(self) -> IntArray:
        """[layer_count + 1]: bytes of the parameters that are trained, of the layers before each cut."""
        return sums_before([layer.all_trained_bytes for layer in self.layers])

    @cached_property
    def kernel_bytes_before(self) -> IntArray:
        """[layer_count + 1]: bytes of the kernels that the layers before each cut need for one batch size."""
        return sums_before([layer.kernel_bytes for layer in self.layers])

    def kernel_bytes(self, first_layer: int, end_layer: int) -> int:
        """Of a stage of these layers, for one batch size."""
        return int(self.kernel_bytes_before[end_layer] - self.kernel_bytes_before[first_layer])

    def trained_bytes(self, first_layer: int, end_layer: int) -> int:
        return int(self.trained_bytes_before[end_layer] - self.trained_bytes_before[first_layer])

    def param_bytes(self, first_layer: int, end_layer: int) -> int:
        return int(self.param_bytes_before[end_layer] - self.param_bytes_before[first_layer])

    def gradient_bytes(self, first_layer: int, end_layer: int) -> int:
        """Of a stage of these layers; a tied one once."""
        if self.tied:
            return int(self.gradient_bytes_of_runs(np.array(first_layer), np.array(end_layer)))
        return int(self.gradient_bytes_before[end_layer] - self.gradient_bytes_before[first_layer])

    def gradient_bytes_of_runs(self, first_layers: IntArray, end_layers: IntArray) -> FloatArray:
        """The same of stages of layers [first, end), in the shape of both."""
        whole = self.gradient_bytes_before[end_layers] - self.gradient_bytes_before[first_layers]
        again = self.counted_again(first_layers, end_layers, [tensor.gradient_bytes for tensor in self.tied])
        result: FloatArray = whole - again
        return result

    @cached_property
    def _tied_layers_before(self) -> tuple[IntArray, ...]:
        """[layer_count + 1] for each tied parameter: how many of its layers come before each cut."""
        places = range(self.layer_count)
        return tuple(sums_before([int(place in tensor.layers) for place in places]) for tensor in self.tied)

    def counted_again(self, first_layers: IntArray, end_layers: IntArray, sizes: Sequence[float]) -> FloatArray:
        """Of stages of layers [first, end): what sums over their layers have of tied parameters beyond once. sizes: of each."""
        again = np.zeros(np.broadcast(first_layers, end_layers).shape)
        for before, size in zip(self._tied_layers_before, sizes, strict=True):
            again += size * np.maximum(0, before[end_layers] - before[first_layers] - 1)
        return again

    @cached_property
    def least_batches(self) -> tuple[int, ...]:
        """[layer_count]: the fewest samples that each layer can take at once."""
        return tuple(layer.least_batch for layer in self.layers)

    @cached_property
    def largest_least_batch(self) -> int:
        """The fewest samples that all layers can take at once."""
        return max(self.least_batches)

    def statistics_bytes(self, first_layer: int, end_layer: int) -> int:
        return sum(layer.statistics_bytes for layer in self.layers[first_layer:end_layer])

    def saved_bytes(self, first_layer: int, end_layer: int) -> int:
        """Per sample, of a stage of these layers: its inputs are among it."""
        return int(self.saved_bytes_before[end_layer] - self.saved_bytes_from[first_layer])

    def waiting_bytes(self, first_layer: int, end_layer: int) -> int:
        """Per sample, what a stage of these layers holds of a micro-batch of which gradients of weights alone are left."""
        saved, layers = self.saved_bytes(first_layer, end_layer), self.layers[first_layer:end_layer]
        known = [layer.waiting_bytes for layer in layers if layer.waiting_bytes is not None]
        # Two products of different layers may read the same.
        return min(saved, sum(known)) if len(known) == len(layers) else saved

    def least_batch(self, first_layer: int, end_layer: int) -> int:
        return max(self.least_batches[first_layer:end_layer])


def sums_before(values: Sequence[int]) -> IntArray:
    """[len(values) + 1]: of the values before each place."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.array(values, dtype=np.int64))])
