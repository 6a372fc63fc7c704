"""A stage that computes: rebuilt with fx from its graph data, over tensors under their original names.

Needs torch alone: no torch.export, no user's code. Each layer becomes one generated function, so that a halt can be looked at
between layers:

    inputs -> [layer 3] -> [layer 4] -> [layer 5] -> outputs
             ^ check_halt ^           ^
             reseed where the layer draws random numbers
"""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .batch_norm import BatchStatistics, StatisticsPlaces
from .draws import TURNS, DrawKey, seed_generators
from .dropout import attention, dropout
from .embedding_rows import embed
from .in_place import in_place_forms
from .later_weights import LaterWeights, collecting, leaving_weights, waiting_nodes
from .matrix_products import own_products
from .memory_layout import arranged, resolve_for_any_layout, wants_channels_last
from .node import Node, map_argument
from .operators import SHAPE_PACKETS, packet_of, resolve
from .plain_products import PLAIN_PRODUCTS
from .stage_graph import StageGraph
from .values import TensorSpec

__all__ = ["DrawKey", "StageModule"]

_LAYOUTS = {"strided": torch.strided}
# Operations that are computed otherwise than PyTorch does: to the same bits, but for random numbers, which are others. A stage of
# a fast layout has products of its own, too (matrix_products.py), which round otherwise.
_OWN: dict[str, Callable[..., Any]] = {
    "embedding": embed,
    "dropout": dropout,
    "scaled_dot_product_attention": attention,
}


@dataclasses.dataclass(frozen=True)
class _LayerProgram:
    """One layer's function: run(batch, *values, *tensors) gives the tuple of `makes`.

    reads: names of values. forgets: those that no later layer reads. tensors: names, or (batch norm, 0 or 1) for the
    tensors that take its mean and variance.
    """

    index: int
    run: Callable[..., tuple[Any, ...]]
    reads: tuple[str, ...]
    tensors: tuple[str | tuple[str, int], ...]
    makes: tuple[str, ...]
    forgets: tuple[str, ...]
    is_random: bool


