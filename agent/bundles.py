"""The job bundles that an agent keeps: archives under their sha256, and their files unpacked beside them.

<cache>/bundles/<sha256>.tar      as it came
<cache>/bundles/<sha256>/         unpacked, made when a job is prepared
<cache>/bundles/.<sha256>.<n>     on its way; never taken for a bundle
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from edgeswarm.bundle import DEFAULT_LIMITS, unpack_bundle
from edgeswarm.errors import EdgeswarmError, ErrorCode

LARGEST_BUNDLE_BYTES = DEFAULT_LIMITS.total_bytes + 16 * 1024**2  # and the archive's own headers
KEPT_BUNDLES = 5

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BundleStore:
    """Keeps the newest bundles; any thread may call. `folder` is made when the first one comes."""

    def __init__(self, folder: Path, *, device: str) -> None:
        self._folder = folder
        self._device = device
        self._numbers = itertools.count()
        self._clear_away_unfinished()

    def has(self, sha256: str) -> bool:
        return _is_sha256(sha256) and self._archive(sha256).is_file()

    def put(self, sha256: str, parts: Iterable[bytes]) -> int:
        """Keeps a bundle that comes in parts and gives its size in bytes. It is there whole or not at all.

        Raises: JOB_INVALID (too large, or not what its sha256 says), OUTPUT_FAILED (the disk refuses it).
        """
        if not _is_sha256(sha256):
            raise EdgeswarmError(
                ErrorCode.JOB_INVALID,
                f"A bundle came to {self._device} under {sha256[:80]!r}, which is no sha256.",
                "Use the same version of edgeswarm on both sides.",
            )
        temporary = self._folder / f".{sha256}.{os.getpid()}.{next(self._numbers)}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in it is the user's alone
            with temporary.open("wb") as file:
                size = self._copy(sha256, parts, file.write)
                file.flush()
                os.fsync(file.fileno())  # else it may be empty after a power cut
            os.replace(temporary, self._archive(sha256))
        except OSError as error:
            raise self._disk_refuses(error) from error
        finally:
            # A file system that may only be read says so before it looks for the file.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._prune(sha256)
        return size

    def unpacked(self, sha256: str) -> Path:
        """The folder with the bundle's files, unpacked now if it wasn't before.

        Raises: JOB_INVALID (it isn't here), BUNDLE_REFUSED (hostile or damaged), OUTPUT_FAILED (the disk refuses it).
        """
        if not self.has(sha256):
            raise EdgeswarmError(
                ErrorCode.JOB_INVALID,
                f"{self._device} doesn't have the bundle {sha256[:16]} of the job's files.",
                "Start the job again: the bundle is sent again then.",
            )
        archive, target = self._archive(sha256), self._folder / sha256
        with contextlib.suppress(OSError):  # of a disk that can only be read, since it broke say
            os.utime(archive)
        try:
            unpack_bundle(archive, target, sha256=sha256)
        except OSError as error:
            raise self._disk_refuses(error) from error
        except EdgeswarmError:
            archive.unlink(missing_ok=True)  # so that it is sent again
            raise
        return target

    def _copy(self, sha256: str, parts: Iterable[bytes], write: Callable[[bytes], object]) -> int:
        digest, size = hashlib.sha256(), 0
        for part in parts:
            size += len(part)
            if size > LARGEST_BUNDLE_BYTES:
                raise EdgeswarmError(
                    ErrorCode.JOB_INVALID,
                    f"The job's files are more than {LARGEST_BUNDLE_BYTES >> 20} MiB; {self._device} refused them.",
                    "Leave data sets out of `files`: data reaches the devices through the job's dataset.",
                )
            digest.update(part)
            write(part)
        if digest.hexdigest() != sha256:
            raise EdgeswarmError(
                ErrorCode.JOB_INVALID,
                f"The bundle that came to {self._device} is damaged: its sha256 is {digest.hexdigest()[:16]}, "
                f"not {sha256[:16]}.",
                "Start the job again.",
            )
        return size

    def _disk_refuses(self, error: OSError) -> EdgeswarmError:
        return EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"{self._device} can't keep the job's files in {self._folder}: {error.strerror or error}.",
            "Free space there, or let the agent's user write to that folder.",
        )

    def _clear_away_unfinished(self) -> None:
        """What a power cut or a kill left behind, of this folder's one agent."""
        with contextlib.suppress(OSError):
            for left in self._folder.glob(".*"):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink()

    def _prune(self, newest: str) -> None:
        """Drops all but the newest bundles (the last ones put or unpacked)."""
        archives = sorted(self._folder.glob("*.tar"), key=_modified_seconds, reverse=True)
        others = [archive for archive in archives if archive.stem != newest]
        for archive in others[KEPT_BUNDLES - 1 :]:
            archive.unlink(missing_ok=True)
            shutil.rmtree(archive.with_suffix(""), ignore_errors=True)

    def _archive(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.tar"


def _is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def _modified_seconds(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        # Another call has pruned it in between.
        return 0.0
