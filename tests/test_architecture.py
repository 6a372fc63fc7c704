"""The rules of the house that a machine can check: who may import what, and what nobody may use.

Every rule is a function of sources, so that the tests at the end can show each of them a source that breaks it.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

# The same library under two names; not an import statement, since a type checker has only one of them at hand.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).parents[1]
# folder -> the name it is imported by
PACKAGES = {"edgeswarm": "edgeswarm", "agent": "edgeswarm_agent", "coordinator": "edgeswarm_coordinator"}
GENERATED = "edgeswarm/wire/v1/*"
LONGEST_FILE_LINES = 500

# What each package must never import.
FORBIDDEN_PACKAGES = {
    "edgeswarm": ("edgeswarm_agent", "edgeswarm_coordinator"),
    "edgeswarm_agent": ("edgeswarm_coordinator",),
    "edgeswarm_coordinator": ("edgeswarm_agent",),
}
# Inside `edgeswarm` only these may name torch at all; anybody may for types, under TYPE_CHECKING.
TORCH_INSIDE_EDGESWARM = (
    "edgeswarm.item_copies",
    "edgeswarm.model.*",
    "edgeswarm.optimizer_file",
    "edgeswarm.snapshot",
    "edgeswarm.wire.tensor*",
)
# Importing anything else must not load torch, however many imports away; nor must any `__init__`.
MAY_LOAD_TORCH = (
    *TORCH_INSIDE_EDGESWARM,
    "edgeswarm_agent.worker.*",
    "edgeswarm_agent.profiler.*",
    "edgeswarm_coordinator.checkpoint",
    "edgeswarm_coordinator.demo.digits_job",
    "edgeswarm_coordinator.evaluation_checks",
    "edgeswarm_coordinator.gather",
    "edgeswarm_coordinator.initial_weights",
    "edgeswarm_coordinator.job_checks",
    "edgeswarm_coordinator.known_costs",
    "edgeswarm_coordinator.layer_files",
    "edgeswarm_coordinator.loss_graph",
    "edgeswarm_coordinator.loss_memory",
    "edgeswarm_coordinator.model_checks",
    "edgeswarm_coordinator.optimizer_checks",
    "edgeswarm_coordinator.optimizer_state",
    "edgeswarm_coordinator.preparation",
    "edgeswarm_coordinator.row_checks",
    "edgeswarm_coordinator.sample_items",
    "edgeswarm_coordinator.sample_server",
)
# Pure data, though its neighbours are not: the planner and the deployment read it.
WITHOUT_TORCH_AMONG_THESE = ("edgeswarm.model.layer_graph", "edgeswarm.model.stage_graph")
# Numbers in, decisions out.
WITHOUT_INPUT_OR_OUTPUT = (
    "edgeswarm.plan",
    "edgeswarm.json_fields",
    "edgeswarm.model_costs",
    "edgeswarm.profile",
    "edgeswarm.profile_json",
    "edgeswarm.samples",
    "edgeswarm.schedule.*",
    "edgeswarm_agent.reservation",
    "edgeswarm_coordinator.planner.*",
    "edgeswarm_coordinator.simulator.*",
    "edgeswarm_coordinator.deployment",
    "edgeswarm_coordinator.evaluations",
    "edgeswarm_coordinator.round_history",
    "edgeswarm_coordinator.job_state",
    "edgeswarm_coordinator.segments",
)
INPUT_AND_OUTPUT = ("grpc", "io", "os", "pathlib", "shutil", "socket", "ssl", "subprocess", "tempfile", "time")
INPUT_AND_OUTPUT_CALLS = ("open", "print", "input")
# Writes what a user has already: files of torch.save, to read them with weights_only.
SAVES_AS_USERS_DO = ("tests.coordinator.test_initial_weights",)
UNSAFE_FORMATS = ("pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")


@dataclass(frozen=True)
class Import:
    """One imported module: its absolute name, and how it was written."""

    module: str
    line: int
    relative: bool
    when_loaded: bool  # at the top of the module: importing the module imports it
    for_types: bool  # under `if TYPE_CHECKING`


@dataclass(frozen=True)
class Module:
    """One source file. name: as it is imported. path: relative to the repository, for messages."""

    name: str
    path: str
    source: str

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(self._walk(self.tree, when_loaded=True, for_types=False))

    def _walk(self, node: ast.AST, *, when_loaded: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # most of what there is, and no statement is within one
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, False, when_loaded, for_types)
            elif isinstance(child, ast.ImportFrom):
                base = self._absolute(child)
                yield Import(base, child.lineno, child.level > 0, when_loaded, for_types)
                for alias in child.names:  # a module or a name in one: whoever asks knows which modules there are
                    yield Import(f"{base}.{alias.name}", child.lineno, child.level > 0, when_loaded, for_types)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for part in child.body:
                    yield from self._walk(ast.Module([part], []), when_loaded=when_loaded, for_types=True)
                for part in child.orelse:
                    yield from self._walk(ast.Module([part], []), when_loaded=when_loaded, for_types=for_types)
            else:
                inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
                yield from self._walk(child, when_loaded=when_loaded and not inside, for_types=for_types)

    def _absolute(self, statement: ast.ImportFrom) -> str:
        if statement.level == 0:
            return statement.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - statement.level + (1 if self.is_package else 0)]
        return ".".join([*kept, *([statement.module] if statement.module else [])])


def read_modules(folder: str, name: str) -> Iterator[Module]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = list(path.relative_to(ROOT / folder).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        yield Module(".".join([name, *parts]), str(path.relative_to(ROOT)), path.read_text())


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    """Every source file of the three packages."""
    return [module for folder, name in PACKAGES.items() for module in read_modules(folder, name)]


@pytest.fixture(scope="module")
def everything(modules: list[Module]) -> list[Module]:
    """The three packages, the tests and the benchmarks."""
    return [*modules, *read_modules("tests", "tests"), *read_modules("bench", "bench")]


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """`a.b` is itself; `a.b.*` is a.b and all that is below it."""
    return any(name == pattern.removesuffix(".*") or fnmatch(name, pattern) for pattern in patterns)


def is_torch(module: str) -> bool:
    return any(is_within(module, name) for name in ("torch", "safetensors.torch", "torchvision"))


def wrong_packages(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.path}:{used.line} imports {used.module}"
        for module in modules
        for used in module.imports
        for forbidden in FORBIDDEN_PACKAGES[module.name.split(".")[0]]
        if is_within(used.module, forbidden)
    ]


def absolute_imports_of_the_own_package(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.path}:{used.line} imports {used.module}: inside a package, imports are relative"
        for module in modules
        if not fnmatch(module.path, GENERATED)
        for used in module.imports
        if not used.relative and is_within(used.module, module.name.split(".")[0])
    ]


def torch_in_the_wrong_file(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.path}:{used.line} imports {used.module}"
        for module in modules
        if is_within(module.name, "edgeswarm")
        for used in module.imports
        if is_torch(used.module) and not used.for_types
        if module.is_package or not matches(module.name, TORCH_INSIDE_EDGESWARM)
    ]


def ways_to_torch(modules: Iterable[Module]) -> list[str]:
    """For every module that must load without torch and doesn't: the chain of imports that ends in torch."""
    by_name = {module.name: module for module in modules}
    ways = []
    for start, module in by_name.items():
        if may_load_torch(module):
            continue
        came_from: dict[str, str] = {start: ""}
        waiting = [start]
        while waiting:
            name = waiting.pop()
            found = [used.module for used in by_name[name].imports if used.when_loaded and not used.for_types]
            if any(map(is_torch, found)):
                chain = [name]
                while came_from[chain[-1]]:
                    chain.append(came_from[chain[-1]])
                ways.append(" <- ".join(["torch", *chain]))
                break
            for target in (parent for imported in found for parent in with_parents(imported)):
                if target in by_name and target not in came_from:
                    came_from[target] = name
                    waiting.append(target)
    return ways