class StageModule:
    """One stage over its tensors.

    tensors: what the graph lists, by original name; a tensor that is on `device` already is used as it is, not copied.
    parameters, buffers, constants: by original name. Frozen parameters stay frozen. fast_layout: images lie in memory as this
    device computes fastest (memory_layout.py), and matrices are multiplied so (matrix_products.py), which rounds otherwise;
    without it as in the whole model. parameters_stay: they lie as they do whatever is fastest, and are shared with whoever
    gave them. waiting_parameters: names of those whose gradients may be left for later (later_weights.py).
    Raises GRAPH_REFUSED for an operation that this torch lacks, ValueError for tensors that don't fit the graph.
    """

    def __init__(
        self,
        stage_graph: StageGraph,
        tensors: Mapping[str, torch.Tensor],
        device: torch.device | str = "cpu",
        *,
        fast_layout: bool = False,
        parameters_stay: bool = False,
    ) -> None:
        self.graph = stage_graph
        self.device = torch.device(device)
        self._is_channels_last = fast_layout and wants_channels_last(stage_graph, self.device)
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        self.constants: dict[str, torch.Tensor] = {}
        for spec in stage_graph.tensors:
            tensor = _checked(spec, tensors).to(self.device)
            if spec.kind == "parameter":
                wants_layout = self._is_channels_last and not parameters_stay
                if wants_layout and (laid := arranged(tensor)) is not tensor:
                    tensor = laid.detach()
                kept = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad == spec.trainable
                self.parameters[spec.name] = (
                    tensor if kept else torch.nn.Parameter(tensor.detach(), requires_grad=spec.trainable)  # type: ignore[assignment]
                )
            else:
                held = self.buffers if spec.kind == "buffer" else self.constants
                held[spec.name] = tensor.detach()
        self._places = StatisticsPlaces(stage_graph.batch_norms, self.buffers)
        self._statistics: BatchStatistics | None = None
        waiting = [
            node
            for node in waiting_nodes(stage_graph.nodes, kept={value.name for value in stage_graph.outputs})
            if any(self.parameters[name].requires_grad for name in node.tensors if name in self.parameters)
        ]
        self.waiting_parameters = frozenset(name for node in waiting for name in node.tensors)
        self._programs = _compile(
            stage_graph,
            self.device,
            own={**_OWN, **(own_products(self.device) if fast_layout else {})},
            resolve_op=resolve_for_any_layout if self._is_channels_last else resolve,
            waiting=frozenset(node.name for node in waiting),
        )
        # What each layer's function takes beside values: a tensor, or the number of one of a pass's places.
        self._held = [
            tuple(self._places.number(*key) if isinstance(key, tuple) else self.tensor(key) for key in program.tensors)
            for program in self._programs
        ]

    def named_parameters_in_order(self) -> list[tuple[str, torch.nn.Parameter]]:
        """(original name, parameter) of all that the stage holds, in the model's order."""
        return list(self.parameters.items())

    def tensor(self, name: str) -> torch.Tensor:
        """The parameter, buffer or constant of this original name."""
        for held in (self.parameters, self.buffers, self.constants):
            if name in held:
                return held[name]
        raise KeyError(name)

    def arranged(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs as they had best lie in memory: before `forward`, and before they become leaves that want a gradient.

        Where the stage before computes channels last and this one doesn't, they come so.
        """
        return [arranged(tensor) if self._is_channels_last else tensor.contiguous() for tensor in inputs]

    def arranged_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Of an output: in a stage that keeps the model's layout, as a gradient lies there. Another one takes any layout."""
        return gradient if self._is_channels_last else gradient.contiguous()

    def forward(
        self,
        batch: int,
        inputs: Sequence[torch.Tensor],
        *,
        draw: DrawKey | None,
        check_halt: Callable[[], None] | None = None,
        later: LaterWeights | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The live set after the stage, from the live set before it, for `batch` samples.

        inputs: in the order of graph.inputs, on the stage's device. draw: None leaves torch's generator as it is.
        check_halt: called before each layer; whatever it raises goes through. later: where the backward shall leave the gradients
        of weights that nobody waits for, instead of computing them.
        """
        walk = self.walk(batch, inputs, draw=draw, check_halt=check_halt, later=later)
        ((_, values),) = collections.deque(walk, maxlen=1)
        return tuple(values[value.name] for value in self.graph.outputs)

    __call__ = forward

    def walk(
        self,
        batch: int,
        inputs: Sequence[torch.Tensor],
        *,
        draw: DrawKey | None,
        check_halt: Callable[[], None] | None = None,
        later: LaterWeights | None = None,
    ) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """`forward` layer by layer: yields (layer just run, the values by name that later layers and the outputs read)."""
        if len(inputs) != len(self.graph.inputs):
            raise ValueError(f"the stage takes {len(self.graph.inputs)} inputs and got {len(inputs)}")
        values: dict[str, Any] = {value.name: tensor for value, tensor in zip(self.graph.inputs, inputs, strict=True)}
        places = self._places.make() if self.graph.batch_norms else ()
        for program, held in zip(self._programs, self._held, strict=True):
            if check_halt is not None:
                check_halt()
            tensors = [places[tensor] if isinstance(tensor, int) else tensor for tensor in held]
            arguments = (batch, *[values[name] for name in program.reads], *tensors)
            if draw is not None and program.is_random:
                with TURNS.first():
                    seed_generators(draw.seed_of_layer(program.index), self.device)
                    made = _run(program, arguments, later)
            else:
                made = _run(program, arguments, later)
            del arguments
            values.update(zip(program.makes, made, strict=True))
            del made
            for name in program.forgets:
                del values[name]
            if program.index == self.graph.end_layer - 1:
                self._statistics = self._places.read(batch, places) if places else None
            yield program.index, values

    def take_batch_statistics(self) -> BatchStatistics | None:
        """What the training batch norms saw in the forward pass just run; None when taken before, or without any."""
        statistics, self._statistics = self._statistics, None
        return statistics


def _run(program: _LayerProgram, arguments: Sequence[Any], later: LaterWeights | None) -> tuple[Any, ...]:
    with collecting(later):
        return program.run(*arguments)


def _checked(spec: TensorSpec, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if spec.name not in tensors:
        raise ValueError(f"the stage's tensor {spec.name!r} is missing")
    tensor = tensors[spec.name]
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tuple(tensor.shape) != spec.shape or dtype != spec.dtype:
        raise ValueError(
            f"the tensor {spec.name!r} is {dtype} {tuple(tensor.shape)}; the graph wants {spec.dtype} {spec.shape}"
        )
    return tensor


def _compile(
    graph: StageGraph,
    device: torch.device,
    *,
    own: Mapping[str, Callable[..., Any]],
    resolve_op: Callable[[str], Callable[..., Any]],
    waiting: frozenset[str],
) -> list[_LayerProgram]:
    """own: by packet, what is computed otherwise than `resolve_op` has it. waiting: nodes whose weights can wait."""
    layers: dict[int, list[Node]] = {index: [] for index in range(graph.first_layer, graph.end_layer)}
    for node in graph.nodes:
        assert node.layer is not None
        layers[node.layer].append(node)
    last_use = {name: index for index, nodes in layers.items() for node in nodes for name in node.reads}
    last_use |= {value.name: graph.end_layer for value in graph.outputs}
    returned = {value.name for value in graph.outputs} if graph.is_last else set()
    for node in reversed(graph.nodes):  # and what these may be views of
        if node.name in returned and packet_of(node.op) in SHAPE_PACKETS:
            returned.update(node.reads)
    scratch = {batch_norm.name for batch_norm in graph.batch_norms}
    alive = {value.name for value in graph.inputs}
    programs = []
    for index, nodes in layers.items():
        program = _compile_layer(
            index,
            nodes,
            last_use,
            scratch,
            returned=frozenset(returned),
            waiting=waiting,
            device=device,
            own=own,
            resolve_op=resolve_op,
        )
        alive.update(program.makes)
        forgets = tuple(sorted(name for name in alive if last_use.get(name, -1) <= index))
        alive.difference_update(forgets)
        programs.append(dataclasses.replace(program, forgets=forgets))
    return programs


def _compile_layer(
    index: int,
    nodes: list[Node],
    last_use: Mapping[str, int],
    scratch: set[str],
    *,
    returned: frozenset[str],
    waiting: frozenset[str],
    device: torch.device,
    own: Mapping[str, Callable[..., Any]],
    resolve_op: Callable[[str], Callable[..., Any]],
) -> _LayerProgram:
    graph = fx.Graph()
    made = {node.name for node in nodes}
    reads = tuple(dict.fromkeys(name for node in nodes for name in node.reads if name not in made))
    batch = graph.placeholder("batch")
    # By number: a model's own names may be any, "batch" too.
    values = {name: graph.placeholder(f"value_{index}") for index, name in enumerate(reads)}
    held: dict[str | tuple[str, int], fx.Node] = {}
    batches: dict[tuple[int, int], fx.Node] = {(1, 0): batch}
    # Placeholders go before the calls: tensors are gathered first.
    for node in nodes:
        for tensor in _tensor_places(node, scratch):
            if tensor not in held:
                held[tensor] = graph.placeholder(f"tensor_{len(held)}")

    def size(multiple: int, extra: int) -> fx.Node:
        if (multiple, extra) not in batches:
            product = batch if multiple == 1 else graph.call_function(operator.mul, (batch, multiple))
            batches[multiple, extra] = product if extra == 0 else graph.call_function(operator.add, (product, extra))
        return batches[multiple, extra]

    def place(kind: str, content: Any) -> Any:
        if kind == "node":
            return values[content]
        if kind == "tensor":
            return held[content]
        if kind == "batch":
            return size(*content)
        if kind == "device":
            return device if content == "stage" else torch.device(content)
        if kind == "float":
            return float(content)
        if kind == "layout":
            return _LAYOUTS[content]
        return getattr(torch, content)  # dtype or memory_format, checked against lists of names

    makes = tuple(node.name for node in nodes if last_use.get(node.name, -1) > index)
    in_place = in_place_forms(nodes, kept=frozenset(makes), returned=returned)
    for node in nodes:
        if node.name not in scratch:
            args = map_argument(node.args, place)
        else:
            # Momentum 1 over zeros leaves exactly this micro-batch's mean and unbiased variance in the scratch.
            before, after = map_argument(node.args[:3], place), map_argument(node.args[7:], place)
            args = [*before, held[node.name, 0], held[node.name, 1], True, 1.0, *after]
        kwargs = {key: map_argument(value, place) for key, value in node.kwargs.items()}
        operation = in_place.get(node.name) or own.get(packet_of(node.op)) or resolve_op(node.op)
        if node.name in waiting:
            # What is another way of computing it already knows of weights that wait.
            is_own = not isinstance(operation, torch._ops.OpOverload)
            leaving = operation if is_own else PLAIN_PRODUCTS[packet_of(node.op)]
            operation = leaving_weights(leaving, otherwise=operation)
        values[node.name] = graph.create_node("call_function", operation, tuple(args), kwargs, name=node.name)
    graph.output(tuple(values[name] for name in makes))
    run = fx.GraphModule(torch.nn.Module(), graph).forward
    return _LayerProgram(
        index=index,
        run=run,
        reads=reads,
        tensors=tuple(held),
        makes=makes,
        forgets=(),
        is_random=any(node.is_random for node in nodes),
    )


def _tensor_places(node: Node, scratch: set[str]) -> list[str | tuple[str, int]]:
    if node.name not in scratch:
        return list(node.tensors)
    replaced = {node.args[3]["tensor"], node.args[4]["tensor"]}
    return [*(name for name in node.tensors if name not in replaced), (node.name, 0), (node.name, 1)]
