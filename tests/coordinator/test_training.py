"""The training's loop over a real folder of checkpoints. The workers are played: they say how good each evaluation is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeswarm.plan import Plan
from edgeswarm_coordinator import training
from edgeswarm_coordinator.evaluations import Evaluations
from edgeswarm_coordinator.events import BestKept, CheckpointWritten, EvaluationDone, Event, RoundDone
from edgeswarm_coordinator.progress import Progress
from edgeswarm_coordinator.round_history import RoundHistory
from edgeswarm_coordinator.segments import CHECKPOINT_TIME_FRACTION, Segment, Segments
from edgeswarm_coordinator.training import Training, Workers, is_over, no_move
from edgeswarm_coordinator.unfinished import UnfinishedTraining

from .checkpoints import PLAN, manifest, rounds, write_layers

PER_EPOCH = 5


class PlayedWorkers:
    """What JobRun is for the loop. losses: of the evaluations to come."""

    def __init__(self, losses: Sequence[float] = (), *, done: Iterable[RoundDone] = ()) -> None:
        self.losses = list(losses)
        self.history = RoundHistory(done)
        self.rounds_seconds = 0.5 * self.history.rounds
        self.segments: list[Segment] = []
        self.evaluations_seconds: list[float] = []

    def run(self, segment: Segment, *, evaluations_seconds: float) -> EvaluationDone | None:
        self.segments.append(segment)
        self.evaluations_seconds.append(evaluations_seconds)
        for done in rounds(segment.first_round, segment.end_round):
            self.history.add(done)
        self.rounds_seconds = 0.5 * self.history.rounds
        if not segment.evaluates:
            return None
        loss = self.losses.pop(0)
        return EvaluationDone(segment.end_round, segment.end_round // PER_EPOCH - 1, {"loss": loss}, 7, 0.1, False)


class Desk:
    """Makes trainings over one folder, and keeps what they tell."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        self.unfinished = UnfinishedTraining(folder / "out.unfinished")
        self.gathered: list[tuple[int, str]] = []

    def training(
        self,
        workers: PlayedWorkers,
        *,
        early_stop: int | None = None,
        move: Callable[[Workers, int], Workers | None] = no_move,
        **rules: Any,
    ) -> Training:
        before = self.unfinished.manifest
        return Training(
            workers=self.played(workers),
            segments=Segments(rounds=20, rounds_per_epoch=PER_EPOCH, **rules),
            unfinished=self.unfinished,
            manifest=manifest(0),
            evaluations=Evaluations("loss", True, before.evaluations if before is not None else ()),
            next_round=before.round if before is not None else 0,
            early_stop=early_stop,
            checkpoint_bytes=50_000,  # 30 ms at the first guess: due after a second and a half
            progress=Progress(self.events.append),
            move=move,
        )

    def played(self, run: PlayedWorkers, plan: Plan = PLAN) -> Workers:
        return Workers(plan, run, self.gather)  # type: ignore[arg-type]  # the one method and two fields that are needed

    def gather(self, round_number: int, folder: Path, *, with_optimizer: bool) -> int:
        self.gathered.append((round_number, "all" if with_optimizer else "weights"))
        write_layers(folder, round_number)
        return 1234

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.unfinished.begin()
    return desk


def test_short_trainings_are_gathered_once_at_their_end(desk: Desk) -> None:
    workers = PlayedWorkers()
    desk.training(workers).to_the_end()
    assert desk.gathered == [(20, "all")]
    assert [done.round for done in desk.unfinished.rounds()] == list(range(20))
    (written,) = desk.told(CheckpointWritten)
    assert (written.round, written.bytes, written.folder) == (20, 1234, desk.unfinished.round_folder(20))


def test_evaluations_to_come_are_taken_to_last_as_long_as_the_last_one(desk: Desk) -> None:
    workers = PlayedWorkers([3.0, 1.0, 2.0, 1.5])
    desk.training(workers, evaluate_every=1, checkpoint_every=10).to_the_end()
    assert workers.evaluations_seconds == pytest.approx([0.0, 0.3, 0.2, 0.1])


def test_every_better_evaluation_is_kept(desk: Desk) -> None:
    desk.training(PlayedWorkers([3.0, 1.0, 2.0, 1.5]), evaluate_every=1).to_the_end()
    assert desk.gathered == [(5, "weights"), (10, "weights"), (20, "all")]
    assert [(kept.round, kept.bytes) for kept in desk.told(BestKept)] == [(5, 1234), (10, 1234)]
    assert [evaluation.best for evaluation in desk.told(EvaluationDone)] == [True, True, False, False]
    found = desk.unfinished.manifest
    assert found is not None
    assert found.best is not None
    assert (found.round, found.best.round) == (20, 10)
    assert {path.name for path in desk.unfinished.folder.glob("*-0*")} == {"best-00000010", "round-00000020"}


