"""What a trace doesn't tell by itself: looked for while it runs.

A custom gradient and hooks on gradients would be lost without a word, random numbers of Python would be drawn once and for
all, and where a forward fixes the batch size the tracer's own error knows no line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import CheckpointFunction

from ..errors import EdgeswarmError, ErrorCode
from .draws import states_of_generators

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep


class Watch:
    """What was seen. fixed_at: where the batch size became a number first; empty for nowhere."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.fixed_at = ""

    def place(self) -> str:
        """The user's line that is running now, with its module; empty outside of the model's forward."""
        frames = reversed([(frame, line) for frame, line in traceback.walk_stack(sys._getframe(1))])
        return place_of(self._model, frames, only_in_model=True)


def place_of(model: torch.nn.Module, frames: Iterable[tuple[FrameType, int]], *, only_in_model: bool = False) -> str:
    """The innermost line outside torch, with the path of its module: "features.3 (model.py:12: x = ..)".

    frames: outermost first. only_in_model: lines before the first of the model's modules don't count.
    """
    paths = {id(module): path or type(module).__name__ for path, module in model.named_modules()}
    place = owner = ""
    for frame, line in frames:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_varnames else None
        owner = paths.get(id(first), owner)
        if not code.co_filename.startswith((_TORCH, _HERE, "<")) and (owner or not only_in_model):
            summary = traceback.FrameSummary(code.co_filename, line, code.co_name)
            place = f"{owner or 'the model'} ({summary.filename}:{line}: {(summary.line or '').strip()})"
    return place


@contextlib.contextmanager
def watching(model: torch.nn.Module) -> Iterator[Watch]:
    """Around an export. Raises EXPORT_FAILED where the model has a gradient or random numbers that a graph can't have."""
    if model.training:
        _refuse_backward_hooks(model)
    watch = Watch(model)
    drawn_before = states_of_generators()
    with contextlib.ExitStack() as patches:
        if model.training:
            patches.enter_context(_refusing_custom_gradients(watch))
            patches.enter_context(_refusing_tensor_hooks(watch))
        patches.enter_context(_noting_fixed_sizes(watch))
        yield watch
    if states_of_generators() != drawn_before:
        raise EdgeswarmError(
            ErrorCode.EXPORT_FAILED,
            "The model's forward draws random numbers from Python or numpy: in a graph they would be the same for ever.",
            "Draw them with torch (torch.rand, nn.Dropout), and decide by them with torch.where.",
        )


def _refuse_backward_hooks(model: torch.nn.Module) -> None:
    for path, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise _hooked(f"its module {path}" if path else "the model")
    for name, parameter in model.named_parameters():
        if getattr(parameter, "_backward_hooks", None) or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise _hooked(f"its parameter {name}")


@contextlib.contextmanager
def _refusing_custom_gradients(watch: Watch) -> Iterator[None]:
    original = torch.autograd.Function.__dict__["apply"]

    def apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        if not function.__module__.startswith("torch."):
            place = watch.place()
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The model uses {function.__name__}, an autograd.Function{f', in {place}' if place else ''}: "
                "a stage takes gradients of PyTorch's operations alone, and its backward would not be called.",
                "Write it with torch operations that have the gradient you want: x + (f(x) - x).detach() has the value of "
                "f(x) and the gradient of x.",
            )
        if function is CheckpointFunction:
            place = watch.place()
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The model uses checkpoint() with use_reentrant=True{f', in {place}' if place else ''}: it runs without "
                "gradients at first, which a graph would keep.",
                "Give it use_reentrant=False, or leave it out: micro-batches hold few activations.",
            )
        return original.__get__(None, function)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _refusing_tensor_hooks(watch: Watch) -> Iterator[None]:
    original = torch.Tensor.register_hook

    def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if not caller.startswith(_TORCH):
            raise _hooked(watch.place() or "the model")
        return original(tensor, hook)  # type: ignore[no-untyped-call]

    torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.register_hook = original  # type: ignore[method-assign]


def _hooked(place: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.EXPORT_FAILED,
        f"The model has a hook on gradients, in {place}: a stage would not call it.",
        "Remove the hook; for clipping use clip_gradient_norm, and write what else it does into the loss or the forward.",
    )


@contextlib.contextmanager
def _noting_fixed_sizes(watch: Watch) -> Iterator[None]:
    """Where torch has the method by which a symbolic size becomes a number: the place of the first time."""
    original = getattr(ShapeEnv, "_set_replacement", None)
    if original is None:
        yield
        return

    def set_replacement(shape_env: Any, symbol: Any, replacement: Any, *args: Any, **kwargs: Any) -> Any:
        if not watch.fixed_at and getattr(replacement, "is_number", False):
            watch.fixed_at = watch.place()
        return original(shape_env, symbol, replacement, *args, **kwargs)

    ShapeEnv._set_replacement = set_replacement  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ShapeEnv._set_replacement = original  # type: ignore[method-assign]
