"""The registry of errors: every code means something, is raised somewhere, and every error says what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode
from tests.regenerate_error_table import ERRORS_PAGE, error_page

ROOT = Path(__file__).parents[2]
SOURCES = ("edgeswarm", "agent", "coordinator")
# Errors of these may come without a remedy, and why.
WITHOUT_REMEDY = {
    ErrorCode.INTERRUPTED: "somebody wanted it so",
    ErrorCode.STALE_CALL: "an answer from process to process; what ended the job is told by whoever knows it",
}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != ROOT / "edgeswarm" / "errors.py":
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def code_of(call: ast.Call) -> ErrorCode | None:
    """The code that a call with `ErrorCode.X` as its first argument names."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Attribute) and isinstance(first.value, ast.Name) and first.value.id == "ErrorCode":
        return ErrorCode[first.attr]
    return None


def errors_made(tree: ast.Module) -> Iterator[tuple[int, ErrorCode, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (code := code_of(node)) is not None:
            yield node.lineno, code, node


def has_remedy(call: ast.Call) -> bool:
    remedies = [*call.args[2:3], *(keyword.value for keyword in call.keywords if keyword.arg == "remedy")]
    return any(not (isinstance(remedy, ast.Constant) and not remedy.value) for remedy in remedies)


def test_the_page_is_current() -> None:
    assert ERRORS_PAGE.read_text() == error_page(), "run `make error-table`"


def test_every_code_says_what_it_means_and_what_to_do() -> None:
    assert len({code.word for code in ErrorCode}) == len(ErrorCode)
    for code in ErrorCode:
        assert code.meaning.endswith("."), code
        assert code.remedy.endswith("."), code
        assert "|" not in code.meaning + code.remedy, code


def test_every_code_is_raised_somewhere() -> None:
    raised = {code for _, tree in trees() for _, code, _ in errors_made(tree)}
    assert set(ErrorCode) - raised == set()


def test_every_error_says_what_to_do() -> None:
    without = [
        f"{path}:{line} {code.word}"
        for path, tree in trees()
        for line, code, call in errors_made(tree)
        if code not in WITHOUT_REMEDY and not has_remedy(call)
    ]
    assert without == []


def test_an_error_travels_as_json() -> None:
    error = EdgeswarmError(ErrorCode.JOB_FILE, "job.py, line 3: no colours.", "Correct it.", detail="a traceback")
    again = EdgeswarmError.from_json(error.to_json())
    assert (again.code, again.message, again.remedy, again.detail) == (
        error.code,
        error.message,
        error.remedy,
        error.detail,
    )
    assert EdgeswarmError.from_json({"code": "of-another-version", "message": "x"}).code is ErrorCode.INTERNAL


def test_what_an_error_of_elsewhere_says_moves_no_terminal() -> None:
    texts = dict.fromkeys(("message", "remedy", "detail"), "\x1b]52;c;cm0gLXJm\x07")
    error = EdgeswarmError.from_json({"code": "internal", **texts})
    assert "\x1b" not in f"{error.message}{error.remedy}{error.detail}"
