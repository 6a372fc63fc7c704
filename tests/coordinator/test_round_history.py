"""What a training keeps of its rounds."""

from __future__ import annotations

import dataclasses
import math

from edgeswarm_coordinator.round_history import MOST_RECENT, RoundHistory

from .checkpoints import rounds


def test_sums_are_those_of_all_rounds() -> None:
    history = RoundHistory(rounds(0, 4))
    for done in rounds(4, 12):
        history.add(done)
    assert (history.rounds, history.samples, history.last_loss) == (12, 12 * 12, 1 / 12)
    first, later = history.first_epoch, history.later_epochs
    assert (first.samples, first.seconds, later.samples, later.seconds) == (5 * 12, 2.5, 7 * 12, 3.5)


def test_a_loss_that_is_no_number_is_counted() -> None:
    (done,) = rounds(0, 1)
    history = RoundHistory([done, dataclasses.replace(done, loss=math.nan), dataclasses.replace(done, loss=math.inf)])
    assert history.without_a_loss == 2
    assert math.isinf(history.last_loss)
    assert math.isnan(RoundHistory().last_loss)


def test_those_since_the_last_checkpoint_are_kept_whole() -> None:
    history = RoundHistory(rounds(0, 4))
    assert history.unwritten == []
    for done in rounds(4, 6):
        history.add(done)
    assert history.unwritten == rounds(4, 6)
    history.all_written()
    history.add(*rounds(6, 7))
    assert history.unwritten == rounds(6, 7)
    assert [*history.recent] == rounds(0, 7)


def test_of_many_rounds_the_last_ones_are_kept() -> None:
    history = RoundHistory(rounds(0, 3 * MOST_RECENT))
    assert [*history.recent] == rounds(2 * MOST_RECENT, 3 * MOST_RECENT)
    assert history.rounds == 3 * MOST_RECENT
