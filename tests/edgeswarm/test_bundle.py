from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.bundle import BundleLimits, make_bundle, unpack_bundle
from edgeswarm.errors import EdgeswarmError, ErrorCode


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return opened.getnames()


SOURCES = {
    "train.py": "import torch, nets\nfrom data import reader\ndef f():\n    import late.deep.module\n    from late import side",
    "nets.py": "from augment import *\nimport json",
    "augment/__init__.py": "from .flips import flip\nfrom . import crops",
    "augment/flips.py": "from .. import nothing\nfrom ..nets import x",
    "augment/crops.py": "",
    "augment/unused.py": "",
    "data/reader.py": "import train",
    "late/deep/module.py": "",
    "late/side.py": "",
    "unused.py": "",
    "words/en.txt": "a b",
    "words/more/de.txt": "c d",
    "words/__pycache__/x.pyc": "",
}


def test_a_bundle_has_what_the_job_file_imports_from_its_folder_and_files(tmp_path: Path) -> None:
    write(tmp_path, SOURCES)
    bundle = make_bundle(tmp_path / "train.py", ["words"])
    assert names(bundle.archive) == sorted(
        name for name in SOURCES if "unused" not in name and "__pycache__" not in name
    )
    assert bundle.job_file == "train.py"
    assert bundle.sha256 == hashlib.sha256(bundle.archive).hexdigest()


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", {"en.txt": "a b", "more/de.txt": "c d", "__pycache__/x.pyc": ""})
    write(tmp_path / "job", {"train.py": "", "assets/readme.txt": ""})
    (tmp_path / "job" / "assets" / "words").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "job" / "assets" / "again").symlink_to(tmp_path / "elsewhere" / "more")
    (tmp_path / "job" / "assets" / "above").symlink_to(tmp_path / "job")
    (tmp_path / "elsewhere" / "here").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "more" / "back").symlink_to(tmp_path / "elsewhere")
    found = names(make_bundle(tmp_path / "job" / "train.py", ["assets"]).archive)
    assert found == [
        *("assets/again/de.txt", "assets/readme.txt", "assets/words/en.txt", "assets/words/more/de.txt", "train.py")
    ]


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", SOURCES), write(tmp_path / "two", dict(reversed(SOURCES.items())))
    os.utime(two / "nets.py", (1, 1))
    (two / "nets.py").chmod(0o755)
    assert make_bundle(one / "train.py", ["words"]) == make_bundle(two / "train.py", ["words"])


def test_it_unpacks_to_the_same_files(tmp_path: Path) -> None:
    write(tmp_path / "job", SOURCES)
    bundle = make_bundle(tmp_path / "job" / "train.py", ["words/en.txt"])
    archive = tmp_path / "bundle.tar"
    archive.write_bytes(bundle.archive)
    target = tmp_path / "cache" / bundle.sha256
    unpack_bundle(archive, target, sha256=bundle.sha256)
    unpacked = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert unpacked == {name: SOURCES[name] for name in names(bundle.archive)}
    unpack_bundle(bundle.archive, target)  # there already
    assert os.listdir(tmp_path / "cache") == [bundle.sha256]


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "missing.txt", "words/../../x"])
def test_files_outside_of_the_folder_or_missing_are_refused(tmp_path: Path, file: str) -> None:
    write(tmp_path, SOURCES)
    with pytest.raises(EdgeswarmError, match=r"files: ") as caught:
        make_bundle(tmp_path / "train.py", [file])
    assert caught.value.code is ErrorCode.JOB_INVALID


