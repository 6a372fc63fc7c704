"""Private folders, atomic writes, JSON under a lock."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.files import locked_json, make_private_folder, write_atomically


def test_a_private_folder_is_closed_to_others_even_if_it_was_open(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True, mode=0o755)
    assert make_private_folder(folder).stat().st_mode & 0o777 == 0o700


def test_one_on_a_disk_that_can_only_be_read_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_private_folder(tmp_path / "a")

    def read_only(path: Path, mode: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", read_only)
    assert make_private_folder(folder) == folder


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgeswarmError, match="file/inside") as caught:
        make_private_folder(tmp_path / "file" / "inside")
    assert caught.value.code is ErrorCode.CONFIG


def test_an_atomic_write_leaves_one_file_with_the_wanted_mode(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()  # a file can't replace it
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_an_exception_inside_the_block_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with locked_json(path) as document:
        document["kept"] = {"n": 1}

    def change_and_fail() -> None:
        with locked_json(path) as document:
            document["kept"]["n"] = 2
            raise KeyError("stop")

    with pytest.raises(KeyError):
        change_and_fail()
    assert json.loads(path.read_text()) == {"kept": {"n": 1}}


@pytest.mark.parametrize("damage", ["{", "[1]", ""])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(damage)
    with pytest.raises(EdgeswarmError, match=r"x\.json is damaged"), locked_json(path):
        pass


def test_processes_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    program = (
        "import sys; from pathlib import Path; from edgeswarm.security.files import locked_json\n"
        "for _ in range(30):\n"
        "    with locked_json(Path(sys.argv[1])) as document: document['n'] = document.get('n', 0) + 1\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert json.loads(path.read_text()) == {"n": 60}
