"""Reading a graph that another machine wrote: the error for what is not sound, and what JSON itself does not check."""

from __future__ import annotations

import json
import re

from ..errors import EdgeswarmError, ErrorCode
from ..json_fields import Fields

#: What fx may use as a variable name: the graph's names end up in generated source.
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
MAXIMUM_NESTING = 8


def refuse(message: str) -> EdgeswarmError:
    """The error for graph data that can't be what an honest coordinator of this version sends."""
    return EdgeswarmError(
        ErrorCode.GRAPH_REFUSED,
        f"The stage's graph is refused: {message}.",
        "Run the same version of edgeswarm on the coordinator and on the devices.",
    )


def read_document(document: object, *, what: str, expected_format: str) -> Fields:
    """The fields of a JSON object, given as the object itself or as its text. Raises GRAPH_REFUSED, as they do."""
    if isinstance(document, bytes | bytearray | str):
        try:
            document = json.loads(document)
        except RecursionError:
            raise refuse("it is nested too deeply") from None
        except ValueError as error:
            raise refuse(f"it is not JSON ({error})") from None
    fields = Fields.of(document, refuse, what=what)
    fields.expect_format(expected_format)
    return fields


def read_identifier(fields: Fields, key: str) -> str:
    """A text that may stand in generated source as a variable's name."""
    value = fields.text(key)
    if not IDENTIFIER.fullmatch(value):
        raise fields.error(f"{key} is not a name: {value[:60]!r}")
    return value
