"""The folder of a training that isn't finished: its checkpoints, until the result is written.

    edgeswarm-out-job.unfinished/
      manifest.json                       which round is the checkpoint's, and what has to be the same for it to go on
      rounds.jsonl                        the rounds so far
      round-00000184/layer-0.safetensors  the last checkpoint
      best-00000120/...                   the layers of the best evaluation before it, without the optimizer's state; in a
                                          round's folder where that was a checkpoint, too
      best-00000240/...                   likewise, of a better one since then

A checkpoint is there when the manifest names it: its folder is written under another name, moved whole, and the manifest is
replaced last. Whatever ends the process, the manifest in force names folders that are whole. A training that goes on does so
from the manifest's round: what was better since then is trained once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.synced_files import sync_folder, write_synced

from .events import RoundDone
from .manifest import MANIFEST_NAME, Manifest, manifest_from_text, unreadable
from .output_folder import is_there, way_to_another_disk
from .planner.units import readable_bytes
from .rounds_file import ROUNDS_NAME, append_rounds, read_lines, read_rounds


class UnfinishedTraining:
    """One such folder. From `begin` or `resume` to `close` it is held by this process alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest: Manifest | None = None
        self._lock: int | None = None

    def check_absent(self) -> None:
        """For a new training. Raises EdgeswarmError (OUTPUT_EXISTS) that says what lies there and how to go on."""
        if not is_there(self.folder):
            return
        try:
            os.close(_locked(self.folder))
        except EdgeswarmError as at_work:
            raise EdgeswarmError(
                ErrorCode.OUTPUT_EXISTS,
                at_work.message,
                "`edgeswarm status` says how far it is, `edgeswarm stop` stops it; or choose another folder with --output.",
            ) from at_work
        except OSError:
            pass  # no folder, or none that we may look into
        try:
            manifest = _read_manifest(self.folder)
            holds = "without a checkpoint" if manifest is None else f"after round {manifest.round} of {manifest.rounds}"
        except EdgeswarmError:
            holds = "that can't be read"
        raise EdgeswarmError(
            ErrorCode.OUTPUT_EXISTS,
            f"{self.folder} holds an unfinished training {holds}.",
            "Go on with it: --resume. Or move that folder away to train from the beginning.",
        )

    def begin(self) -> None:
        """Make the folder of a new training. Raises EdgeswarmError: OUTPUT_EXISTS, OUTPUT_FAILED."""
        self.check_absent()
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir()
            self._lock = _locked(self.folder)
        except OSError as error:
            raise EdgeswarmError(
                ErrorCode.OUTPUT_FAILED,
                f"The folder for checkpoints can't be made: {self.folder}: {error.strerror or error}.",
                "Choose another place with --output.",
            ) from error

    def resume(self) -> None:
        """Take the one that is there. Raises EdgeswarmError (CHECKPOINT): none is there, it is in use, or it can't be read."""
        if not (is_there(self.folder) and self.folder.is_dir()):
            raise EdgeswarmError(
                ErrorCode.CHECKPOINT,
                f"There is no unfinished training to resume: {self.folder.absolute()} doesn't exist.",
                "Type it in the folder where the training was begun, with the --output of then where one was given; "
                "without --resume it trains from the start.",
            )
        try:
            lock = _locked(self.folder)
        except OSError as error:
            raise unreadable(self.folder / MANIFEST_NAME, str(error.strerror or error)) from error
        try:
            self._manifest = _read_manifest(self.folder)
            if self._manifest is None and [*self.folder.glob("round-*")]:
                # It isn't ours to begin anew over them: they may be a copy of which the rest is missing.
                raise EdgeswarmError(
                    ErrorCode.CHECKPOINT,
                    f"{self.folder} has the layers of a checkpoint and no {MANIFEST_NAME}, which says what they are.",
                    "Where it is a copy, copy all of it again; else move it away and train without --resume.",
                )
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    @property
    def held(self) -> bool:
        """Whether it is ours now."""
        return self._lock is not None

    @property
    def manifest(self) -> Manifest | None:
        """Of the checkpoint in force; None before there is one."""
        return self._manifest

    def round_folder(self, round_number: int) -> Path:
        """The folder of a checkpoint's layers."""
        return self.folder / f"round-{round_number:08d}"

    def layers_folder(self, round_number: int) -> Path:
        """Where the layers of this round lie, of a checkpoint or of the best evaluation alone."""
        checkpoint = self.round_folder(round_number)
        return checkpoint if checkpoint.is_dir() else self._best_folder(round_number)

    def _best_folder(self, round_number: int) -> Path:
        return self.folder / f"best-{round_number:08d}"

    def rounds(self) -> Iterator[RoundDone]:
        """The rounds that the checkpoint has behind it, read one by one. Raises EdgeswarmError (CHECKPOINT)."""
        manifest = self._manifest
        if manifest is None:
            return iter(())
        return read_rounds(self.folder / ROUNDS_NAME, end_bytes=manifest.rounds_bytes, rounds=manifest.rounds)

    def round_lines(self) -> Iterator[bytes]:
        """The same as JSON, a line for each round. Raises EdgeswarmError (CHECKPOINT)."""
        manifest = self._manifest
        return iter(()) if manifest is None else read_lines(self.folder / ROUNDS_NAME, end_bytes=manifest.rounds_bytes)

    def write(
        self,
        manifest: Manifest,
        *,
        new_rounds: Sequence[RoundDone],
        fill: Callable[[Path], None],
        needed_bytes: int,
    ) -> None:
        """Make a new checkpoint; the one before it is removed then, but for that of the best evaluation.

        manifest: without rounds_bytes. new_rounds: since the checkpoint before. fill: writes the layer files into the folder
        that it is given. needed_bytes: about what these take, for the message.
        What fails leaves the checkpoint before as it is. Raises EdgeswarmError (OUTPUT_FAILED), and what `fill` raises.
        """
        old = self._manifest
        assert old is None or old.round != manifest.round, "the checkpoint in force is never written again"
        place = self.round_folder(manifest.round)
        try:
            with self._telling_of_the_disk(needed_bytes):
                _fill_whole(place, fill)
                rounds_bytes = append_rounds(
                    self.folder / ROUNDS_NAME, new_rounds, end_bytes=old.rounds_bytes if old is not None else 0
                )
                manifest = dataclasses.replace(manifest, rounds_bytes=rounds_bytes)
                text = json.dumps(manifest.to_json(), indent=1)
                write_synced(self.folder / f".{MANIFEST_NAME}", [text.encode()])
                sync_folder(self.folder)
                (self.folder / f".{MANIFEST_NAME}").replace(self.folder / MANIFEST_NAME)
                self._manifest = manifest
                sync_folder(self.folder)
        except BaseException:
            if self._manifest is not manifest:
                shutil.rmtree(place, ignore_errors=True)
            raise
        self._remove_what_is_not_named()

    def keep_best(self, round_number: int, *, fill: Callable[[Path], None], needed_bytes: int) -> None:
        """Keep the layers of the best evaluation so far; those of one since the last checkpoint are removed then.

        fill, needed_bytes, and what is raised: as `write` has it.
        """
        place = self._best_folder(round_number)
        with self._telling_of_the_disk(needed_bytes):
            _fill_whole(place, fill)
            sync_folder(self.folder)
        self._remove_what_is_not_named(place)

    def remove(self) -> None:
        """The result is written: nothing of this is needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._manifest = None
        self.close()

    def close(self) -> None:
        """Let go of the folder. One without a checkpoint is removed."""
        if self._lock is None:
            return
        if self._manifest is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = None

    def _remove_what_is_not_named(self, *kept: Path) -> None:
        """By the manifest, or kept beside what it names."""
        named = {*kept}
        if self._manifest is not None:
            named.add(self.round_folder(self._manifest.round))
            if self._manifest.best is not None:
                named.add(self.layers_folder(self._manifest.best.round))
        for path in _layer_folders(self.folder):
            if path not in named:
                shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _telling_of_the_disk(self, needed_bytes: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EdgeswarmError(
                ErrorCode.OUTPUT_FAILED,
                f"The checkpoint can't be written to {self.folder}: {error.strerror or error}; "
                f"it takes about {readable_bytes(needed_bytes)}.",
                "Free that much there, or see that the folder can be written to.",
            ) from error


def check_room(folder: Path, needed_bytes: int) -> None:
    """Whether so much can be written into the folder, beside what lies in it by now and is replaced.

    Raises EdgeswarmError (OUTPUT_FAILED) that says how much is missing.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    lying_there = (file for layers in _layer_folders(folder) for file in layers.glob("*"))
    free_bytes = shutil.disk_usage(there).free + sum(file.stat().st_size for file in lying_there)
    if free_bytes < needed_bytes:
        elsewhere = way_to_another_disk(folder) or "choose another disk with --output"
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The disk of {there} has too little room: checkpoints and result of this job take up to "
            f"{readable_bytes(needed_bytes)}, {readable_bytes(needed_bytes - free_bytes)} more than is free.",
            f"Free that much there, or {elsewhere}.",
        )


def _layer_folders(folder: Path) -> list[Path]:
    """Those of rounds, whole ones or not."""
    return [*folder.glob("*round-*"), *folder.glob("*best-*")]


def _fill_whole(place: Path, fill: Callable[[Path], None]) -> None:
    """Makes the folder, whole or not at all. Raises OSError, and what `fill` raises."""
    unfinished = place.with_name(f".{place.name}")
    for path in (unfinished, place):  # of a command that was killed
        shutil.rmtree(path, ignore_errors=True)
    try:
        unfinished.mkdir()
        fill(unfinished)
        sync_folder(unfinished)
        unfinished.rename(place)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _locked(folder: Path) -> int:
    """A file descriptor that holds the folder for this process, however it ends. Raises OSError, CHECKPOINT."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise EdgeswarmError(
            ErrorCode.CHECKPOINT,
            f"Another `edgeswarm train` is at work on {folder}.",
            "Wait until it ends, or stop it.",
        ) from error
    except OSError:
        pass  # a network disk that has no locks; then nobody is kept out
    return lock


def _read_manifest(folder: Path) -> Manifest | None:
    path = folder / MANIFEST_NAME
    try:
        return manifest_from_text(path.read_text(), path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, str(error)) from error
