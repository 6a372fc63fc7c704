"""From torch.export's graph to ours: one flat list of aten calls with arguments as JSON.

What changes on the way: blocks under no_grad are put in line and their results detached; checks of the tracer go; sizes become
multiples of the batch; tensors filled with one number no longer depend on the tensor they were modelled after; devices become
"the stage's"; dtypes that come from torch's default are written down.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy  # type: ignore[import-untyped,unused-ignore]  # torch's own, behind its symbolic sizes
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from ..errors import EdgeswarmError, ErrorCode
from . import operators
from .node import MEMORY_FORMATS, references
from .squeezed import squeezed_dimensions

BATCH = -1

_DROPPED = (
    "aten._assert_tensor_metadata",
    "aten._assert_scalar",
    "aten._assert_async",
    "aten.sym_constrain_range",
    "aten.sym_constrain_range_for_size",
)
_RENAMED = {
    "aten.lift_fresh_copy.default": "aten.clone.default",
    "aten.lift_fresh.default": "aten.alias.default",
    "aten.detach_.default": "aten.detach.default",
}
_FILLED = {"new_zeros": 0, "zeros_like": 0, "new_ones": 1, "ones_like": 1, "new_full": None, "full_like": None}
_UNFILLED = ("new_empty", "empty_like")
# Their fourth argument divides the gradient of a row by how often it is met.
_EMBEDDINGS = ("embedding", "embedding_bag")
#: Operations whose result's size, or whose Python number, depends on a tensor's values.
_BY_VALUE = ("item", "_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_consecutive")
_BY_TENSOR_VALUES = (
    "Keep sizes and Python numbers independent of a tensor's values: no .item(), no .tolist(), no nonzero; choose with "
    "torch.where, which keeps the shape, instead of x[mask]."
)


@dataclasses.dataclass(frozen=True)
class ValueType:
    """What a value is: dtype None for a number or a tuple of tensors.

    shape: sizes, BATCH where one is exactly the batch, None where it depends on the batch in another way.
    elements: (a, b) where the tensor has a * batch + b elements, else None.
    order: the dimensions from the outermost in memory to the innermost; None where elements overlap or lie apart.
    """

    dtype: str | None
    shape: tuple[int | None, ...] = ()
    elements: tuple[int, int] | None = None
    order: tuple[int, ...] | None = None


@dataclasses.dataclass
class RawNode:
    """A node before layers are known. module: the user's module path. line: the user's code, for messages.

    mutates: values that it changes in place. views: values that its result may share memory with. Both are names of
    nodes and inputs, or "tensor:" and the name of a tensor.
    """

    name: str
    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    value: ValueType
    module: str
    line: str
    mutates: tuple[str, ...]
    views: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(references((self.args, self.kwargs), "node")))


@dataclasses.dataclass
class LoweredGraph:
    """inputs: (name, type) of each placeholder. outputs: JSON of each leaf that the model returns."""

    inputs: list[tuple[str, ValueType]]
    nodes: list[RawNode]
    outputs: list[Any]


def lower(
    module: fx.GraphModule,
    original_names: Mapping[str, str],
    ignored_mutations: frozenset[str],
    *,
    trained: frozenset[str],
) -> LoweredGraph:
    """Lowers an exported module.

    original_names: canonical name for each name of a parameter or buffer. ignored_mutations: buffers whose counting
    up is somebody else's work (num_batches_tracked). trained: parameters that get gradients. Raises EXPORT_FAILED.
    """
    return _Lowering(original_names, ignored_mutations, trained).run(module)


class _Lowering:
    def __init__(
        self, original_names: Mapping[str, str], ignored_mutations: frozenset[str], trained: frozenset[str]
    ) -> None:
        self._original_names = original_names
        self._trained = trained
        self._given_out: set[str] = set()  # what left a block without gradients
        self._ignored_mutations = ignored_mutations
        self._symbols: dict[Any, Any] = {}
        self._nodes: list[RawNode] = []
        self._taken: set[str] = set()

    def run(self, module: fx.GraphModule) -> LoweredGraph:
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._find_batch(placeholders)
        values: dict[fx.Node, Any] = {}
        inputs = []
        for node in placeholders:
            name = self._name(node.name)
            inputs.append((name, self._type(node.meta.get("val"))))
            values[node] = {"node": name}
        outputs = self._block(module, values, detached=False)
        return LoweredGraph(inputs=inputs, nodes=self._nodes, outputs=list(outputs))

    def _find_batch(self, placeholders: Iterable[fx.Node]) -> None:
        batch = sympy.Symbol("batch", positive=True, integer=True)
        for node in placeholders:
            for size in getattr(node.meta.get("val"), "shape", ()):
                if isinstance(size, torch.SymInt):
                    self._symbols |= dict.fromkeys(size.node.expr.free_symbols, batch)

    def _block(self, module: fx.GraphModule, values: dict[fx.Node, Any], *, detached: bool) -> list[Any]:
        for node in module.graph.nodes:
            if node.op == "get_attr":
                target = str(node.target)
                held = _attribute(module, target)
                values[node] = (
                    held if isinstance(held, fx.GraphModule) else {"tensor": self._original_names.get(target, target)}
                )
            elif node.op == "call_function":
                values[node] = self._call(node, values)
            elif node.op == "output":
                leaves = torch.utils._pytree.tree_leaves(node.args[0], is_leaf=lambda leaf: leaf is None)
                outputs = [self._argument(leaf, values) for leaf in leaves]
                return [self._detach(leaf, node) for leaf in outputs] if detached else outputs
        raise AssertionError("an exported graph has an output")

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, target, values)
        op = _name_of(target)
        if op.rpartition(".")[0] in _DROPPED:
            return None
        value = node.meta.get("val")
        size = self._linear(value)
        if size is not None:
            return size
        if op == "operator.getitem" and isinstance(node.args[0], fx.Node):
            held = values[node.args[0]]
            if isinstance(held, list):
                return held[int(node.args[1])]  # type: ignore[arg-type]
        args = [self._argument(arg, values) for arg in node.args]
        kwargs = {
            key: self._argument(arg, values)
            for key, arg in node.kwargs.items()
            if key not in ("pin_memory", "non_blocking") and not (key == "layout" and arg in (None, torch.strided))
        }
        if op == "aten.add_.Tensor" and args[0] in [{"tensor": name} for name in self._ignored_mutations]:
            return args[0]
        if operators.packet_of(op) in _EMBEDDINGS and (kwargs.get("scale_grad_by_freq") or True in args[3:4]):
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The model divides a word's gradient by how often the word is met in a batch{_where(node)}, of which a "
                "device sees a part.",
                "Leave scale_grad_by_freq out.",
            )
        if (packet := operators.packet_of(op)) in ("squeeze", "squeeze_"):
            op, args = f"aten.{packet}.dims", [args[0], squeezed_dimensions(node)]
        op, args, kwargs = self._normalise(op, args, kwargs, value)
        if not operators.is_allowed(op):
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The model calls {op}{_where(node)}, an operation that a stage can't run.",
                _BY_TENSOR_VALUES
                if operators.packet_of(op) in _BY_VALUE
                else "Write that part with the commoner tensor functions of PyTorch.",
            )
        sizes = value.shape if isinstance(value, torch.Tensor) else ()
        if any(isinstance(size, torch.SymInt) and has_free_unbacked_symbols(size) for size in sizes):
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The size of what the model computes depends on the values of a tensor{_where(node)}.",
                _BY_TENSOR_VALUES,
            )
        return self._append(node, op, args, kwargs, value)

    def _append(self, node: fx.Node, op: str, args: list[Any], kwargs: dict[str, Any], value: Any) -> Any:
        mutated, viewed = _aliasing(op, args, kwargs)
        raw = RawNode(
            name=self._name(node.name),
            op=op,
            args=args,
            kwargs=kwargs,
            value=self._type(value),
            module=_module_of(node),
            line=_where(node),
            mutates=_value_names(mutated),
            views=_value_names(viewed),
        )
        self._nodes.append(raw)
        return {"node": raw.name}

    def _higher_order(self, node: fx.Node, target: Any, values: dict[fx.Node, Any]) -> Any:
        name = target.name() if callable(target.name) else str(target)
        no_grad = name == "wrap_with_set_grad_enabled" and node.args[0] is False
        plain = name == "wrap_with_set_grad_enabled" or (name == "wrap_with_autocast" and node.args[2] is False)
        position = next((index for index, arg in enumerate(node.args) if self._is_block(arg, values)), None)
        if not (no_grad or plain) or position is None:
            remedy = "Leave it out of the model's forward."
            if name == "wrap_with_autocast":
                remedy = "Leave torch.autocast out of the model's forward: edgeswarm computes in float32 or float64."
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED, f"The model uses {name}{_where(node)}, which a stage can't run.", remedy
            )
        block = values[node.args[position]]  # type: ignore[index]
        inner: dict[fx.Node, Any] = {}
        placeholders = [inner_node for inner_node in block.graph.nodes if inner_node.op == "placeholder"]
        for placeholder, arg in zip(placeholders, node.args[position + 1 :], strict=True):
            inner[placeholder] = self._argument(arg, values)
        before = len(self._nodes)
        outputs = self._block(block, inner, detached=no_grad)
        if no_grad:
            self._check_mutations(before)
        return outputs

    def _check_mutations(self, before: int) -> None:
        """Of a block without gradients, whose nodes come behind the first `before`: what they change in place.

        Outside of such a block PyTorch goes on with the value's gradients, as if nothing had been done; here what comes behind
        reads what the block gave, and that has none.
        """
        nodes = {node.name: node for node in self._nodes}
        inside = {node.name for node in self._nodes[before:]}
        for node in self._nodes[before:]:
            for changed in node.mutates:
                name = changed
                while name in nodes and nodes[name].views and name not in self._given_out:
                    name = nodes[name].views[0]
                if name in nodes and name not in inside and self._has_gradients(name, nodes):
                    raise EdgeswarmError(
                        ErrorCode.EXPORT_FAILED,
                        f"The model changes a value in place within torch.no_grad{node.line}, and trains through it elsewhere.",
                        "Leave torch.no_grad out there, or write to a copy (`.clone()`).",
                    )

    def _has_gradients(self, name: str, nodes: Mapping[str, RawNode]) -> bool:
        """Whether a value is made of parameters that are trained, and not by a detach alone."""
        if not (nodes[name].value.dtype or "").startswith(("float", "bfloat")):
            return False
        ahead, seen = [name], {name}
        while ahead:
            node = nodes.get(ahead.pop())
            if node is None or node.op == "aten.detach.default":
                continue
            if not self._trained.isdisjoint(references((node.args, node.kwargs), "tensor")):
                return True
            ahead += [read for read in node.reads if read not in seen]
            seen.update(node.reads)
        return False

    def _is_block(self, arg: Any, values: dict[fx.Node, Any]) -> bool:
        return isinstance(arg, fx.Node) and isinstance(values.get(arg), fx.GraphModule)

    def _detach(self, leaf: Any, node: fx.Node) -> Any:
        if not isinstance(leaf, dict) or "node" not in leaf:
            return leaf
        source = next((raw for raw in self._nodes if raw.name == leaf["node"]), None)
        if source is None or source.value.dtype is None:
            return leaf
        name = self._name(f"{source.name}_detached")
        self._given_out.add(name)
        self._nodes.append(
            dataclasses.replace(
                source,
                name=name,
                op="aten.detach.default",
                args=[leaf],
                kwargs={},
                mutates=(),
                views=(source.name,),
            )
        )
        return {"node": name}

    def _normalise(
        self, op: str, args: list[Any], kwargs: dict[str, Any], value: Any
    ) -> tuple[str, list[Any], dict[str, Any]]:
        op = _RENAMED.get(op, op)
        packet = operators.packet_of(op)
        if packet in _FILLED or packet in _UNFILLED:
            sizes = [self._size(size) for size in value.shape]
            if all(size is not None for size in sizes):
                made = {"dtype": _dtype(value.dtype)}
                kwargs = {"dtype": made, "device": {"device": "stage"}}
                if packet in _UNFILLED:
                    return "aten.empty.memory_format", [sizes], kwargs
                number = _FILLED[packet]
                if number is None:
                    number = args[-1]
                return "aten.full.default", [sizes, number], kwargs
        if isinstance(value, torch.Tensor) and op.startswith("aten."):
            schema = operators.resolve(op)._schema if operators.is_allowed(op) else None  # type: ignore[attr-defined]
            if schema is not None and not any("Tensor" in str(argument.type) for argument in schema.arguments):
                named = {argument.name for argument in schema.arguments if argument.kwarg_only}
                if "dtype" in named:
                    kwargs = {**kwargs, "dtype": {"dtype": _dtype(value.dtype)}}
                if "device" in named:
                    kwargs = {**kwargs, "device": {"device": "stage"}}
        return op, args, kwargs

    def _argument(self, arg: Any, values: dict[fx.Node, Any]) -> Any:
        if isinstance(arg, fx.Node):
            return values[arg]
        if isinstance(arg, list | tuple):
            return [self._argument(item, values) for item in arg]
        if isinstance(arg, torch.SymInt):
            size = self._linear(arg)
            if size is not None:
                return size
        if isinstance(arg, bool | int | str) or arg is None:
            return arg
        if isinstance(arg, float):
            return arg if math.isfinite(arg) else {"float": str(arg)}
        if isinstance(arg, torch.dtype):
            return {"dtype": _dtype(arg)}
        if isinstance(arg, torch.device):
            return {"device": "stage"}
        if isinstance(arg, torch.layout) and arg is torch.strided:
            return {"layout": "strided"}
        if isinstance(arg, torch.memory_format):
            name = str(arg).removeprefix("torch.")
            assert name in MEMORY_FORMATS, name
            return {"memory_format": name}
        raise EdgeswarmError(
            ErrorCode.EXPORT_FAILED,
            f"The model's graph has an argument of the type {type(arg).__name__}, which can't travel to a device.",
            "Use numbers, dtypes and dense real tensors in the model's forward.",
        )

    def _linear(self, value: Any) -> Any:
        """A number as JSON where it is fixed or a * batch + b; None for everything else."""
        return self._size(value) if isinstance(value, torch.SymInt) else None

    def _size(self, size: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return int(size)
        pair = self._pair(size.node.expr)
        if pair is None:
            return None
        return pair[1] if pair[0] == 0 else {"batch": list(pair)}

    def _pair(self, expression: Any) -> tuple[int, int] | None:
        expression = sympy.expand(expression.subs(self._symbols))
        symbols = expression.free_symbols
        if len(symbols) > 1 or not expression.is_polynomial(*symbols):
            return None
        if not symbols:
            return (0, int(expression))
        polynomial = sympy.Poly(expression, *symbols)
        if polynomial.degree() > 1 or not all(number.is_Integer for number in polynomial.all_coeffs()):
            return None
        multiple, extra = polynomial.all_coeffs()
        return int(multiple), int(extra)

    def _type(self, value: Any) -> ValueType:
        if not isinstance(value, torch.Tensor):
            return ValueType(dtype=None)
        shape: list[int | None] = []
        for size in value.shape:
            known = self._size(size)
            shape.append(known if isinstance(known, int) else BATCH if known == {"batch": [1, 0]} else None)
        count = value.numel()
        elements = self._pair(count.node.expr) if isinstance(count, torch.SymInt) else (0, int(count))
        return ValueType(dtype=_dtype(value.dtype), shape=tuple(shape), elements=elements, order=_memory_order(value))

    def _name(self, wanted: str) -> str:
        return unused_name(wanted, self._taken)


def unused_name(wanted: str, taken: set[str]) -> str:
    """A name like the wanted one that isn't taken yet; it is from now on."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_again_{number}"
    taken.add(name)
    return name


