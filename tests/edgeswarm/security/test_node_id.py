"""Node ids: their shape, and that they are chosen once."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.node_id import (
    forget_node_id,
    is_node_id,
    load_or_create_node_id,
    new_node_id,
    server_name,
)


@given(host_name=st.text(max_size=80), operator=st.booleans())
def test_every_host_name_gives_a_node_id(host_name: str, operator: bool) -> None:
    node_id = new_node_id(host_name, operator=operator)
    assert is_node_id(node_id)
    assert node_id.startswith("operator-") or not operator
    assert server_name(node_id) == f"{node_id}.edgeswarm"


def test_a_host_name_stays_readable() -> None:
    assert new_node_id("Jetson_Nano 2.local").startswith("jetson-nano-2-")
    assert new_node_id("laptop", operator=True).startswith("operator-laptop-")


@pytest.mark.parametrize(
    "text", ["", "box", "box-12345", "box-12345G", "Box-123456", "-box-123456", "a.b-123456", "x" * 60]
)
def test_what_is_not_a_node_id(text: str) -> None:
    assert not is_node_id(text)
    with pytest.raises(ValueError, match="not a node id"):
        server_name(text)


def test_it_is_chosen_once(tmp_path: Path) -> None:
    first = load_or_create_node_id(tmp_path / "agent", name="First Box")
    assert first.startswith("first-box-")
    assert load_or_create_node_id(tmp_path / "agent", name="other") == first


def test_it_is_chosen_again_for_another_name_alone(tmp_path: Path) -> None:
    """A second attempt with another id would take a second use of a token."""
    forget_node_id(tmp_path, unless_of="kitchen")
    first = load_or_create_node_id(tmp_path, name="My Kitchen.local")
    forget_node_id(tmp_path, unless_of="My Kitchen.local")
    assert load_or_create_node_id(tmp_path, name="My Kitchen.local") == first
    forget_node_id(tmp_path, unless_of="kitchen")
    assert load_or_create_node_id(tmp_path, name="kitchen").startswith("kitchen-")


def test_many_that_start_at_once_agree(tmp_path: Path) -> None:
    chosen: list[str] = []
    start = threading.Barrier(8)

    def choose() -> None:
        start.wait()
        chosen.append(load_or_create_node_id(tmp_path))

    threads = [threading.Thread(target=choose) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(chosen) == 8
    assert len(set(chosen)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["node-id"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "node-id").write_text("rubbish!\n")
    with pytest.raises(EdgeswarmError, match="'rubbish!'"):
        load_or_create_node_id(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"Box"])
def test_a_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    load_or_create_node_id(tmp_path)
    (tmp_path / "node-id").write_bytes(content)
    with pytest.raises(EdgeswarmError, match="which is not a node id") as caught:
        load_or_create_node_id(tmp_path)
    assert caught.value.code is ErrorCode.CONFIG


def test_a_folder_that_takes_nothing_is_told_and_left_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EdgeswarmError, match="No space left on device") as caught:
        load_or_create_node_id(tmp_path)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert list(tmp_path.iterdir()) == []
