"""A training from its first round to its last checkpoint: segment after segment, with what is done between two of them.

┌─> rounds ── evaluation ── best? enough? ── layers to the disk, where due ── shares by speed, where that pays ─┐
└──────────────────────────────────────────────────────────────────────────────────────────────────────────────┘

The devices wait while layers come. Of the best evaluation so far only what it computed with is kept: of most optimizers a third
of what a checkpoint has.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from edgeswarm.plan import Plan

from .evaluations import Evaluations
from .events import GATHER, TRAIN, BestKept, CheckpointWritten
from .job_run import JobRun
from .manifest import Manifest
from .progress import Progress
from .segments import Pace, Segments
from .unfinished import UnfinishedTraining


def is_over(evaluations: Evaluations, *, next_round: int, rounds: int, early_stop: int | None) -> bool:
    """Whether no round is left to train: all are done, or so many evaluations as `early_stop` got no better."""
    return next_round >= rounds or (early_stop is not None and evaluations.without_better >= early_stop)


class Gather(Protocol):
    """Writes every layer, at the beginning of a round, into a folder; the bytes."""

    def __call__(self, round_number: int, folder: Path, *, with_optimizer: bool) -> int: ...


@dataclass(frozen=True)
class Workers:
    """Those that follow one plan, and how their layers come here."""

    plan: Plan
    run: JobRun
    gather: Gather


def no_move(workers: Workers, next_round: int) -> None:
    """For a training that keeps its plan."""


@dataclass
class Training:
    """What it works with, and how far it is.

    manifest: of the checkpoint that comes next, but for what changes from one to the next. next_round: the first that isn't
    done. early_stop: evaluations without a better one that end the training; None for never. checkpoint_bytes: about what
    one will be. move: the workers under another plan from the next round on; None where they go on as they are.
    """

    workers: Workers
    segments: Segments
    unfinished: UnfinishedTraining
    manifest: Manifest
    evaluations: Evaluations
    next_round: int
    early_stop: int | None
    checkpoint_bytes: int
    progress: Progress
    move: Callable[[Workers, int], Workers | None] = no_move

    def __post_init__(self) -> None:
        self._pace = Pace.at_the_beginning(checkpoint_bytes=self.checkpoint_bytes, layers=self.manifest.layers)
        # Of the last ones: one that met a slow moment of the network puts off no other for hours.
        self._checkpoint_seconds: list[float] = []
        self._checkpoint_at = time.monotonic()

    @property
    def over(self) -> bool:
        return is_over(
            self.evaluations, next_round=self.next_round, rounds=self.segments.rounds, early_stop=self.early_stop
        )

    def to_the_end(self) -> None:
        """Every round, and a checkpoint at their end. Raises EdgeswarmError."""
        with self.progress.step(TRAIN, f"{self.segments.rounds - self.next_round} rounds"):
            while self._segment_and_more():
                pass
        with self.progress.step(GATHER):
            self._checkpoint()

    def _segment_and_more(self) -> bool:
        """One segment, and what comes after it where it is due and not the last; whether the training goes on."""
        segment = self.segments.after(self.next_round, self._pace)
        began = time.monotonic()
        evaluation = self.workers.run.run(segment, evaluations_seconds=self._evaluations_seconds())
        now = time.monotonic()
        self.next_round = segment.end_round
        self._pace = replace(
            self._pace,
            round_seconds=(now - began) / (segment.end_round - segment.first_round),
            since_checkpoint_seconds=now - self._checkpoint_at,
        )
        best = False
        if evaluation is not None:
            self.evaluations = self.evaluations.with_new(evaluation)
            self.progress.tell(self.evaluations.done[-1])
            best = self.evaluations.done[-1].best
        if self.over:
            return False
        if self.segments.checkpoint_is_due(self.next_round, self._pace):
            self._checkpoint()
        elif best:
            self._keep_best()
        if self.segments.looks_at(self.next_round):
            self.workers = self.move(self.workers, self.next_round) or self.workers
        return True

    def _evaluations_seconds(self) -> float:
        """Of all that are still to come, by the last one; 0 before it."""
        seconds = self.evaluations.done[-1].seconds if self.evaluations.done else 0.0
        return self.segments.evaluations_from(self.next_round) * seconds

    def _keep_best(self) -> None:
        began = time.monotonic()
        written_bytes = 0

        def fill(folder: Path) -> None:
            nonlocal written_bytes
            written_bytes = self.workers.gather(self.next_round, folder, with_optimizer=False)

        self.unfinished.keep_best(self.next_round, fill=fill, needed_bytes=self.checkpoint_bytes)
        self.progress.tell(BestKept(self.next_round, written_bytes, time.monotonic() - began))

    def _checkpoint(self) -> None:
        began = time.monotonic()
        run = self.workers.run
        written_bytes = 0

        def fill(folder: Path) -> None:
            nonlocal written_bytes
            written_bytes = self.workers.gather(self.next_round, folder, with_optimizer=True)

        self.unfinished.write(
            replace(
                self.manifest,
                round=self.next_round,
                evaluations=self.evaluations.done,
                rounds_seconds=run.rounds_seconds,
                plan=self.workers.plan,
            ),
            new_rounds=run.history.unwritten,
            fill=fill,
            needed_bytes=self.checkpoint_bytes,
        )
        run.history.all_written()
        self._checkpoint_at = time.monotonic()
        seconds = self._checkpoint_at - began
        self._checkpoint_seconds = [*self._checkpoint_seconds, seconds][-3:]
        usual = statistics.median_low(self._checkpoint_seconds)
        self._pace = Pace(usual, round_seconds=self._pace.round_seconds)
        folder = self.unfinished.round_folder(self.next_round)
        self.progress.tell(CheckpointWritten(self.next_round, folder, written_bytes, seconds))
