"""What each layer costs: FLOPs, the bytes that wait for the backward pass, and those that were made and don't.

Everything runs under fake tensors: shapes without memory. FlopCounterMode counts the backward of a grouped convolution once
for each group, and CPU attention and CPU LSTMs not at all; these are put right here, as is what a CPU LSTM keeps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

from .later_weights import LaterWeights, are_wanted_later
from .layer_graph import Layer, LayerGraph
from .signature import signature
from .stage import StageModule
from .stage_graph import StageGraph
from .values import LiveValue, TensorSpec

#: Costs for one sample are the slope between these batch sizes, so that what doesn't grow with the batch stays out.
_BATCHES = (4, 12)


def with_costs(graph: LayerGraph) -> LayerGraph:
    """The graph with gradients, signatures, FLOPs and saved bytes filled in."""
    with FakeTensorMode():
        stage = graph.stage(0, len(graph.layers))
        whole = _fake_module(stage)
        graph = _with_gradients(graph, whole)
        small, large = (_held_bytes(whole, batch) for batch in _BATCHES)
        flops: dict[str, tuple[int, int]] = {}
        layers: list[Layer] = []
        for layer in graph.layers:
            stage = graph.stage(layer.index, layer.index + 1)
            mark = signature(stage)
            if mark not in flops:
                flops[mark] = _flops_per_sample(stage)
            forward, backward = flops[mark]
            layers.append(
                dataclasses.replace(
                    layer,
                    signature=mark,
                    flops_forward=forward,
                    flops_backward=backward,
                    saved_bytes=_slope(small.saved[layer.index], large.saved[layer.index]),
                    held_input_bytes=_slope(small.inputs[layer.index], large.inputs[layer.index]),
                    let_go_bytes=_slope(small.let_go[layer.index], large.let_go[layer.index]),
                    waiting_bytes=_slope(small.waiting[layer.index], large.waiting[layer.index]),
                )
            )
    return dataclasses.replace(graph, layers=tuple(layers))


def _with_gradients(graph: LayerGraph, whole: StageModule) -> LayerGraph:
    """Marks the live values that really need a gradient when the graph runs."""
    needing: set[str] = set()
    for _, values in whole.walk(_BATCHES[0], _fake_inputs(whole.graph, _BATCHES[0]), draw=None):
        needing.update(name for name, value in values.items() if _needs_gradient(value))
    cuts = tuple(
        tuple(dataclasses.replace(value, requires_grad=value.name in needing) for value in cut) for cut in graph.cuts
    )
    return dataclasses.replace(graph, cuts=cuts)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _fake_module(stage: StageGraph) -> StageModule:
    return StageModule(stage, {spec.name: _fake_tensor(spec.shape, spec) for spec in stage.tensors})


def _fake_inputs(stage: StageGraph, batch: int) -> list[torch.Tensor]:
    return [_fake_tensor(value.with_batch(batch), value).requires_grad_(value.requires_grad) for value in stage.inputs]


def _fake_tensor(shape: tuple[int, ...], described: LiveValue | TensorSpec) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, described.dtype))


@dataclasses.dataclass(frozen=True)
class _Held:
    """By layer, bytes that wait for the backward pass. saved: each storage counted in the first layer that keeps it. inputs: what
    crosses the cut before the layer and is kept by none, or was counted before: a stage that begins there keeps it all the same.
    let_go: what the layer makes and none keeps. waiting: what its products whose weights can wait read and make: gradients of
    weights need this, the result's gradient in the result's place (later_weights.py).
    """

    saved: list[int]
    inputs: list[int]
    let_go: list[int]
    waiting: list[int]


def _held_bytes(whole: StageModule, batch: int) -> _Held:
    held: Mapping[str, torch.Tensor] = {**whole.parameters, **whole.buffers, **whole.constants}
    before = -1
    counted = {tensor.untyped_storage()._cdata: before for tensor in held.values()}
    of_model = frozenset(counted)
    trained = {tensor.untyped_storage()._cdata for tensor in whole.parameters.values() if tensor.requires_grad}
    kept: list[torch.Tensor] = []  # a freed storage's address would come again
    saved = [0] * len(whole.graph.layer_names)
    waiting: list[dict[int, int]] = [{} for _ in saved]
    layer = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in counted:
            counted[storage._cdata] = layer
            kept.append(tensor)
            saved[layer] += storage.nbytes()
        return tensor

    inputs = _fake_inputs(whole.graph, batch)
    crossing: list[list[torch.Tensor]] = [list(inputs)]
    there = {tensor.untyped_storage()._cdata for tensor in (*held.values(), *inputs)}
    made: list[tuple[int, int, int]] = []  # storage, bytes, layer

    def look_at(reads: Sequence[torch.Tensor], makes: Sequence[torch.Tensor]) -> None:
        for tensor in makes:
            storage = tensor.untyped_storage()
            if storage._cdata not in there:
                there.add(storage._cdata)
                kept.append(tensor)
                made.append((storage._cdata, storage.nbytes(), layer))
        if are_wanted_later() and any(tensor.untyped_storage()._cdata in trained for tensor in reads):
            storages = [tensor.untyped_storage() for tensor in (*reads, *makes)]
            waiting[layer].update((each._cdata, each.nbytes()) for each in storages if each._cdata not in of_model)

    watched, workspaces = _Watched(look_at), _LSTMWorkspaces()  # type: ignore[no-untyped-call]
    with saved_tensors_hooks(pack, lambda tensor: tensor), watched, workspaces:
        for finished, values in whole.walk(batch, inputs, draw=None, later=LaterWeights()):
            layer = finished + 1
            crossing.append([value for value in values.values() if isinstance(value, torch.Tensor)])
            kept.extend(crossing[-1])
    after = len(saved)
    let_go = [0] * after
    for storage, size, of_layer in made:
        if storage not in counted and of_layer < after:
            let_go[of_layer] += size
    return _Held(
        saved,
        [
            sum(
                value.numel() * value.element_size()
                for value in values
                if not first <= counted.get(value.untyped_storage()._cdata, before) < after
            )
            for first, values in enumerate(crossing[:-1])
        ],
        let_go,
        [sum(sizes.values()) for sizes in waiting],
    )


def _flops_per_sample(stage: StageGraph) -> tuple[int, int]:
    module = _fake_module(stage)
    small, large = (_flops(module, batch) for batch in _BATCHES)
    return _slope(small[0], large[0]), _slope(small[1], large[1])


def _slope(small: int, large: int) -> int:
    return max(0, -(-(large - small) // (_BATCHES[1] - _BATCHES[0])))


def _flops(module: StageModule, batch: int) -> tuple[int, int]:
    inputs = _fake_inputs(module.graph, batch)
    with FlopCounterMode(display=False, custom_mapping=_CORRECTIONS) as counter:
        outputs = module(batch, inputs, draw=None)
    forward = counter.get_total_flops()
    roots = [output for output in outputs if output.requires_grad]
    leaves = [leaf for leaf in (*inputs, *module.parameters.values()) if leaf.requires_grad]
    if not roots or not leaves:
        return forward, 0
    gradients = [torch.ones_like(root) for root in roots]
    with FlopCounterMode(display=False, custom_mapping=_CORRECTIONS) as counter:
        torch.autograd.grad(roots, leaves, gradients, allow_unused=True)
    return forward, counter.get_total_flops()


def _convolution_backward(
    gradient: torch.Tensor, image: torch.Tensor, weight: torch.Tensor, *args: Any, out_val: Any = None, **kwargs: Any
) -> int:
    """Each of the gradients for the input and for the weight costs what the forward pass costs."""
    transposed, mask = args[4], args[7]
    once = conv_flop_count(list(image.shape), list(weight.shape), list(gradient.shape), transposed=transposed)
    return int(once) * (int(mask[0]) + int(mask[1]))


_convolution_backward._get_raw = True  # type: ignore[attr-defined]


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]


def _lstm(
    layer_input: torch.Tensor, weight: torch.Tensor, hidden_weight: torch.Tensor, *args: Any, **kwargs: Any
) -> int:
    """One layer in one direction: [length, batch, features] times both weights, at each step."""
    steps = layer_input.shape[0] * layer_input.shape[1]
    return int(2 * steps * (weight.numel() + hidden_weight.numel()))


_lstm._get_raw = True  # type: ignore[attr-defined]


def _lstm_backward(*args: Any, **kwargs: Any) -> int:
    return 2 * _lstm(*args[:3])


_lstm_backward._get_raw = True  # type: ignore[attr-defined]


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows of every operation the tensors that it is given, and those that it returns."""

    def __init__(self, look_at: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look_at = look_at

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        reads, makes = (
            [each for each in pytree.tree_leaves(part) if isinstance(each, torch.Tensor)]
            for part in ((args, kwargs), made)
        )
        self._look_at(reads, makes)
        return made


class _LSTMWorkspaces(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives a fake CPU LSTM the workspace that a real one keeps for the backward pass.

    oneDNN keeps about 16 floats for each step, sample and hidden unit (measured: 15.4 to 16.2 for 16 to 512 units).
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if str(func) != "aten.mkldnn_rnn_layer.default":
            return made
        length, batch = args[0].shape[:2]
        return (*made[:3], args[0].new_empty(16 * length * batch * args[2].shape[1]))


def _corrections() -> dict[Any, Callable[..., int]]:
    aten = torch.ops.aten
    found: dict[Any, Callable[..., int]] = {aten.convolution_backward: _convolution_backward}
    for name, count in (
        ("_scaled_dot_product_flash_attention_for_cpu", _attention),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
        ("mkldnn_rnn_layer", _lstm),
        ("mkldnn_rnn_layer_backward", _lstm_backward),
    ):
        if hasattr(aten, name):
            found[getattr(aten, name)] = count
    return found


_CORRECTIONS = _corrections()
