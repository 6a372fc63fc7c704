"""Job: what a user writes, and how the file with it is loaded. Imports no torch; the user's file does.

A job file is plain Python with one name that counts:

    import edgeswarm

    job = edgeswarm.Job(model=build, dataset=load, loss=cross_entropy, optimizer=sgd, batch_size=64, epochs=10)
"""

from __future__ import annotations

import importlib
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from .errors import EdgeswarmError, ErrorCode

if TYPE_CHECKING:
    import torch

    NamedParameters = list[tuple[str, torch.nn.Parameter]]

SERVED = "served"
LOCAL = "local"
DATA_MODES = (SERVED, LOCAL)
OWN_PACKAGES = ("edgeswarm", "edgeswarm_agent", "edgeswarm_coordinator")


class Dataset(Sized, Protocol):
    """A map-style data set: `len(dataset)` items, `dataset[index]` is a pair (inputs, targets), always the same one."""

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Job:
    """One training, as a user describes it.

    model: () -> nn.Module. Called under the seed, on the coordinator's machine alone.
    dataset: () -> a map-style data set whose items are pairs (inputs, targets). inputs is a tensor or array (the model
        is called as `model(inputs)`), a tuple (`model(*inputs)`) or a dict (`model(**inputs)`).
    loss: (output, targets) -> the mean over the rows it was given, or (sum, count).
    optimizer: (named parameters) -> a torch optimizer. It gets a list of (name, parameter) of what a device holds, and
        is not called where that is nothing.
    batch_size: samples of one optimizer step. epochs: passes over the data set. seed: of weights, order and draws.
    transform: (sample, generator) -> sample, run where the sample is used; draws from the generator alone.
    learning_rate_schedule: round -> factor on each group's initial learning rate.
    clip_gradient_norm: the largest 2-norm of the whole model's gradient.
    data: "served" (the coordinator's machine has the data) or "local" (every device opens the data set itself).
    files: further files and folders that the job needs, relative to the job file.
    name: for a person; the file's name where it is None.

    Raises ValueError that names the field.
    """

    model: Callable[[], torch.nn.Module]
    dataset: Callable[[], Dataset]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[NamedParameters], torch.optim.Optimizer]
    batch_size: int
    epochs: int = 1
    seed: int = 0
    transform: Callable[[Any, torch.Generator], Any] | None = None
    learning_rate_schedule: Callable[[int], float] | None = None
    clip_gradient_norm: float | None = None
    data: str = SERVED
    files: Sequence[str] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        for field in ("model", "dataset", "loss", "optimizer"):
            self._expect_callable(field)
        for field in ("transform", "learning_rate_schedule"):
            if getattr(self, field) is not None:
                self._expect_callable(field)
        _expect_integer("batch_size", self.batch_size, minimum=1)
        _expect_integer("epochs", self.epochs, minimum=1)
        _expect_integer("seed", self.seed, minimum=0)
        if self.seed >= 2**63:
            raise ValueError(f"seed is below 2**63, not {self.seed}")
        clip = self.clip_gradient_norm
        if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0):
            raise ValueError(f"clip_gradient_norm is a number above 0 or None, not {clip!r}")
        if self.data not in DATA_MODES:
            raise ValueError(f"data is one of {', '.join(map(repr, DATA_MODES))}, not {self.data!r}")
        if isinstance(self.files, str) or not all(isinstance(file, str) for file in self.files):
            raise ValueError(f"files is a list of paths as texts, not {self.files!r}")
        object.__setattr__(self, "files", tuple(self.files))
        if self.name is not None and (not isinstance(self.name, str) or not self.name.strip()):
            raise ValueError(f"name is a text or None, not {self.name!r}")

    def _expect_callable(self, field: str) -> None:
        value = getattr(self, field)
        if not callable(value):
            raise ValueError(f"{field} is a function, not {_shown(value)}; name the function without calling it")
        if field == "model" and hasattr(value, "forward") and not isinstance(value, type):
            raise ValueError("model is a function that builds the module, not a module; write model=lambda: ...")


def model_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with the inputs of an item or a batch: `model(*args, **kwargs)`."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


_load_lock = threading.RLock()
_load_numbers = itertools.count(1)
_neighbour_folder: Path | None = None
_modules_before: frozenset[str] = frozenset()


def load_job(folder: str | Path, job_file: str, *, where: str = "this machine") -> Job:
    """Run the user's file and return its `job`.

    folder: what holds the file; it goes first on sys.path and stays there, so that the file's neighbours import, even
        later from inside its functions. The file runs as a module of its own in sys.modules.
    job_file: its path within the folder. where: the device's name, for messages.
    A process works for one job at a time: loading from another folder forgets the neighbours of the one before.
    Raises EdgeswarmError: JOB_FILE, or MODULE_MISSING naming the module and the device.
    """
    path = (Path(folder) / job_file).resolve()
    if not path.is_file():
        raise EdgeswarmError(ErrorCode.JOB_FILE, f"There is no job file {path}.", "Check the path.")
    with _load_lock:
        _import_from(path.parent)
        module = _run_file(path, where)
    if not hasattr(module, "job"):
        raise EdgeswarmError(
            ErrorCode.JOB_FILE, f"{path.name} has no `job`.", "Let it end with `job = edgeswarm.Job(...)`."
        )
    job = module.job
    if not isinstance(job, Job):
        raise EdgeswarmError(
            ErrorCode.JOB_FILE,
            f"`job` in {path.name} is {_shown(job)}, not an edgeswarm.Job.",
            "Write `job = edgeswarm.Job(...)`.",
        )
    return job


