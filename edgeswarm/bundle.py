"""The bundle: the user's files as one archive that every device of a job gets, named by its sha256.

    train.py            the job file
    my_model.py         what it imports from its own folder, and what that imports
    augment/__init__.py
    words/vocabulary.txt  `files`

An uncompressed tar: source files are small, and what isn't compressed can't be a bomb. The imports are found by reading
the sources, so that imports inside of functions count too and nothing has to run; what only runs can tell
(importlib.import_module of a computed name) belongs in the job's `files`.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .errors import EdgeswarmError, ErrorCode


@dataclass(frozen=True)
class Bundle:
    """archive: the tar's bytes. sha256: of them, hex. job_file: the job file's name inside."""

    archive: bytes
    sha256: str
    job_file: str


@dataclass(frozen=True)
class BundleLimits:
    """What a bundle may hold. total_bytes: of its files together. depth: parts of a path."""

    total_bytes: int = 512 * 1024**2
    files: int = 10_000
    depth: int = 32


DEFAULT_LIMITS = BundleLimits()


def make_bundle(job_path: str | Path, files: Sequence[str] = (), *, limits: BundleLimits = DEFAULT_LIMITS) -> Bundle:
    """The bundle of a job file: itself, the modules that it imports from its own folder, and `files`.

    files: paths relative to the job file's folder; a folder stands for all that is in it. The same files give the same
    bytes. Raises EdgeswarmError: JOB_FILE for a file that can't be read, JOB_INVALID for `files` outside of the folder.
    """
    path = Path(job_path).resolve()
    folder = path.parent
    members = {name: folder / name for name in _imported_files(path)}
    for file in files:
        members |= _named_files(folder, file)
    for name in members:
        if (why := _wrong_path(name, limits)) is not None:
            raise EdgeswarmError(
                ErrorCode.JOB_INVALID,
                f"Devices would refuse the job's files: {name[:100]!r} {why}.",
                "Rename that file, or leave it out of `files`.",
            )
    total_bytes = sum(member.stat().st_size for member in members.values())
    if len(members) > limits.files or total_bytes > limits.total_bytes:
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"The job's files are too much for a bundle: {len(members)} files, {total_bytes / 1e6:.0f} MB "
            f"(at most {limits.files} files, {limits.total_bytes / 1e6:.0f} MB).",
            "Leave data out of `files`: the dataset is served from this machine, or lies on each device.",
        )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(members):
            content = _read(members[name])
            entry = tarfile.TarInfo(name)  # no owner, no times: the same files give the same bytes
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    data = buffer.getvalue()
    return Bundle(data, hashlib.sha256(data).hexdigest(), path.name)


def unpack_bundle(
    archive: bytes | bytearray | Path,
    target: Path,
    *,
    sha256: str | None = None,
    limits: BundleLimits = DEFAULT_LIMITS,
) -> None:
    """Unpack an archive as the folder `target`, whole or not at all; a folder that is there already stays as it is.

    So `target` carries the bundle's hash in its name. sha256: what the archive must hash to.
    Raises EdgeswarmError (BUNDLE_REFUSED) for an archive that holds anything but plain files and folders with plain
    relative paths within the limits, or OSError where it can't be written.
    """
    if target.is_dir():
        return
    data = archive.read_bytes() if isinstance(archive, Path) else bytes(archive)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise _refused("its content doesn't match its sha256")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name[:32]}.", dir=target.parent))
    try:
        try:
            # "r:" takes no compression, whatever the archive says.
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as opened:
                _extract(opened, unfinished, limits)
        except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:  # what tarfile makes of wild bytes
            raise _refused(f"it is no sound tar archive ({error})") from error
        try:
            unfinished.rename(target)
        except OSError:
            if not target.is_dir():  # else another one unpacked the same bundle meanwhile
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _extract(archive: tarfile.TarFile, folder: Path, limits: BundleLimits) -> None:
    """Write an archive's members, each checked first, by hand: `extract` would also set owners, modes and links."""
    total_bytes = 0
    seen: set[PurePosixPath] = set()
    for count, member in enumerate(archive, start=1):
        path = _checked_path(member, limits)
        total_bytes += member.size
        if count > limits.files or total_bytes > limits.total_bytes:
            raise _refused(f"it holds more than {limits.files} files or {limits.total_bytes} bytes")
        if path in seen:
            raise _refused(f"it holds {member.name!r} twice")
        seen.add(path)
        place = folder / path
        try:
            # A second opinion, where this Python has it (late patch releases of 3.10 and 3.11 do).
            if hasattr(tarfile, "data_filter"):
                tarfile.data_filter(member, str(folder))
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None, "a plain file has content"
            with place.open("xb") as file:
                shutil.copyfileobj(content, file)
                # Before the folder gets its name: with that it is whole, after a power cut too.
                file.flush()
                os.fsync(file.fileno())
        except (FileExistsError, NotADirectoryError) as error:
            raise _refused(f"{member.name!r} is a file and a folder at once") from error


