"""1F1B: one forward, one backward, with a bounded number of micro-batches in flight (Asteroid, section 3.2; K_p of the plan)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from .policy import Action, ActionKind, checked_round


class OneForwardOneBackward:
    """At most `in_flight` micro-batches between their forward and their backward. Where both are ready, a forward goes after a
    backward, and a backward after a forward.

    A replica that is late so gives both its neighbours something to do. Were a backward always first, it would catch up on all
    of those that wait before the next stage gets another forward, and that stage, idle by then, would let it wait in turn.

    Three stages with K = 5, 3, 1 and four micro-batches (F forward, B backward, digits the micro-batch):

        stage 0   F0 F1 F2 F3 .. .. B0 .. B1 .. B2 .. B3
        stage 1      F0 F1 F2 .. B0 F3 B1 .. B2 .. B3
        stage 2         F0 B0 F1 B1 F2 B2 F3 B3

    Forwards and backwards each run in index order, so that sums of gradients are reproducible.
    `micro_batches` names the indices in which this replica has samples; a ragged round may leave some out.
    """

    def __init__(self, micro_batches: Sequence[int], *, in_flight: int) -> None:
        self._micro_batches = checked_round(micro_batches, in_flight=in_flight)
        # Once for all: a simulator asks hundreds of thousands of times.
        self._actions_forward, self._actions_backward = _actions(self._micro_batches)
        self._in_flight = in_flight
        self._forwards = 0
        self._backwards = 0
        self._backward_was_last = False
        self._awaited = self._work_out_awaited()

    @property
    def is_done(self) -> bool:
        return self._backwards == len(self._micro_batches)

    @property
    def in_flight(self) -> int:
        """Micro-batches whose forward is done and whose backward is not."""
        return self._forwards - self._backwards

    def awaited(self) -> tuple[Action, ...]:
        return self._awaited

    def _work_out_awaited(self) -> tuple[Action, ...]:
        forwards, backwards = self._forwards, self._backwards
        in_flight = forwards - backwards
        may_forward = in_flight < self._in_flight and forwards < len(self._micro_batches)
        if in_flight == 0:
            return (self._actions_forward[forwards],) if may_forward else ()
        if not may_forward:
            return (self._actions_backward[backwards],)
        if self._backward_was_last:
            return (self._actions_forward[forwards], self._actions_backward[backwards])
        return (self._actions_backward[backwards], self._actions_forward[forwards])

    def next_action(self, is_ready: Callable[[Action], bool]) -> Action | None:
        for action in self._awaited:
            if is_ready(action):
                return action
        return None

    def finished(self, action: Action) -> None:
        """Counts an action that has run. Raises ValueError for one that was not to run."""
        if action not in self._awaited:
            raise ValueError(f"{action} was not to run now")
        self._backward_was_last = action.kind is ActionKind.BACKWARD
        if self._backward_was_last:
            self._backwards += 1
        else:
            self._forwards += 1
        self._awaited = self._work_out_awaited()


@functools.lru_cache(maxsize=256)
def _actions(micro_batches: tuple[int, ...]) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    """The forwards and the backwards of these micro-batches, in order."""
    forwards = tuple(Action(ActionKind.FORWARD, micro_batch) for micro_batch in micro_batches)
    return forwards, tuple(Action(ActionKind.BACKWARD, micro_batch) for micro_batch in micro_batches)
