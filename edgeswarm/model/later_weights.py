"""Gradients of weights that can wait: a backward in two parts, of which somebody else waits for the first alone.

    result = product(values, weight)          a convolution, or a product of matrices

    backward    gradient of values  <-- gradient of result, weight      the layers before want it, and the stage before
    weights     gradient of weight  <-- gradient of result, values      nobody does until the step

(Zero Bubble Pipeline Parallelism, Qi et al., 2023.) What the second part needs is collected in a LaterWeights while the first
one runs. Only weights that one product reads, and nothing else, can wait: others' gradients are sums over all who read them. And
only where the gradient of the result, which they wait for with, takes the place of an activation:

    forward     values --> product --> result --> norm, or an activation that keeps it for its gradient
    backward                 gradient of result <--         is written over the result, which nobody needs any more

So a micro-batch holds no more while its weights wait than before its backward. Were such gradients beside what is held, they
would take as much again where an activation writes over the result; where one keeps it they would lie between others that come
and go, and up to a third more would be held (bench/weights_apart.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .node import Node
from .operators import packet_of, words

# Their backward needs what they read, and nobody else does whom it is given alone. Not those that write over it.
_KEEPING = words("batch_norm group_norm native_group_norm layer_norm native_layer_norm gelu silu hardswish mish")
# By packet, where the weight and the bias stand among the arguments.
_WEIGHT_AND_BIAS = {"conv2d": (1, 2), "linear": (1, 2), "addmm": (2, 0)}

# Of a weight and its bias; None where there is none, or where it has to wait.
Gradients = tuple[torch.Tensor | None, torch.Tensor | None]


class LaterWeights:
    """What is left of one micro-batch's backward: filled while that runs, emptied by `take`."""

    def __init__(self) -> None:
        self._left: deque[tuple[tuple[GradientEdge | None, GradientEdge | None], Callable[[], Gradients]]] = deque()

    def __len__(self) -> int:
        return len(self._left)

    def add(self, edges: tuple[GradientEdge | None, GradientEdge | None], compute: Callable[[], Gradients]) -> None:
        """edges: of weight and bias in autograd's graph. compute: gives their gradients, and holds what it needs for that."""
        self._left.append((edges, compute))

    def take(self) -> Generator[tuple[list[GradientEdge], list[torch.Tensor]], None, None]:
        """Computes what is left, layer by layer in the order of the backward: places in the graph, and their gradients.

        What each needed is let go of before the next.
        """
        while self._left:
            wanted, compute = self._left.popleft()
            with torch.no_grad():
                edges, gradients = [], []
                for edge, gradient in zip(wanted, compute(), strict=True):
                    if edge is not None and gradient is not None:
                        edges.append(edge)
                        gradients.append(gradient)
                    del gradient
            del compute
            yield edges, gradients
            del edges, gradients


class _Now:
    """Nothing waits."""

    def will_be_free(self, result: torch.Tensor) -> None:
        pass

    def laid_down(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    def put_off(self, compute: Callable[[], Gradients]) -> Gradients:
        return compute()


class _Later:
    def __init__(self, into: LaterWeights, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._into = into
        self._edges = (_edge(weight), None if bias is None else _edge(bias))
        self._result: torch.Tensor | None = None

    def will_be_free(self, result: torch.Tensor) -> None:
        """For the end of a forward."""
        if self._edges != (None, None):
            self._result = result.detach()  # with its history it would hold itself

    def laid_down(self, gradient: torch.Tensor) -> torch.Tensor:
        """For a backward, before what `put_off` will need of it: the gradient of the result where it is to wait."""
        result, self._result = self._result, None
        if result is None or result.shape != gradient.shape or result.dtype != gradient.dtype:
            return gradient
        return result.copy_(gradient)

    def put_off(self, compute: Callable[[], Gradients]) -> Gradients:
        """Nothing for now, and what `compute` gives later."""
        if self._edges != (None, None):
            self._into.add(self._edges, compute)
        return None, None


_NOW = _Now()


class _Forward(threading.local):
    """offered: where the forward under way collects. taken: the same, while an operation runs whose weights can wait."""

    offered: LaterWeights | None = None
    taken: LaterWeights | None = None


_FORWARD = _Forward()


@contextlib.contextmanager
def collecting(into: LaterWeights | None) -> Iterator[None]:
    """What is computed inside leaves the gradients of its weights for later; None: nothing does."""
    before, _FORWARD.offered = _FORWARD.offered, into
    try:
        yield
    finally:
        _FORWARD.offered = before


def later_of(weight: torch.Tensor, bias: torch.Tensor | None) -> _Now | _Later:
    """For the forward of a product: what its backward shall `put_off` the gradients of weight and bias with."""
    into = _FORWARD.taken
    return _NOW if into is None else _Later(into, weight, bias)


def are_wanted_later() -> bool:
    """Whether the operation under way had better leave the gradients of its weights for later."""
    return _FORWARD.taken is not None


def waiting_nodes(nodes: Sequence[Node], *, kept: Collection[str]) -> list[Node]:
    """Those whose weights can wait, of all nodes of a stage. kept: its outputs."""
    uses, free = Counter(name for node in nodes for name in node.tensors), free_results(nodes, kept=kept)
    return [node for node in nodes if node.name in free and _can_wait(node, uses)]


def _can_wait(node: Node, uses: Counter[str]) -> bool:
    """Whether the operation's weights are tensors that it alone reads, once. uses: by tensor, how many operations read it."""
    places = _WEIGHT_AND_BIAS.get(packet_of(node.op))
    if places is None or any(place < len(node.args) and _is_other(node.args[place]) for place in places):
        return False
    names = [name for place in places if place < len(node.args) and (name := _tensor_name(node.args[place]))]
    return bool(names) and set(names) == set(node.tensors) and all(uses[name] == 1 for name in names)


def free_results(nodes: Sequence[Node], *, kept: Collection[str]) -> frozenset[str]:
    """Names of the products whose result is nobody's once their backward begins: one alone reads it, and needs it until then.

    kept: values that are read elsewhere.
    """
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    return frozenset(
        name
        for name, reading in readers.items()
        if name not in kept
        and len(reading) == 1
        and packet_of(reading[0].op) in _KEEPING
        and reading[0].reads[0] == name
    )


def leaving_weights(operation: Callable[..., Any], *, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that leaves its weights' gradients for later where the forward collects them; `otherwise`, where none does."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if _FORWARD.offered is None:
            return otherwise(*args, **kwargs)
        _FORWARD.taken = _FORWARD.offered
        try:
            return operation(*args, **kwargs)
        finally:
            _FORWARD.taken = None

    return run


def alone(ctx: Any) -> tuple[torch.Tensor, ...]:
    """What was saved, without its history: that would hold what waits, which holds it; and a stage's inputs their gradients."""
    return tuple(tensor.detach() for tensor in ctx.saved_tensors)


def _edge(tensor: torch.Tensor) -> GradientEdge | None:
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def _tensor_name(argument: Any) -> str | None:
    return argument["tensor"] if isinstance(argument, dict) and "tensor" in argument else None


def _is_other(argument: Any) -> bool:
    """Neither a tensor of the model nor nothing."""
    return argument is not None and _tensor_name(argument) is None
