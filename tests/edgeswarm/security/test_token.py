"""Join tokens: their text, and the store that counts their uses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.token import Token, TokenStore

FINGERPRINT = "ab" * 32


def test_its_text_can_be_read_again(tmp_path: Path) -> None:
    token = TokenStore(tmp_path).create(FINGERPRINT)
    assert str(token).startswith(f"ES1{FINGERPRINT}::")
    assert Token.parse(f"  {token}\n") == token
    assert token.secret not in repr(token)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a join token"),
        ("hello", "not a join token"),
        (f"ES2{FINGERPRINT}::{'0' * 32}", "another version"),
        (f"ES1{FINGERPRINT}", "no `::`"),
        (f"ES1{FINGERPRINT}::{'0' * 31}", "not complete"),
        (f"ES1{FINGERPRINT[1:]}::{'0' * 32}", "not complete"),
        (f"ES1{FINGERPRINT}::{'0' * 32}x", "not complete"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(text: str, problem: str) -> None:
    with pytest.raises(EdgeswarmError, match=problem) as caught:
        Token.parse(text)
    assert caught.value.code is ErrorCode.TOKEN


def test_the_secret_is_not_in_the_file(tmp_path: Path) -> None:
    token = TokenStore(tmp_path).create(FINGERPRINT)
    assert token.secret not in (tmp_path / "tokens.json").read_text()
    assert (tmp_path / "tokens.json").stat().st_mode & 0o777 == 0o600


def test_it_lets_in_as_many_as_it_says(tmp_path: Path) -> None:
    token = TokenStore(tmp_path).create(FINGERPRINT, uses=2)
    store = TokenStore(tmp_path)  # as the join server, which is another process
    store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="a")
    store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="b")
    store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="a")  # asks again: its answer got lost
    with pytest.raises(EdgeswarmError, match="used up") as caught:
        store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="c")
    with pytest.raises(EdgeswarmError, match="used up"):  # one key is no name for any number of devices
        store.spend(token.secret, node_id="other-00a1b2", key_fingerprint="a")
    assert caught.value.code is ErrorCode.TOKEN
    assert "edgeswarm token create" in caught.value.remedy


def test_one_that_is_withdrawn_lets_nobody_new_in(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    token = store.create(FINGERPRINT, uses=3)
    store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="a")
    store.withdraw(token)
    store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="a")  # its answer got lost
    with pytest.raises(EdgeswarmError, match="or its `token create` has ended"):
        store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="b")


def test_it_expires(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    token = store.create(FINGERPRINT, lifetime_seconds=60, now=1000.0)
    store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="a", now=1059.0)
    with pytest.raises(EdgeswarmError, match="expired"):
        store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="a", now=1061.0)
    store.create(FINGERPRINT, now=1000.0 + 10 * 24 * 3600)  # cleans up
    with pytest.raises(EdgeswarmError, match="doesn't know"):
        store.spend(token.secret, node_id="nano-00a1b2", key_fingerprint="a", now=1061.0)


def test_an_unknown_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="doesn't know this token"):
        TokenStore(tmp_path).spend("0" * 32, node_id="nano-00a1b2", key_fingerprint="a")


def test_a_token_without_use_or_life_is_a_mistake(tmp_path: Path) -> None:
    for uses, lifetime_seconds in ((0, 1.0), (1, 0.0)):
        with pytest.raises(ValueError, match="at least one use"):
            TokenStore(tmp_path).create(FINGERPRINT, uses=uses, lifetime_seconds=lifetime_seconds)


def test_one_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = TokenStore(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(EdgeswarmError, match=r"token can't be written to .*tokens\.json: No space left") as caught:
        store.create(FINGERPRINT)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "Free space" in caught.value.remedy
