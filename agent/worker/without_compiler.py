"""Keeps torch's compiler out of a worker until somebody compiles something.

An optimizer's step tells torch's compiler (torch._dynamo) not to trace it, and for that imports it: sympy, the code
generators, torch.distributed, 800 modules in all. A worker compiles nothing. With torch 2.13 that import costs a second
of CPU, eight on a device with an eighth of a core, and 70 MB that a small device needs for the model.

So a module with the two functions that do nothing outside of compiling stands in its place. Whatever else somebody
wants of it (a loss that calls torch.compile) brings in the real one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, MutableSequence, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

import torch

COMPILER = "torch._dynamo"


class _NothingToCompile(types.ModuleType):
    """What stands in for torch._dynamo."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - only that it is there: it marks a package

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Ends a traced graph; nothing is traced."""

    def disable(self, fn: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
        """Says that a function is not to be traced; as it is called, or as a decorator with arguments."""
        return (lambda function: function) if fn is None else fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(bring_in_compiler(), name)


class _CompilerIsWanted(MetaPathFinder, Loader):
    """Somebody imports a module inside torch._dynamo: brings in the real one, which may have imported it on its way."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{COMPILER}.") or not _is_left_out():
            return None
        bring_in_compiler()
        if fullname in sys.modules:
            return ModuleSpec(fullname, self)
        return importlib.util.find_spec(fullname)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """It has run already."""


def leave_out_compiler() -> None:
    """From now on; changes nothing where the compiler is there already."""
    if COMPILER not in sys.modules:
        stand_in = _NothingToCompile(COMPILER)
        sys.modules[COMPILER] = stand_in
        torch._dynamo = stand_in
        sys.meta_path.insert(0, _CompilerIsWanted())


def bring_in_compiler() -> types.ModuleType:
    """The real module, imported where it was not."""
    if _is_left_out():
        del sys.modules[COMPILER]
        del torch._dynamo
        torch._dynamo = importlib.import_module(COMPILER)
    return sys.modules[COMPILER]


def _is_left_out() -> bool:
    return isinstance(sys.modules.get(COMPILER), _NothingToCompile)