def may_load_torch(module: Module) -> bool:
    return (
        matches(module.name, MAY_LOAD_TORCH)
        and not module.is_package
        and not matches(module.name, WITHOUT_TORCH_AMONG_THESE)
    )


def with_parents(module: str) -> Iterator[str]:
    """a.b.c, a.b, a: importing a module runs the `__init__` of every package that it is in."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def input_and_output(modules: Iterable[Module]) -> list[str]:
    problems = []
    for module in modules:
        if not matches(module.name, WITHOUT_INPUT_OR_OUTPUT):
            continue
        for used in module.imports:
            if not used.for_types and any(is_within(used.module, name) for name in INPUT_AND_OUTPUT):
                problems.append(f"{module.path}:{used.line} imports {used.module}")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in INPUT_AND_OUTPUT_CALLS:
                problems.append(f"{module.path}:{node.lineno} calls {ast.unparse(node.func)}")
    return problems


def unsafe_formats(modules: Iterable[Module]) -> list[str]:
    """Pickle under any name, and the calls that use it without saying so."""
    problems = []
    for module in modules:
        for used in module.imports:
            if any(is_within(used.module, name) for name in UNSAFE_FORMATS):
                problems.append(f"{module.path}:{used.line} imports {used.module}")
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            allows_pickle = is_set(node, "allow_pickle")
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name not in ("load", "save") and not allows_pickle:
                continue
            call = ast.unparse(node.func)
            if call == "torch.load" and not is_set(node, "weights_only"):
                problems.append(f"{module.path}:{node.lineno} calls torch.load without weights_only=True")
            if call == "torch.save" and module.name not in SAVES_AS_USERS_DO:
                problems.append(f"{module.path}:{node.lineno} calls torch.save")
            if allows_pickle:
                problems.append(f"{module.path}:{node.lineno} calls {call} with allow_pickle")
    return problems


def is_set(call: ast.Call, option: str) -> bool:
    """Whether a call has it as `option=True`."""
    return any(keyword.arg == option and ast.unparse(keyword.value) == "True" for keyword in call.keywords)


def torch_distributed(modules: Iterable[Module]) -> list[str]:
    problems = []
    for module in modules:
        if is_within(module.name, "bench") or "distributed" not in module.source:
            continue
        lines = [used.line for used in module.imports if is_within(used.module, "torch.distributed")]
        lines += [
            node.lineno
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and node.attr == "distributed"
            if ast.unparse(node) == "torch.distributed"
        ]
        problems += [f"{module.path}:{line} uses torch.distributed" for line in lines]
    return problems


def long_files(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.path} has {lines} lines; {LONGEST_FILE_LINES} is the limit"
        for module in modules
        if not fnmatch(module.path, GENERATED)
        if (lines := module.source.count("\n")) > LONGEST_FILE_LINES
    ]


Rule = Callable[[Iterable[Module]], list[str]]
RULES_OF_THE_PACKAGES: tuple[Rule, ...] = (
    wrong_packages,
    absolute_imports_of_the_own_package,
    torch_in_the_wrong_file,
    ways_to_torch,
    input_and_output,
)
RULES_OF_EVERYTHING: tuple[Rule, ...] = (unsafe_formats, torch_distributed, long_files)


@pytest.mark.parametrize("rule", RULES_OF_THE_PACKAGES, ids=lambda rule: rule.__name__)
def test_the_packages_keep_the_rule(rule: Rule, modules: list[Module]) -> None:
    assert rule(modules) == []


@pytest.mark.parametrize("rule", RULES_OF_EVERYTHING, ids=lambda rule: rule.__name__)
def test_everything_keeps_the_rule(rule: Rule, everything: list[Module]) -> None:
    assert rule(everything) == []


def test_pyproject_lists_every_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for folder, name in PACKAGES.items()
        for path in (ROOT / folder).rglob("__init__.py")
    ]
    assert sorted(listed) == sorted(folders)


def test_no_source_is_outside_a_package() -> None:
    folders = {path.parent for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def module(name: str, source: str, *, package: bool = False) -> Module:
    return Module(name, name.replace(".", "/") + ("/__init__.py" if package else ".py"), source)


BROKEN: list[tuple[Rule, list[Module]]] = [
    (wrong_packages, [module("edgeswarm_agent.daemon", "from edgeswarm_coordinator import planner")]),
    (wrong_packages, [module("edgeswarm_coordinator.demo.cluster", "def start():\n    import edgeswarm_agent.cli")]),
    (wrong_packages, [module("edgeswarm.job", "import edgeswarm_agent")]),
    (absolute_imports_of_the_own_package, [module("edgeswarm.job", "from edgeswarm.errors import EdgeswarmError")]),
    (torch_in_the_wrong_file, [module("edgeswarm.job", "def run():\n    import torch")]),
    (torch_in_the_wrong_file, [module("edgeswarm.wire.channel", "from safetensors.torch import save")]),
    (torch_in_the_wrong_file, [module("edgeswarm.model", "import torch", package=True)]),
    (ways_to_torch, [module("edgeswarm.plan", "from . import other"), module("edgeswarm.other", "import torch")]),
    (
        ways_to_torch,
        [
            module("edgeswarm.plan", "from .model.layer_graph import Layer"),
            module("edgeswarm.model", "from .export import export_model", package=True),
            module("edgeswarm.model.export", "import torch.export"),
            module("edgeswarm.model.layer_graph", ""),
        ],
    ),
    (input_and_output, [module("edgeswarm_coordinator.planner.asteroid", "from pathlib import Path")]),
    (input_and_output, [module("edgeswarm_coordinator.planner.asteroid", "def plan():\n    return open('x')")]),
    (unsafe_formats, [module("edgeswarm.snapshot", "import pickle")]),
    (unsafe_formats, [module("edgeswarm.snapshot", "torch.load(path)")]),
    (unsafe_formats, [module("edgeswarm.snapshot", "torch.load(path, weights_only=False)")]),
    (unsafe_formats, [module("edgeswarm.snapshot", "numpy.load(path, allow_pickle=True)")]),
    (torch_distributed, [module("edgeswarm_agent.worker.links", "from torch import distributed")]),
    (torch_distributed, [module("edgeswarm_agent.worker.links", "import torch\ntorch.distributed.send(x)")]),
    (long_files, [module("edgeswarm.job", "\n" * 501)]),
]


@pytest.mark.parametrize(("rule", "sources"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_rule_sees_the_source_that_breaks_it(rule: Rule, sources: list[Module]) -> None:
    assert rule(sources)


def test_types_and_functions_may_name_torch() -> None:
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"
    late = "def run():\n    from .worker import work"
    assert torch_in_the_wrong_file([module("edgeswarm.job", for_types)]) == []
    assert ways_to_torch([module("edgeswarm_agent.cli", late), module("edgeswarm_agent.worker", "import torch")]) == []
