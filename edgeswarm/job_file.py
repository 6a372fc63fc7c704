"""The user's job file: run, and what its exceptions look like to the user. Imports no torch; the user's file does."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, TracebackType

from .errors import EdgeswarmError, ErrorCode, said_by
from .fixed_draws import begin_draws
from .job import Job, shown

_HERE = "this machine"
# Behind a remedy for what a job file does at its top, on a device.
_INTO_FUNCTIONS = (
    " Or move it to where it is needed: a device runs the file's top and the transform, never model(), and dataset() with "
    'data="local" alone.'
)
OWN_PACKAGES = ("edgeswarm", "edgeswarm_agent", "edgeswarm_coordinator")

_load_lock = threading.RLock()
_load_numbers = itertools.count(1)
_neighbour_folder: Path | None = None
_modules_before: frozenset[str] = frozenset()


def load_job(folder: str | Path, job_file: str, *, where: str = _HERE) -> Job:
    """Run the user's file and return its `job`.

    folder: what holds the file; it goes first on sys.path and stays there, so that the file's neighbours import, even
        later from inside its functions. The file runs as a module of its own in sys.modules, and what it draws is the same
        each time (fixed_draws.py).
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
            f"`job` in {path.name} is {shown(job)}, not an edgeswarm.Job.",
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
    begin_draws()
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


@contextlib.contextmanager
def user_code(folder: Path, doing: str, *, where: str = _HERE, remedy: str = "") -> Iterator[None]:
    """Around what runs the user's code: what it raises, sys.exit() too, becomes an error as `user_error` has it.

    folder: of the job's files. remedy: in place of the usual one where no line of theirs is to blame.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # it may raise anything
        told = user_error(error, folder, where=where, doing=doing)
        if told is error:
            raise
        if remedy and not user_line(error, folder.resolve()):
            told.remedy = remedy
        raise told from error


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
        stop = "" if error.msg.endswith(("?", "!")) else "."
        return EdgeswarmError(ErrorCode.JOB_FILE, f"{place}: {error.msg}{stop}", "Correct the line.", detail=detail)
    line = user_line(error, folder)
    place = f"{line}: " if line else ""
    on_a_device = where != _HERE and doing.startswith("loading")
    if isinstance(error, ImportError):
        module = error.name or "a module"
        if isinstance(error, ModuleNotFoundError):
            message = f"{place}the Python module {module!r} is missing on {where} (while {doing})."
        else:
            message = f"{place}{module!r} does not import on {where}: {said_by(error)} (while {doing})."
        remedy = (
            f"Install it there, in the Python that runs edgeswarm ({sys.executable} -m pip install ...); "
            "a module of your own belongs beside the job file or in the job's `files`."
        )
        if "relative import" in str(error):
            remedy = "Leave the dot out: a job file is run by itself, and what lies beside it is imported by its name."
        elif on_a_device:
            remedy += _INTO_FUNCTIONS
        return EdgeswarmError(ErrorCode.MODULE_MISSING, message, remedy, detail=detail)
    message = f"{place}{said_by(error)} (while {doing} on {where})."
    remedy = "Correct the job file."
    if isinstance(error, FileNotFoundError) and error.filename and not Path(str(error.filename)).is_absolute():
        remedy = (
            f"Relative paths begin in {Path.cwd()} on {where}: give the whole path, or Path(__file__).with_name(...) of what is "
            "in the job's `files`."
        )
        if on_a_device:
            remedy += _INTO_FUNCTIONS
    return EdgeswarmError(ErrorCode.JOB_FILE, message, remedy, detail=detail)


def _users_part(error: BaseException, folder: Path) -> TracebackType | None:
    """The traceback from the first frame of the user's files on, and what these called.

    Where it went through none of them (a library that we called with what the user gave us), from that library on.
    None where there is nothing but our own frames: then the file and line of a SyntaxError say it all.
    """
    parts = list(_parts(error))
    theirs = (part for part in parts if _is_users(part, folder))
    not_ours = (part for part in parts if not _is_ours(part))
    return next(theirs, None) or next(not_ours, None)


def user_line(error: BaseException, folder: Path) -> str:
    """`train.py, line 12`: the innermost line of the user's own files that the exception went through, or nothing.

    folder: of the job's files, resolved.
    """
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
