"""Join tokens: `ES1<sha256 of the authority, hex>::<secret>`.

The hash lets a device know the cluster before it says anything; the secret lets the cluster know the device.
The operator's folder keeps only the secret's hash, with an expiry and a number of uses.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re
import secrets
import time
from pathlib import Path
from typing import Any

from ..errors import EdgeswarmError, ErrorCode
from .files import locked_json, make_private_folder

FILE_NAME = "tokens.json"
DEFAULT_LIFETIME_SECONDS = 24 * 3600.0

_NEW_TOKEN = "Make a new one with `edgeswarm token create` on the operator's machine."
_FORMAT = re.compile(r"ES1([0-9a-f]{64})::([0-9a-f]{32})")


@dataclasses.dataclass(frozen=True)
class Token:
    """authority_fingerprint: sha256 of the authority's certificate, 64 hex digits. secret: 32 hex digits (128 bits)."""

    authority_fingerprint: str
    secret: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return f"ES1{self.authority_fingerprint}::{self.secret}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Raises EdgeswarmError (TOKEN) that says what is wrong with the text."""
        text = text.strip()
        match = _FORMAT.fullmatch(text)
        if match is not None:
            return cls(match.group(1), match.group(2))
        if re.match(r"ES\d", text) and not text.startswith("ES1"):
            message = "The token was made by another version of edgeswarm."
        elif not text.startswith("ES1"):
            message = "This is not a join token: one begins with ES1."
        elif "::" not in text:
            message = "The token has no `::` between its two parts; a part of it seems to be missing."
        else:
            message = "The token is not complete: it is ES1, 64 hex digits, `::` and 32 hex digits."
        raise EdgeswarmError(ErrorCode.TOKEN, message, "Copy the whole line that `edgeswarm token create` printed.")


class TokenStore:
    """The tokens that still open the door, in the authority's folder; all processes agree through a file lock.

    Layout of the file, by sha256 of the secret:
    {"expires": seconds since 1970, "uses_left": n, "used_by": ["node id, key fingerprint"]}
    """

    def __init__(self, folder: Path) -> None:
        self._path = make_private_folder(folder) / FILE_NAME

    def create(
        self,
        authority_fingerprint: str,
        *,
        uses: int = 1,
        lifetime_seconds: float = DEFAULT_LIFETIME_SECONDS,
        now: float | None = None,
    ) -> Token:
        """A new token that lets `uses` devices join within `lifetime_seconds`; raises EdgeswarmError (OUTPUT_FAILED)."""
        if uses < 1 or lifetime_seconds <= 0:
            raise ValueError("a token needs at least one use and a lifetime above 0 seconds")
        now = time.time() if now is None else now
        token = Token(authority_fingerprint, secrets.token_hex(16))
        try:
            with locked_json(self._path) as tokens:
                for digest in [
                    key for key, record in tokens.items() if record["expires"] < now - DEFAULT_LIFETIME_SECONDS
                ]:
                    del tokens[digest]  # long over: nobody needs to be told any more that it expired
                tokens[_digest(token.secret)] = {"expires": now + lifetime_seconds, "uses_left": uses, "used_by": []}
        except OSError as error:
            raise EdgeswarmError(
                ErrorCode.OUTPUT_FAILED,
                f"The token can't be written to {self._path}: {error.strerror or error}.",
                "Free space there, or let this user write to it.",
            ) from error
        return token

    def spend(self, secret: str, *, node_id: str, key_fingerprint: str, now: float | None = None) -> None:
        """Take one use of the token with this secret for the device of this name and key.

        A device that asks again with both the same (its first answer got lost) takes no second use.
        Raises EdgeswarmError (TOKEN) for a secret that is unknown, expired or used up.
        """
        now = time.time() if now is None else now
        with locked_json(self._path) as tokens:
            record = _find(tokens, _digest(secret))
            if record is None:
                raise EdgeswarmError(ErrorCode.TOKEN, "The cluster doesn't know this token.", _NEW_TOKEN)
            if record["expires"] < now:
                raise EdgeswarmError(ErrorCode.TOKEN, "The token has expired.", _NEW_TOKEN)
            user = f"{node_id}, {key_fingerprint}"
            if user in record["used_by"]:
                return
            if record["uses_left"] < 1:
                raise EdgeswarmError(
                    ErrorCode.TOKEN,
                    "The token is used up: as many devices have joined with it as it allows, or its `token create` has ended.",
                    _NEW_TOKEN,
                )
            record["uses_left"] -= 1
            record["used_by"].append(user)

    def withdraw(self, token: Token) -> None:
        """Lets no further device join with it; one whose answer got lost may still ask again."""
        with locked_json(self._path) as tokens:
            record = tokens.get(_digest(token.secret))
            if record is not None:
                record["uses_left"] = 0


def _digest(secret: str) -> str:
    # A plain hash is enough: the secret is 128 random bits, not a password.
    return hashlib.sha256(secret.encode()).hexdigest()


def _find(tokens: dict[str, Any], digest: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = None
    for key, record in tokens.items():  # all of them, so that the time says nothing about which one it was
        if hmac.compare_digest(key, digest):
            found = record
    return found
