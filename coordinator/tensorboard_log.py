"""What a training tells, as TensorBoard's event files: `edgeswarm train --tensorboard FOLDER`.

    loss/training  loss/evaluation            metric/NAME                      of evaluations
    speed/samples_per_second                  optimizer/gradient_norm          where the job clips
    use/DEVICE    fraction of the round       optimizer/learning_rate_factor   where the job has a schedule
                  that it computes

Each against the rounds that were done by then. A training that goes on in the same folder goes on in the same curves.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgeswarm.errors import EdgeswarmError, ErrorCode, said_by
from edgeswarm.job import LOSS

from .events import EvaluationDone, Event, Listener, ModelReady, RoundDone, Warning

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FLUSH_SECONDS = 10


@contextlib.contextmanager
def logging_to_tensorboard(folder: Path | None, listener: Listener) -> Iterator[Listener]:
    """The listener, beside which everything is written to `folder`; the listener itself where there is none.

    Raises EdgeswarmError at once: MISSING_EXTRA, or OUTPUT_FAILED where nothing can be written there. What fails later is a
    Warning, and the end of the log.
    """
    if folder is None:
        yield listener
        return
    if importlib.util.find_spec("tensorboard") is None:
        raise EdgeswarmError(
            ErrorCode.MISSING_EXTRA,
            "--tensorboard needs the package tensorboard, which is not installed.",
            "Install it: pip install 'edgeswarm[tensorboard]'.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"TensorBoard's files can't be written to {folder}: {error.strerror or error}.",
            "Choose another folder with --tensorboard.",
        ) from error
    log = _Log(folder, listener)
    try:
        yield log
    finally:
        log.close()


class _Log:
    """A listener that writes what it hears and passes it on."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        self._folder = folder
        self._listener = listener
        self._writer: SummaryWriter | None = None
        self._failed = False

    def __call__(self, event: Event) -> None:
        self._listener(event)
        if self._failed:
            return
        try:
            self._write(event)
        # A disk that is full, a file that an earlier failure closed, an installation that doesn't import: the training goes on.
        except Exception as error:
            self._failed = True
            self._listener(Warning(f"TensorBoard's files in {self._folder} end here: {said_by(error)}."))

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, ValueError):  # the training is over, and a warning would come too late
                self._writer.close()

    def _write(self, event: Event) -> None:
        if isinstance(event, ModelReady):
            # Half a second, which would otherwise hold up what follows the first round.
            import torch.utils.tensorboard  # noqa: F401
        elif isinstance(event, RoundDone):
            self._write_round(event, step=event.round + 1)
        elif isinstance(event, EvaluationDone):
            for name, value in event.metrics.items():
                self._add("loss/evaluation" if name == LOSS else f"metric/{name}", value, step=event.round)

    def _write_round(self, done: RoundDone, *, step: int) -> None:
        self._add("loss/training", done.loss, step=step)
        self._add("optimizer/gradient_norm", done.gradient_norm, step=step)
        self._add("optimizer/learning_rate_factor", done.learning_rate_factor, step=step)
        if done.seconds > 0:
            self._add("speed/samples_per_second", done.samples / done.seconds, step=step)
        for device, parts in done.parts.items():
            self._add(f"use/{device}", parts.use, step=step)

    def _add(self, tag: str, value: float | None, *, step: int) -> None:
        if value is None:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # What another training wrote from this step on, which was not saved in a checkpoint, is hidden.
            self._writer = SummaryWriter(str(self._folder), purge_step=step, flush_secs=FLUSH_SECONDS)
        self._writer.add_scalar(tag, value, step)
