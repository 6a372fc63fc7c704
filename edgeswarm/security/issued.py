"""Which node id was given to which key: how the join server notices a second box with the same node id."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import EdgeswarmError, ErrorCode
from .files import locked_json, make_private_folder

FILE_NAME = "issued.json"


class IssuedNodes:
    """The node ids that this cluster's authority has signed, in the operator's folder.

    Layout of the file: {node id: {"key": fingerprint of its public key, "issued": seconds since 1970}}
    """

    def __init__(self, folder: Path) -> None:
        self._path = make_private_folder(folder) / FILE_NAME

    @contextmanager
    def claim(self, node_id: str, *, key_fingerprint: str) -> Iterator[None]:
        """Hold the register while a certificate is made, and enter the node when the block ends without an exception.

        Raises EdgeswarmError (TRUST) where another key has this node id: a cloned SD card, or a lost key.
        """
        with locked_json(self._path) as nodes:
            known = nodes.get(node_id)
            if known is not None and known["key"] != key_fingerprint:
                raise EdgeswarmError(
                    ErrorCode.TRUST,
                    f"The node id {node_id} belongs to another device of the cluster, which has another key. "
                    "Was this device's disk or SD card cloned from that one?",
                    "Remove the file `node-id` in this device's agent folder and join again: it takes a new id.",
                )
            yield
            nodes[node_id] = _entry(key_fingerprint)

    def enter(self, node_id: str, *, key_fingerprint: str) -> None:
        """Enter the operator's own node, whatever key it had before."""
        with locked_json(self._path) as nodes:
            nodes[node_id] = _entry(key_fingerprint)

    def node_ids(self) -> list[str]:
        with locked_json(self._path) as nodes:
            return sorted(nodes)


def _entry(key_fingerprint: str) -> dict[str, Any]:
    return {"key": key_fingerprint, "issued": time.time()}
