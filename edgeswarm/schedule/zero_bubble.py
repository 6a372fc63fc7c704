"""Zero bubble: 1F1B whose backward has two parts, of which the second fills the gaps (ZB-H1 of Qi et al., 2023)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from .policy import Action, ActionKind, checked_round


class ZeroBubble:
    """Forwards and backwards by turns as in 1F1B; gradients of weights where neither can run.

    The stage before waits for a backward, which tells it the gradients of what it sent, and nobody for those of weights. At most
    `in_flight` micro-batches are between their forward and the gradients of their weights: so no more waits in memory than with
    1F1B, and where no further forward may run, weights make room for one.

    Three stages with K = 5, 4, 3 and four micro-batches (F forward, B backward, W weights, digits the micro-batch):

        stage 0   F0 F1 F2 F3 .. B0 W0 B1 W1 B2 W2 .. B3 W3
        stage 1      F0 F1 F2 B0 F3 B1 W0 B2 W1 W2 B3 W3
        stage 2         F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

    Forwards, backwards and weights each run in index order, so that sums of gradients are reproducible.
    `micro_batches` names the indices in which this replica has samples; a ragged round may leave some out.
    """

    def __init__(self, micro_batches: Sequence[int], *, in_flight: int) -> None:
        self._micro_batches = checked_round(micro_batches, in_flight=in_flight)
        self._actions = _actions(self._micro_batches)
        self._in_flight = in_flight
        self._forwards = 0
        self._backwards = 0
        self._weights = 0
        self._backward_was_last = False
        self._awaited = self._work_out_awaited()

    @property
    def is_done(self) -> bool:
        return self._weights == len(self._micro_batches)

    @property
    def in_flight(self) -> int:
        """Micro-batches whose forward is done and whose gradients of weights are not."""
        return self._forwards - self._weights

    def awaited(self) -> tuple[Action, ...]:
        return self._awaited

    def _work_out_awaited(self) -> tuple[Action, ...]:
        forwards, backwards, weights = self._actions
        may_forward = self.in_flight < self._in_flight and self._forwards < len(forwards)
        found = []
        if self._backwards < self._forwards:
            found.append(backwards[self._backwards])
        if may_forward:
            found.insert(0 if self._backward_was_last else len(found), forwards[self._forwards])
        if self._weights < self._backwards:
            found.append(weights[self._weights])
        return tuple(found)

    def next_action(self, is_ready: Callable[[Action], bool]) -> Action | None:
        if self._makes_room_first(is_ready):
            return self._actions[2][self._weights]
        for action in self._awaited:
            if action.kind is ActionKind.WEIGHTS or is_ready(action):
                return action
        return None

    def _makes_room_first(self, is_ready: Callable[[Action], bool]) -> bool:
        """Whether it is a forward's turn, for which the gradients of weights that wait leave no room."""
        forwards = self._actions[0]
        is_full = self.in_flight == self._in_flight and self._weights < self._backwards
        is_turn = self._backward_was_last and self._forwards < len(forwards)
        return is_full and is_turn and is_ready(forwards[self._forwards])

    def finished(self, action: Action) -> None:
        """Counts an action that has run. Raises ValueError for one that was not to run."""
        if action not in self._awaited:
            raise ValueError(f"{action} was not to run now")
        if action.kind is ActionKind.FORWARD:
            self._forwards += 1
            self._backward_was_last = False
        elif action.kind is ActionKind.BACKWARD:
            self._backwards += 1
            self._backward_was_last = True
        else:
            self._weights += 1
        self._awaited = self._work_out_awaited()


@functools.lru_cache(maxsize=256)
def _actions(micro_batches: tuple[int, ...]) -> tuple[tuple[Action, ...], tuple[Action, ...], tuple[Action, ...]]:
    """The forwards, the backwards and the weights of these micro-batches, in order."""
    forwards, backwards, weights = (
        tuple(Action(kind, micro_batch) for micro_batch in micro_batches)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.WEIGHTS)
    )
    return forwards, backwards, weights