def test_a_job_file_that_cannot_be_read_or_parsed(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match=r"can't be read") as caught:
        make_bundle(tmp_path / "train.py")
    assert caught.value.code is ErrorCode.JOB_FILE
    write(tmp_path, {"train.py": "import nets", "nets.py": "\n)"})
    with pytest.raises(EdgeswarmError, match=r"nets.py, line 2"):
        make_bundle(tmp_path / "train.py")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {**SOURCES, "assets/private/key": ""})
    of_others, iterdir = tmp_path / "assets" / "private", Path.iterdir

    def refuse(folder: Path) -> Iterator[Path]:
        """As for whoever isn't root, as tests may be."""
        if folder == of_others:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return iter(iterdir(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(EdgeswarmError, match=f"{of_others} can't be read: Permission denied") as caught:
        make_bundle(tmp_path / "train.py", ["assets"])
    assert caught.value.code is ErrorCode.JOB_FILE


def test_too_much_is_refused_when_it_is_made(tmp_path: Path) -> None:
    write(tmp_path, SOURCES)
    with pytest.raises(EdgeswarmError, match="too much for a bundle"):
        make_bundle(tmp_path / "train.py", ["words"], limits=BundleLimits(files=3))


@pytest.mark.parametrize("name", ["log 12:30.txt", "a\\b.txt", "Screenshot 9.41\u202fPM.png", "/".join("a" * 40)])
def test_names_that_devices_refuse_are_told_when_it_is_made(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"train.py": "", f"data/{name}": "x"})
    with pytest.raises(EdgeswarmError, match=r"^Devices would refuse the job's files: 'data/") as caught:
        make_bundle(tmp_path / "train.py", ["data"])
    assert caught.value.code is ErrorCode.JOB_INVALID


# --- hostile archives -------------------------------------------------------------------------------------------------


def archive(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as opened:  # type: ignore[call-overload]
        for member, content in members:
            member.size = len(content) if member.isreg() else 0
            opened.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry, b"content"


HOSTILE = {
    "absolute": archive(member("/tmp/edgeswarm-escaped")),
    "parent": archive(member("a/../../escaped")),
    "symbolic link": archive(member("link", tarfile.SYMTYPE, "/etc"), member("link/passwd")),
    "hard link": archive(member("link", tarfile.LNKTYPE, "/etc/passwd")),
    "device": archive(member("null", tarfile.CHRTYPE)),
    "fifo": archive(member("pipe", tarfile.FIFOTYPE)),
    "twice": archive(member("a"), member("a")),
    "twice in other words": archive(member("a"), member("./a")),
    "file as folder": archive(member("a"), member("a/b")),
    "folder as file": archive(member("a/b"), member("a")),
    "windows": archive(member("C:\\windows\\a")),
    "control": archive(member("a\nb")),
    "deep": archive(member("/".join(["a"] * 40))),
    "long": archive(member("a" * 300)),
    "empty": archive(member(".")),
    "large": archive(*[(tarfile.TarInfo(f"{n}"), bytes(300)) for n in range(5)]),
    "many": archive(*[(tarfile.TarInfo(f"{n}"), b"") for n in range(20)]),
    "compressed": archive(member("a"), mode="w:gz"),
    "no archive": b"hello" * 200,
    "cut off": archive((tarfile.TarInfo("a"), bytes(900)))[:1000],
    "nothing": b"",
}


@pytest.mark.parametrize("has_filter", [True, False], ids=["late python", "early python"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, has_filter: bool
) -> None:
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    with pytest.raises(EdgeswarmError) as caught:
        unpack_bundle(HOSTILE[kind], tmp_path / "target", limits=BundleLimits(total_bytes=1000, files=10, depth=8))
    assert caught.value.code is ErrorCode.BUNDLE_REFUSED
    assert not os.listdir(tmp_path)


def test_another_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="sha256"):
        unpack_bundle(archive(member("a")), tmp_path / "target", sha256="0" * 64)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_archive_is_refused_or_unpacked_inside(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(archive(member("a/b.py"), member("c.py")))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 1600))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("damaged")
    refused: EdgeswarmError | None = None
    try:
        unpack_bundle(damaged, folder / "target")
    except EdgeswarmError as error:
        refused = error
    assert os.listdir(folder) == ([] if refused else ["target"])
    assert refused is None or refused.code is ErrorCode.BUNDLE_REFUSED