def _checked_path(member: tarfile.TarInfo, limits: BundleLimits) -> PurePosixPath:
    name = member.name
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise _refused(f"{name[:100]!r} is neither a plain file nor a folder")
    if (why := _wrong_path(name, limits)) is not None:
        raise _refused(f"{name[:100]!r} {why}")
    if member.size < 0 or member.size > limits.total_bytes:
        raise _refused(f"{name[:100]!r} is too large")
    return PurePosixPath(name)


def _wrong_path(name: str, limits: BundleLimits) -> str | None:
    """What is wrong with a member's name; None for nothing."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        return "leads out of the folder"
    if any(character in name for character in "\\:\0") or not name.isprintable():
        return "has characters that mean something else elsewhere"
    if len(path.parts) > limits.depth or any(len(part.encode(errors="surrogateescape")) > 255 for part in path.parts):
        return "is too long or too deep"
    return None


def _refused(why: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.BUNDLE_REFUSED, f"The job's bundle was refused: {why}.", "Send the job again with `edgeswarm train`."
    )


# --- what belongs in it -----------------------------------------------------------------------------------------------


def _imported_files(job_path: Path) -> list[str]:
    """The job file and every file of its folder that it imports, directly or not; paths relative to the folder."""
    folder = job_path.parent
    found: list[str] = []
    to_read = [job_path.name]
    while to_read:
        name = to_read.pop()
        if name in found:
            continue
        found.append(name)
        if name.endswith(".py"):
            to_read += _imports_of(folder, name)
    return found


def _imports_of(folder: Path, name: str) -> Iterator[str]:
    source = _read(folder / name)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise EdgeswarmError(ErrorCode.JOB_FILE, f"{name}{line}: {error}.", "Correct the line.") from error
    package = PurePosixPath(name).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(folder, tuple(alias.name.split(".")))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from _module_files(folder, module)
            for alias in node.names:
                if alias.name == "*":
                    continue
                yield from _module_files(folder, (*module, alias.name))


def _module_files(folder: Path, module: tuple[str, ...]) -> Iterator[str]:
    """The files that `import a.b.c` runs, where they lie in the folder: a/__init__.py, a/b/__init__.py, a/b/c.py."""
    for length in range(1, len(module) + 1):
        path = PurePosixPath(*module[:length])
        if (folder / path / "__init__.py").is_file():
            yield str(path / "__init__.py")
        elif (folder / path).with_suffix(".py").is_file():
            yield str(path.with_suffix(".py"))
        elif not (folder / path).is_dir():
            return


def _named_files(folder: Path, file: str) -> dict[str, Path]:
    """The files that an entry of the job's `files` stands for, by their name in the bundle."""
    path = folder / file
    if ".." in path.parts or not path.is_relative_to(folder):
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"files: {file!r} lies outside of the job file's folder {folder}.",
            "Put it, or a link to it, into that folder.",
        )
    if path.is_dir():
        return {member.relative_to(folder).as_posix(): member for member in _files_below(path)}
    if not path.is_file():
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID, f"files: there is no {file!r} in {folder}.", "Correct the job's `files`."
        )
    return {path.relative_to(folder).as_posix(): path}


def _files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files of a folder and of those in it, links to folders followed but where they lead back above themselves.

    above: where the folders that it was come to through really are.
    """
    try:
        here = folder.resolve()
        if here in above or _leads_back(folder):
            return
        for path in sorted(folder.iterdir()):
            if path.is_file():
                yield path
            elif path.is_dir() and path.name != "__pycache__":
                yield from _files_below(path, (*above, here))
    except OSError as error:
        raise _unreadable(folder, error) from error


def _leads_back(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.JOB_FILE, f"{path} can't be read: {error.strerror or error}.", "Check the path and its rights."
    )