def _run_file(path: Path, where: str) -> ModuleType:
    name = f"edgeswarm_job_{next(_load_numbers)}_{path.stem}"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None, "a source file loader always has a spec"
    module = module_from_spec(spec)
    sys.modules[name] = module
    importlib.invalidate_caches()
    try:
        # Compiled here and not by the loader: a cached .pyc would hide a change made within the same second.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise user_error(error, path.parent, where=where, doing=f"loading {path.name}") from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def user_error(error: BaseException, folder: Path, *, where: str, doing: str) -> EdgeswarmError:
    """What an exception out of the user's code looks like to the user: their file and line, the traceback as detail.

    folder: of the job's files. The traceback begins with the first frame in there.
    """
    if isinstance(error, EdgeswarmError):
        return error
    folder = folder.resolve()
    detail = "".join(traceback.format_exception(type(error), error, _users_part(error, folder)))
    if isinstance(error, SyntaxError):
        place = f"{_within(error.filename or '?', folder)}, line {error.lineno}"
        return EdgeswarmError(ErrorCode.JOB_FILE, f"{place}: {error.msg}.", "Correct the line.", detail=detail)
    line = _user_line(error, folder)
    place = f"{line}: " if line else ""
    if isinstance(error, ImportError):
        module = error.name or "a module"
        if isinstance(error, ModuleNotFoundError):
            message = f"{place}the Python module {module!r} is missing on {where} (while {doing})."
        else:
            message = f"{place}{module!r} does not import on {where}: {error} (while {doing})."
        remedy = (
            f"Install it there, in the Python that runs edgeswarm ({sys.executable} -m pip install ...); "
            "a module of your own belongs beside the job file or in the job's `files`."
        )
        return EdgeswarmError(ErrorCode.MODULE_MISSING, message, remedy, detail=detail)
    text = str(error).strip()
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return EdgeswarmError(
        ErrorCode.JOB_FILE, f"{place}{said} (while {doing} on {where}).", "Correct the job file.", detail=detail
    )


def _users_part(error: BaseException, folder: Path) -> TracebackType | None:
    """The traceback from the first frame of the user's files on, and what these called.

    Where it went through none of them (a library that we called with what the user gave us), from that library on.
    None where there is nothing but our own frames: then the file and line of a SyntaxError say it all.
    """
    parts = list(_parts(error))
    theirs = (part for part in parts if _is_users(part, folder))
    not_ours = (part for part in parts if not _is_ours(part))
    return next(theirs, None) or next(not_ours, None)


def _user_line(error: BaseException, folder: Path) -> str:
    """The innermost line of the user's own files that the exception went through."""
    lines = [
        f"{_within(_file(part), folder)}, line {part.tb_lineno}" for part in _parts(error) if _is_users(part, folder)
    ]
    return lines[-1] if lines else ""


def _parts(error: BaseException) -> Iterator[TracebackType]:
    """The traceback from each of its frames on, outermost first."""
    part = error.__traceback__
    while part is not None:
        yield part
        part = part.tb_next


def _file(part: TracebackType) -> str:
    return part.tb_frame.f_code.co_filename


def _is_ours(part: TracebackType) -> bool:
    # By the package, not by the place: a job may lie in the folder of our own clone.
    package = str(part.tb_frame.f_globals.get("__package__") or "")
    return package.partition(".")[0] in OWN_PACKAGES


def _is_users(part: TracebackType, folder: Path) -> bool:
    path = Path(_file(part))
    return not _is_ours(part) and path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts


def _within(filename: str, folder: Path) -> str:
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else filename


def _import_from(folder: Path) -> None:
    """Put a folder first on sys.path in place of the one before, whose modules are forgotten."""
    global _neighbour_folder, _modules_before
    if folder == _neighbour_folder:
        return
    if _neighbour_folder is not None:
        if str(_neighbour_folder) in sys.path:
            sys.path.remove(str(_neighbour_folder))
        for name in list(_modules_in(_neighbour_folder)):
            del sys.modules[name]
    sys.path.insert(0, str(folder))
    _neighbour_folder = folder
    _modules_before = frozenset(sys.modules)


def _modules_in(folder: Path) -> Iterable[str]:
    """Names of what the job imported from its folder's own files, without those of an environment inside it."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name in _modules_before or name.split(".")[0].startswith("edgeswarm"):
            continue
        path = Path(file)
        if path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts:
            yield name


def _expect_integer(field: str, value: object, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{field} is a whole number of at least {minimum}, not {value!r}")


def _shown(value: object) -> str:
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    return f"a {type(value).__name__}"
