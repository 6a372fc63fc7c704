"""From the user's nn.Module to a LayerGraph, by torch.export. The coordinator alone does this."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from ..errors import EdgeswarmError, ErrorCode
from .assemble import assemble
from .costs import with_costs
from .cutting import Cuts, cut
from .export_errors import explain, refuse_fixed_batch
from .export_watch import Watch, watching
from .fillers import with_fillers
from .layer_graph import LayerGraph
from .lowering import LoweredGraph, lower
from .mutation import settle_mutations
from .needed_parts import compute_needed_parts
from .node import references
from .structure import describe
from .values import BYTES_PER_ELEMENT, TensorSpec

#: torch.export takes a size of 0 or 1 for a fixed one.
_LEAST_SAMPLE_BATCH = 4


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """constants: tensors of the graph that are no parameter and no buffer, by the graph's names."""

    layer_graph: LayerGraph
    constants: dict[str, torch.Tensor]


def export_model(
    model: torch.nn.Module,
    sample_batch_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    costs: Callable[[LayerGraph], LayerGraph] = with_costs,
) -> ExportedModel:
    """Exports a model in the mode that it is in (training or evaluation) and cuts it into layers.

    sample_batch_args, sample_kwargs: what the model is called with for one batch of any size; dimension 0 of every tensor
    is the batch. costs: gives a graph those of its layers. Raises EXPORT_FAILED with the module and the line of the user's code
    as far as they can be found.
    """
    graph, constants = export_and_cut(model, sample_batch_args, sample_kwargs or {})
    return ExportedModel(layer_graph=costs(graph), constants=constants)


def export_and_cut(
    model: torch.nn.Module,
    sample_batch_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any],
    *,
    cut_into_layers: Callable[[LoweredGraph], Cuts] = cut,
) -> tuple[LayerGraph, dict[str, torch.Tensor]]:
    """The graph, whose layers don't know their costs yet, and its constants. Raises as `export_model`."""
    model = _as_on_cpu(model)
    args, kwargs = _tiled(sample_batch_args, _in_signature_order(model, sample_kwargs))
    leaves = pytree.tree_leaves((args, kwargs))
    program = _export(model, args, kwargs, leaves)
    refuse_fixed_batch(program)
    names = _canonical_names(model)
    batch_norms = _batch_norm_modules(model)
    counted = frozenset(f"{path}.num_batches_tracked" if path else "num_batches_tracked" for path in batch_norms)
    with quiet():
        module = program.module(check_guards=False)
    trained = frozenset(names.get(name, name) for name, value in model.named_parameters() if value.requires_grad)
    lowered = lower(module, names, frozenset(names.get(name, name) for name in counted), trained=trained)
    assert len(lowered.inputs) == len(leaves)
    lowered.inputs = [pair for pair, leaf in zip(lowered.inputs, leaves, strict=True) if isinstance(leaf, torch.Tensor)]
    settle_mutations(lowered)
    used_constants = {
        name: _constant(module, name)
        for node in lowered.nodes
        for name in references((node.args, node.kwargs), "tensor")
        if name not in names
    }
    tensors = _tensor_specs(model, names, used_constants)
    compute_needed_parts(lowered, {name: spec.shape for name, spec in tensors.items()})
    graph = assemble(
        lowered,
        tensors=tensors,
        momenta={path: batch_norm.momentum for path, batch_norm in batch_norms.items()},
        input_structure=_input_structure(args, kwargs),
        returned=pytree.tree_unflatten(
            [_Leaf(index) for index in range(len(lowered.outputs))], program.call_spec.out_spec
        ),
        leaf_index=_leaf_index,
        training=model.training,
        torch_version=torch.__version__,
        cut_into_layers=cut_into_layers,
    )
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    samples = {name: leaf for (name, _), leaf in zip(lowered.inputs, given, strict=True)}
    buffers = {names.get(name, name): buffer for name, buffer in model.named_buffers()}
    return with_fillers(graph, samples, {**buffers, **used_constants}), used_constants


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Tensors made inside have shapes and no memory: build a model here to plan for one that this machine can't hold.

    `export_model` takes such a model, with ordinary sample tensors, and gives the same LayerGraph.
    """
    # Meta rather than fake tensors: torch's and others' initialisers know them, and leave out what looks at values.
    with torch.device("meta"):
        yield


def _as_on_cpu(model: torch.nn.Module) -> torch.nn.Module:
    """The model; one that was built without memory as a copy of fake tensors, which take part in operations as on a CPU."""
    if not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return model
    made: dict[int, Any] = {}
    replaced: list[torch.Tensor] = []  # a freed tensor's id would come again

    def fake(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_meta:
            return tensor
        if id(tensor) not in made:
            empty = torch.empty_like(tensor, device="cpu", requires_grad=False)
            replaced.append(tensor)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return made[id(tensor)]

    model = copy.deepcopy(model)
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        for module in model.modules():
            for held in (module._parameters, module._buffers, module.__dict__):
                held.update({name: fake(tensor) for name, tensor in held.items()})
    return model


@dataclasses.dataclass(frozen=True)
class _Leaf:
    index: int


def _leaf_index(value: Any) -> int:
    if isinstance(value, _Leaf):
        return value.index
    raise EdgeswarmError(
        ErrorCode.EXPORT_FAILED,
        f"The model returns an object of the type {type(value).__name__}, which can't be built on a device.",
        "Return tensors in tuples, lists and dicts.",
    )


def _in_signature_order(model: torch.nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    order = list(inspect.signature(model.forward).parameters)
    return {name: kwargs[name] for name in sorted(kwargs, key=lambda name: [*order, name].index(name))}


def _tiled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The sample batch, repeated to at least four rows. Raises EXPORT_FAILED where it has no common number of rows."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    rows = {int(tensor.shape[0]) if tensor.dim() else 0 for tensor in tensors}
    if len(rows) != 1 or 0 in rows:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "none"
        raise EdgeswarmError(
            ErrorCode.EXPORT_FAILED,
            f"The model's inputs must be tensors with the samples in dimension 0; their shapes are: {shapes}.",
            "Let the dataset give one tensor for each input, the same number of rows in each.",
        )
    times = -(-_LEAST_SAMPLE_BATCH // rows.pop())
    if times > 1:
        args, kwargs = pytree.tree_map(
            lambda leaf: torch.cat([leaf] * times) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
        )
    return args, kwargs


def _export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
) -> torch.export.ExportedProgram:
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            shapes[leaf] = {0: torch.export.Dim.DYNAMIC}
    watch: Watch | None = None
    try:
        with quiet(), _plain_momentum(model), _without_caches(model), watching(model) as watch:
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever the user's code and the tracer raise: it becomes a message
        raise explain(model, error, fixed_at=watch.fixed_at if watch is not None else "") from error


class _WithoutThisThread:
    """A stream that drops what this thread writes; what other threads say meanwhile, to the user, passes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch logs and prints what it couldn't trace, whole graphs included; our message says it in a sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(cast(TextIO, _WithoutThisThread(sys.stderr))):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _plain_momentum(model: torch.nn.Module) -> Iterator[None]:
    """A cumulative average (momentum None) reads its counter, which can't be traced; momentum is applied elsewhere anyway."""
    changed = [module for module in _batch_norm_modules(model).values() if module.momentum is None]
    for module in changed:
        module.momentum = 0.1
    try:
        yield
    finally:
        for module in changed:
            module.momentum = None


