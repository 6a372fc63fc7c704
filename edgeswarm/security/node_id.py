"""The one name of a device: `<slug of its host name>-<6 hex digits>`, chosen once and kept.

The same word is the certificate's SAN (`<node-id>.edgeswarm`), the mDNS instance name and the key in plans.
An operator's machine has one too, which begins with `operator-`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from pathlib import Path

from ..errors import EdgeswarmError, ErrorCode
from .files import make_private_folder

DOMAIN = "edgeswarm"  # the last label of every name in a certificate
FILE_NAME = "node-id"

_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,54}[a-z0-9])?-[0-9a-f]{6}")
_SLUG_LENGTH = 40  # with the prefix and the suffix below 63 bytes, the limit of one DNS label


def new_node_id(host_name: str, *, operator: bool = False) -> str:
    """A fresh node id for a host of this name: lower-case letters, digits and hyphens, at most 63 characters."""
    return f"{'operator-' if operator else ''}{_slug(host_name)}-{secrets.token_hex(3)}"


def _slug(host_name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", host_name.partition(".")[0].lower())[:_SLUG_LENGTH].strip("-") or "device"


def is_node_id(text: str) -> bool:
    return len(text) <= 63 and _PATTERN.fullmatch(text) is not None


def server_name(node_id: str) -> str:
    """The DNS name in the certificate of this node; raises ValueError for what isn't a node id."""
    if not is_node_id(node_id):
        raise ValueError(f"{node_id!r} is not a node id")
    return f"{node_id}.{DOMAIN}"


def load_or_create_node_id(folder: Path, *, name: str | None = None, operator: bool = False) -> str:
    """The node id kept in `folder`, chosen now if there is none yet.

    name: what to build a new id from instead of the host name; an id that exists is never changed by it.
    Two processes that start at once get the same id. Raises EdgeswarmError: CONFIG for a damaged file, OUTPUT_FAILED.
    """
    path = make_private_folder(folder) / FILE_NAME
    if not path.exists():
        _create(path, new_node_id(name or socket.gethostname(), operator=operator))
    node_id = path.read_text(errors="replace").strip()
    if not is_node_id(node_id):
        raise EdgeswarmError(
            ErrorCode.CONFIG,
            f"The file {path} holds {node_id[:80]!r}, which is not a node id.",
            "Remove the file, and join the cluster again.",
        )
    return node_id


def forget_node_id(folder: Path, *, unless_of: str) -> None:
    """Let `load_or_create_node_id` choose again: right only where nobody has been told the old one.

    unless_of: the name that the next one would be made of. An id of just this name is kept: an attempt to join with it may have
    been heard, and a second one with another id would take a second use of the token.
    """
    path = folder / FILE_NAME
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(errors="replace").strip().rpartition("-")[0] != _slug(unless_of):
            path.unlink()


def _create(path: Path, node_id: str) -> None:
    # A link fails where the name is taken, and the file that it names is complete: whoever links first has chosen.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("w") as file:
            file.write(node_id + "\n")
            file.flush()
            os.fsync(file.fileno())  # else it may be empty after a power cut
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"This machine's name in the cluster can't be written to {path}: {error.strerror or error}.",
            "Free space there, or let this user write to it; a file system without links, as FAT, will not do.",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
