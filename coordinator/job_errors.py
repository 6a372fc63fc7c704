"""How a job that doesn't hold together is told."""

from __future__ import annotations

from typing import NoReturn

from edgeswarm.errors import EdgeswarmError, ErrorCode


def invalid(message: str, remedy: str) -> NoReturn:
    """Raises EdgeswarmError (JOB_INVALID)."""
    raise EdgeswarmError(ErrorCode.JOB_INVALID, message, remedy)


def with_article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
