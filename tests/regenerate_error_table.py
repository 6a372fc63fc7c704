"""Writes docs/errors.md from the registry of errors: `make error-table`, and the test that compares."""

from __future__ import annotations

import sys
from pathlib import Path

from edgeswarm.errors import ErrorCode, ExitCode

ERRORS_PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

_INTRODUCTION = """# What can go wrong

Every mistake gives one message on standard error, and nothing half done: no result folder, no temporary files, and the
devices free again for the next job.

    error: job.py, line 31: ValueError: no colours (while building the model on this machine).
    remedy: Correct the job file.
    details: /home/ada/.local/state/edgeswarm/logs/error-20260301-101112-4711.log

`error` names the thing: the file and the line, the item, the device, the module. `remedy` says what to do. `details` is
there where a traceback or a log helps, and names the file with it. With `--json` the same stands on standard output:

    {"error": {"code": "job-file", "message": "...", "remedy": "...", "detail": "..."}}

"""

_EXIT_CODES = {
    ExitCode.ERROR: "an error",
    ExitCode.USAGE: "wrong usage or setting",
    ExitCode.NOTHING_FOUND: "nothing found",
    ExitCode.CANNOT_BE_PLACED: "can't be placed",
    ExitCode.INTERRUPTED: "interrupted",
}


def error_page() -> str:
    """docs/errors.md as it is to be."""
    rows = [
        f"| `{code.word}` | {int(code.exit_code)} | {code.meaning} | {code.remedy} |"
        for code in sorted(ErrorCode, key=lambda code: code.word)
    ]
    exits = ", ".join(f"{int(code)} {text}" for code, text in _EXIT_CODES.items())
    return (
        _INTRODUCTION
        + f"`code` is one of these. The exit codes: {int(ExitCode.DONE)} done, {exits}.\n\n"
        + "| code | exit code | what it means | what to do |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    ERRORS_PAGE.write_text(error_page())
    sys.stdout.write(f"{ERRORS_PAGE}\n")