@contextlib.contextmanager
def _without_caches(model: torch.nn.Module) -> Iterator[None]:
    """A Hugging Face language model returns its keys and values for generating text, unless its configuration says no."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    changed = {id(config): config for config in configs if getattr(config, "use_cache", None) is True}
    for config in changed.values():
        config.use_cache = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        for config in changed.values():
            config.use_cache = True  # type: ignore[union-attr]


def _batch_norm_modules(model: torch.nn.Module) -> dict[str, Any]:
    kind = torch.nn.modules.batchnorm._BatchNorm
    return {path: module for path, module in model.named_modules() if isinstance(module, kind)}


def _canonical_names(model: torch.nn.Module) -> dict[str, str]:
    """For each name of a parameter or buffer the first name of the same tensor."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        names[name] = first.setdefault(id(tensor), name)
    return names


def _tensor_specs(
    model: torch.nn.Module, names: Mapping[str, str], constants: Mapping[str, torch.Tensor]
) -> dict[str, TensorSpec]:
    persistent = set(model.state_dict(keep_vars=True))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    aliases: dict[str, list[str]] = {}
    for name, canonical in names.items():
        aliases.setdefault(canonical, []).append(name)
    specs: dict[str, TensorSpec] = {}
    for canonical, every in aliases.items():
        tensor = parameters.get(canonical, buffers.get(canonical))
        assert tensor is not None
        specs[canonical] = _spec(
            canonical,
            tensor,
            kind="parameter" if canonical in parameters else "buffer",
            aliases=tuple(name for name in every if name != canonical),
            persistent=any(name in persistent for name in every),
        )
    for name, tensor in constants.items():
        specs[name] = _spec(name, tensor, kind="constant", aliases=(), persistent=False)
    return specs


def _spec(name: str, tensor: torch.Tensor, *, kind: str, aliases: tuple[str, ...], persistent: bool) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in BYTES_PER_ELEMENT:
        raise EdgeswarmError(
            ErrorCode.EXPORT_FAILED,
            f"The model's {kind} {name!r} is of the dtype {dtype}, which can't travel between devices.",
            f"Use one of {', '.join(BYTES_PER_ELEMENT)}.",
        )
    return TensorSpec(
        name=name,
        shape=tuple(tensor.shape),
        dtype=dtype,
        kind=kind,
        trainable=kind == "parameter" and tensor.requires_grad,
        aliases=aliases,
        persistent=persistent,
    )


def _constant(module: torch.nn.Module, name: str) -> torch.Tensor:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    assert isinstance(value, torch.Tensor), name
    return value.detach().clone()


def _input_structure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    count = iter(range(1_000_000))

    def leaf(value: Any) -> dict[str, Any]:
        if isinstance(value, torch.Tensor):
            return {"value": next(count)}
        return {"constant": value if isinstance(value, bool | int | float | str) else None}

    return describe((args, kwargs), leaf)
