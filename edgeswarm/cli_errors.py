"""How both commands, `edgeswarm` and `edgeswarm-agent`, report what went wrong: one message, the right exit code.

    without --json    stderr: `error: <message>`, `remedy: <remedy>`, and `details: <file>` where there is more to know
    with --json       stdout: {"error": {"code": ..., "message": ..., "remedy": ..., "detail": ...}}

Details (the traceback out of a user's file, the end of a log) go to a file, so that the remedy is what a person sees;
the hidden `--debug` shows them, and a traceback of our own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from .errors import EdgeswarmError, ErrorCode, ExitCode

_JSON = "--json"  # with which every option begins that asks for it
_DEBUG = "edgeswarm.debug"
# Of a write, which names no file where it went to a stream.
_MOST_LOGS = 50
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(name: str = _JSON, *, help_text: str = "print one JSON document") -> Callable[[Command], Command]:
    """`--json` (or a name that begins so) for a command: its parameter is `as_json`, and errors become JSON, too."""
    return click.option(name, "as_json", is_flag=True, help=help_text)


def debug_option(command: Command) -> Command:
    """The hidden `--debug`: tracebacks of errors. It adds no parameter to the command."""
    return click.option("--debug", is_flag=True, is_eager=True, hidden=True, expose_value=False, callback=_note_debug)(
        command
    )


def _note_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().meta[_DEBUG] = True


class ErrorReportingGroup(click.Group):
    """A click group whose `main` ends the process with the exit code that goes with what happened.

    log_folder: where details and the traceback of an unexpected exception are written (the system's temporary folder when None
    or when it can't be written). Use as `@click.group(cls=ErrorReportingGroup, log_folder=...)`.
    """

    def __init__(self, *arguments: Any, log_folder: Callable[[], Path] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._log_folder = log_folder

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Runs the command line; leaves by SystemExit."""
        _have_streams()
        arguments = list(sys.argv[1:] if args is None else args)
        prog_name = prog_name or os.path.basename(sys.argv[0])
        self._main_shell_completion(extra, prog_name, complete_var)
        # Asked here: click tells of an option that the command hasn't before it looks at the others, and it empties the list.
        as_json = any(argument.startswith(_JSON) for argument in arguments)
        meta: dict[str, Any] = {}
        try:
            with self.make_context(prog_name, arguments, **extra) as context:
                meta = context.meta
                self.invoke(context)
            code = int(ExitCode.DONE)
        except click.exceptions.Exit as request:
            code = request.exit_code
        except BaseException as error:
            code = report(error, as_json=as_json, debug=_DEBUG in meta, log_folder=self._log_folder)
        try:
            sys.stdout.flush()
        except OSError as error:
            _leave_standard_output()
            # Whoever left has what it wanted; where there is no room, nobody has.
            code = code if isinstance(error, BrokenPipeError) else report(error)
        sys.exit(code)


def report(
    error: BaseException,
    *,
    as_json: bool = False,
    debug: bool = False,
    log_folder: Callable[[], Path] | None = None,
) -> int:
    """Tells a person (or a program, as_json) about the error and returns the exit code.

    SystemExit and GeneratorExit are no errors and are raised again.
    """
    if isinstance(error, (SystemExit, GeneratorExit)):
        raise error
    if isinstance(error, click.ClickException) and not as_json:
        error.show()
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        # The reader of our output left (`edgeswarm ... | head`): nobody is there to be told.
        _leave_standard_output()
        return int(ExitCode.ERROR)
    readable = as_edgeswarm_error(error, log_folder=log_folder)
    if not (as_json and _printed(json.dumps({"error": readable.to_json()}))):
        click.echo(f"error: {readable.message}", err=True)
        if readable.remedy:
            click.echo(f"remedy: {readable.remedy}", err=True)
        if readable.detail and debug:
            click.echo(readable.detail.rstrip(), err=True)
        elif readable.detail:
            click.echo(f"details: {_write_log(readable.detail, log_folder)}", err=True)
    if debug:
        click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    return error.exit_code if isinstance(error, click.ClickException) else int(readable.exit_code)


def as_edgeswarm_error(error: BaseException, *, log_folder: Callable[[], Path] | None = None) -> EdgeswarmError:
    """The error in a person's words; the traceback of an unexpected one goes to a log file that the remedy names."""
    if isinstance(error, EdgeswarmError):
        return error
    if isinstance(error, click.ClickException):
        return EdgeswarmError(ErrorCode.CONFIG, error.format_message(), "see --help")
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return EdgeswarmError(ErrorCode.INTERRUPTED, "interrupted")
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"{error.filename or 'What this command prints or keeps'} can't be written: {error.strerror}.",
            "Make room, or name another place.",
        )
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    return EdgeswarmError(
        ErrorCode.INTERNAL,
        f"edgeswarm made a mistake of its own: {summary}",
        f"report it with the traceback in {_write_log(''.join(traceback.format_exception(error)), log_folder)}",
    )


def _write_log(text: str, log_folder: Callable[[], Path] | None) -> Path:
    name = time.strftime("error-%Y%m%d-%H%M%S") + f"-{os.getpid()}.log"
    try:
        folder = log_folder() if log_folder is not None else Path(tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        _write(path, text)
        if log_folder is not None:
            _remove_all_but_the_newest(folder)
    except (OSError, EdgeswarmError):
        # Even the place for logs is out of reach: a full disk, a folder of somebody else, a mistake in the settings.
        path = Path(tempfile.gettempdir()) / name
        try:
            _write(path, text)
        except OSError:
            click.echo(text, err=True)
    return path


def _remove_all_but_the_newest(folder: Path) -> None:
    """A service that can't start writes one every few seconds, for as long as nobody looks."""
    for path in sorted(folder.glob("error-*.log"))[:-_MOST_LOGS]:  # their names begin with the time
        with contextlib.suppress(OSError):
            path.unlink()


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # there are file names that are no text


def _printed(document: str) -> bool:
    """Whether standard output took it; if not, it takes nothing more."""
    try:
        click.echo(document)
    except OSError:
        _leave_standard_output()
        return False
    return True


def _have_streams() -> None:
    """A command that was started without standard output or error (`>&-`) has one that leads nowhere."""
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _leave_standard_output() -> None:
    """What it holds and gets leads nowhere from now on: else the interpreter's own end would fail by it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