def test_a_checkpoint_that_is_due_has_the_best_weights_too(desk: Desk) -> None:
    desk.training(PlayedWorkers([3.0, 1.0, 2.0, 1.5]), evaluate_every=1, checkpoint_every=10).to_the_end()
    assert desk.gathered == [(5, "weights"), (10, "all"), (20, "all")]
    assert {path.name for path in desk.unfinished.folder.glob("*-0*")} == {"round-00000010", "round-00000020"}


def test_it_stops_when_nothing_gets_better(desk: Desk) -> None:
    training = desk.training(PlayedWorkers([1.0, 2.0, 3.0, 0.5]), evaluate_every=1, early_stop=2)
    training.to_the_end()
    assert training.over
    assert training.next_round == 15
    assert desk.gathered == [(5, "weights"), (15, "all")]


def test_a_resumed_one_counts_on(desk: Desk) -> None:
    with pytest.raises(IndexError):  # nobody says how good the third one is: the workers are gone
        desk.training(PlayedWorkers([1.0, 2.0]), evaluate_every=1, checkpoint_every=5, early_stop=2).to_the_end()
    desk.unfinished.close()
    desk.unfinished.resume()
    rest = PlayedWorkers([3.0], done=desk.unfinished.rounds())
    desk.training(rest, evaluate_every=1, checkpoint_every=5, early_stop=2).to_the_end()
    assert [segment.first_round for segment in rest.segments] == [10]
    assert [done.round for done in desk.unfinished.rounds()] == list(range(15))
    document = json.loads((desk.unfinished.folder / "manifest.json").read_text())
    assert [evaluation["round"] for evaluation in document["evaluations"]] == [5, 10, 15]
    assert document["rounds_seconds"] == 7.5


def test_one_slow_checkpoint_puts_off_no_other_for_hours(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seconds of the last three; of two by the quicker one."""
    now, taken = 0.0, iter((2.0, 600.0, 3.0, 4.0))
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now))
    gather = desk.gather

    def slowly(round_number: int, folder: Path, *, with_optimizer: bool) -> int:
        nonlocal now
        now += next(taken)
        return gather(round_number, folder, with_optimizer=with_optimizer)

    monkeypatch.setattr(desk, "gather", slowly)
    made = desk.training(PlayedWorkers(), checkpoint_every=5)
    paces = []
    while made._segment_and_more():
        paces.append(made._pace.checkpoint_seconds)
    assert paces == [2.0, 2.0, 3.0]
    assert made._pace.time_fraction == CHECKPOINT_TIME_FRACTION, "only the first one comes sooner"


def test_when_a_training_is_over() -> None:
    bad = Evaluations("loss", True)
    for index, loss in enumerate((1.0, 2.0, 3.0)):
        bad = bad.with_new(EvaluationDone(index + 1, index, {"loss": loss}, 1, 0.1, False))
    for early_stop, next_round, over in ((None, 3, False), (2, 3, True), (3, 3, False), (None, 20, True)):
        assert is_over(bad, next_round=next_round, rounds=20, early_stop=early_stop) is over


def test_a_move_is_asked_for_at_every_look_and_the_next_checkpoint_has_its_plan(desk: Desk) -> None:
    first, second = PlayedWorkers(), PlayedWorkers()
    asked: list[tuple[Workers, int]] = []
    moved_plan = replace(PLAN, planner="moved")

    def move(workers: Workers, next_round: int) -> Workers | None:
        asked.append((workers, next_round))
        if len(asked) > 1:
            return None
        second.history = first.history
        return desk.played(second, moved_plan)

    training = desk.training(first, move=move, looks_from=0)
    training.to_the_end()
    assert [next_round for _, next_round in asked] == [6, 12]
    assert asked[1][0] is training.workers
    assert [segment.end_round for segment in first.segments] == [5, 6]
    assert second.segments[0].first_round == 6
    assert [done.round for done in desk.unfinished.rounds()] == list(range(20))
    assert desk.unfinished.manifest is not None
    assert desk.unfinished.manifest.plan == moved_plan


@pytest.mark.parametrize(("looks_from", "looks"), [(13, [19]), (14, [])])
def test_nothing_is_moved_once_all_is_done(looks_from: int, looks: list[int], desk: Desk) -> None:
    """Six rounds after the beginning: one before the end, or at the end, where there is nothing left to do."""
    asked: list[int] = []

    def move(workers: Workers, next_round: int) -> None:
        asked.append(next_round)

    desk.training(PlayedWorkers(), move=move, looks_from=looks_from).to_the_end()
    assert asked == looks
    assert len([*desk.unfinished.rounds()]) == 20