def _memory_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """Dimensions by falling stride, as they are for the sample batch; None unless the elements fill their memory."""
    sizes = [_of_sample(size) for size in value.shape]
    strides = [_of_sample(stride) for stride in value.stride()]
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim))
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return None
        expected *= sizes[dim]
    return tuple(order)


def _of_sample(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", "") or ""
    return f"{module.removeprefix('_')}.{getattr(target, '__name__', target)}"


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _module_of(node: fx.Node) -> str:
    entries = [entry[0] for entry in node.meta.get("nn_module_stack", {}).values() if isinstance(entry, tuple)]
    path = str(entries[-1]) if entries else ""
    # A module called twice is "conv@1" the second time.
    return "" if path.startswith("_empty") else ".".join(part.split("@")[0] for part in path.split("."))


def _where(node: fx.Node) -> str:
    """ " in features.3 (model.py:12: x = self.conv(x))", as far as the trace knows."""
    path = _module_of(node)
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    frames = [
        (head, code) for head, code in itertools.pairwise(lines) if head.startswith("File ") and "/torch/" not in head
    ]
    text = f" in {path}" if path else ""
    if frames:
        head, code = frames[-1]
        place = head.removeprefix("File ").replace('"', "").replace(", line ", ":").split(", in ")[0]
        text += f" ({place}: {code})"
    return text


def _aliasing(op: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The marked arguments that the operation changes in place, and those that its result may share memory with."""
    if op == "operator.getitem":
        return [], [args[0]] if isinstance(args[0], dict) else []
    if not op.startswith("aten."):
        return [], []
    resolve: Callable[[str], Any] = operators.resolve
    schema = resolve(op)._schema
    packet = operators.packet_of(op)
    may_return = operators.may_return_argument(packet, args)
    mutated: list[dict[str, Any]] = []
    viewed: list[dict[str, Any]] = []
    for index, argument in enumerate(schema.arguments):
        given = args[index] if index < len(args) else kwargs.get(argument.name)
        marked = [item for item in (given if isinstance(given, list) else [given]) if isinstance(item, dict)]
        if argument.alias_info is not None or may_return(index):
            viewed += marked
        if argument.alias_info is not None and argument.alias_info.is_write:
            mutated += marked
    statistics = [given for given in args[3:5] if isinstance(given, dict)] if packet == "batch_norm" and args[5] else []
    if any("node" in given for given in statistics):
        mutated += statistics  # that a forward computes, or cuts out of a buffer; of whole buffers stages take care
    return mutated, viewed


def _value_names(marked: list[dict[str, Any]]) -> tuple[str, ...]:
    names = [f"tensor:{arg['tensor']}" if "tensor" in arg else arg.get("node") for arg in marked]
    return tuple(name for name in names if name is not None)
