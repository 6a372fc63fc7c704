"""The state of one job as a pure function of what happened: `advance(state, what, now=...) -> (state, probes wanted)`.

                     +-- shares move ------------+
                     |          +--next segment--+
                     v          v                |
    SETTING_UP -> PREPARING -> RUNNING -> GATHERING -> DONE
         |            |           |           |
         +------------+-----------+-----------+--> FAILED | INTERRUPTED     (the first verdict latches)

One mishap makes several reports: where a worker dies, its daemon says so, and every peer says that a link broke. The report that
explains the others is the verdict. A report that names a cause decides at once; one that may be a consequence waits a second
for a better one, while whoever is suspected is probed:

    t=0.00  nano-2: link to nano-1 broke   (consequence?)  probe nano-1, wait
    t=0.02  nano-1: worker died of memory  (a cause)       verdict

Slow is not dead: a device that is silent is lost only when it doesn't answer a probe either. Where all are lost at once, it is
this machine that lost its network; so a device's loss waits for the answers of others that are probed, too.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgeswarm.config import LOST_SECONDS
from edgeswarm.errors import EdgeswarmError, ErrorCode

ANSWER_SECONDS = 1.25  # of those within which silence comes to a verdict: for a probe, and whoever looks at its answer
VERDICT_WAIT_SECONDS = 1.0  # for a better explanation
INTERRUPTED_MESSAGE = "Interrupted; no device is held any more."
PROBE_WAIT_SECONDS = 2.5  # for the answers of probes, at most, after the first report


class Phase(enum.Enum):
    """How far a job is."""

    SETTING_UP = "setting up"
    PREPARING = "preparing"
    RUNNING = "running"
    GATHERING = "gathering"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def over(self) -> bool:
        return self in (Phase.DONE, Phase.FAILED, Phase.INTERRUPTED)


# --- what can happen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PhaseBegins:
    """The controller goes on to this phase. end_round: first round that is not to be run, for RUNNING."""

    phase: Phase
    epoch: int = 0
    end_round: int = 0


@dataclass(frozen=True)
class Watched:
    """A device was taken and its stream of events is opened: from now on its silence counts."""

    device: str


@dataclass(frozen=True)
class Freed:
    """The job doesn't use this device any more: what happens to it is of no interest."""

    device: str


@dataclass(frozen=True)
class Heard:
    """A sign of life of a device: any event of its stream."""

    device: str


@dataclass(frozen=True)
class Failed:
    """A device's report, or a call to it, says that something failed. suspects: node ids whose link broke."""

    device: str
    error: EdgeswarmError
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True)
class WatchBroken:
    """The stream of events of a device ended."""

    device: str
    error: EdgeswarmError


@dataclass(frozen=True)
class ProbeAnswered:
    """alive: whether the device answered in time."""

    device: str
    alive: bool


@dataclass(frozen=True)
class RoundsFinished:
    """A device has run every round up to `next_round`."""

    device: str
    epoch: int
    next_round: int


@dataclass(frozen=True)
class OwnFailure:
    """Something failed on the coordinator's own machine, for which no device is to blame."""

    error: EdgeswarmError


@dataclass(frozen=True)
class Cancelled:
    """The user wants it to stop."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Happening = (
    PhaseBegins
    | Watched
    | Freed
    | Heard
    | Failed
    | WatchBroken
    | ProbeAnswered
    | RoundsFinished
    | OwnFailure
    | Cancelled
    | Tick
)


@dataclass(frozen=True)
class Report:
    """One explanation of why the job can't go on. rank: 0 explains most."""

    rank: int
    error: EdgeswarmError


@dataclass(frozen=True)
class JobState:
    """Everything that decides what happens next. Times in seconds of one monotonic clock.

    devices: those that the job holds. last_heard: by device, of those that are watched.
    probing: devices whose probe has no answer yet.
    reports: explanations so far, in the order of their coming. first_report: when the first came.
    finished: devices that have run all their rounds. lost: devices that did not answer a probe. error: the verdict.
    lost_seconds: within which a device's silence comes to a verdict.
    """

    devices: tuple[str, ...] = ()
    phase: Phase = Phase.SETTING_UP
    epoch: int = 0
    end_round: int = 0
    last_heard: Mapping[str, float] = field(default_factory=dict)
    probing: frozenset[str] = frozenset()
    reports: tuple[Report, ...] = ()
    first_report: float = 0.0
    finished: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    error: EdgeswarmError | None = None
    lost_seconds: float = LOST_SECONDS


def advance(state: JobState, what: Happening, *, now: float) -> tuple[JobState, tuple[str, ...]]:
    """The state after `what` happened at `now`, and the devices that are to be probed.

    A job that is over doesn't change any more.
    """
    if state.phase.over:
        return state, ()
    probes: tuple[str, ...] = ()
    if isinstance(what, PhaseBegins):
        state = _begin(state, what)
    elif isinstance(what, Cancelled):
        interrupted = EdgeswarmError(ErrorCode.INTERRUPTED, INTERRUPTED_MESSAGE)
        state = replace(state, phase=Phase.INTERRUPTED, error=interrupted)
    elif isinstance(what, Watched):
        devices = tuple(dict.fromkeys((*state.devices, what.device)))
        state = replace(state, devices=devices, last_heard={**state.last_heard, what.device: now})
    elif isinstance(what, Freed):
        state = replace(
            _forget(state, what.device),
            devices=tuple(device for device in state.devices if device != what.device),
            probing=state.probing - {what.device},
        )
    elif isinstance(what, Heard):
        if what.device in state.last_heard:
            # It lives, whatever comes of a probe that was sent before; but for one by which a report is judged.
            probing = state.probing if state.reports else state.probing - {what.device}
            state = replace(state, last_heard={**state.last_heard, what.device: now}, probing=probing)
    elif isinstance(what, RoundsFinished):
        state = _finish(state, what)
    elif isinstance(what, OwnFailure):
        state = _report(state, what.error, now=now)
    elif isinstance(what, Failed) and what.device in state.devices:
        state = _report(state, what.error, now=now)
        probes = what.suspects
        if what.error.code is ErrorCode.DEVICE_UNREACHABLE:
            probes = (what.device, *probes)
    elif isinstance(what, WatchBroken) and what.device in state.devices:
        state = _forget(state, what.device)
        state = _report(state, _dropped(what.device, what.error), now=now, rank=2)
        probes = (what.device,)
    elif isinstance(what, ProbeAnswered):
        state = _probe_answered(state, what, now=now)
    state = _judge(state, now=now)
    return _probe(state, (*probes, *_silent(state, now=now)))


def _begin(state: JobState, what: PhaseBegins) -> JobState:
    return replace(
        state,
        phase=what.phase,
        epoch=what.epoch or state.epoch,
        end_round=what.end_round or state.end_round,
        finished=frozenset() if what.phase is Phase.RUNNING else state.finished,
    )


def _finish(state: JobState, what: RoundsFinished) -> JobState:
    current = state.phase is Phase.RUNNING and what.epoch == state.epoch and what.next_round >= state.end_round
    if not current or what.device not in state.devices:
        return state
    finished = state.finished | {what.device}
    return replace(state, finished=finished, phase=Phase.GATHERING if finished == set(state.devices) else state.phase)


def _probe_answered(state: JobState, what: ProbeAnswered, *, now: float) -> JobState:
    if what.device not in state.probing:
        return state
    state = replace(state, probing=state.probing - {what.device})
    if not what.alive:
        state = replace(_forget(state, what.device), lost=state.lost | {what.device})
        return _report(state, _lost(what.device), now=now)
    if what.device in state.last_heard:  # slow, not dead
        return replace(state, last_heard={**state.last_heard, what.device: now})
    return state


def _report(state: JobState, error: EdgeswarmError, *, now: float, rank: int | None = None) -> JobState:
    report = Report(rank_of(error) if rank is None else rank, error)
    return replace(state, reports=(*state.reports, report), first_report=state.first_report if state.reports else now)


def rank_of(error: EdgeswarmError) -> int:
    """How much an error explains: 0 and 1 name a cause, 2 and 3 may be consequences of another device's failure."""
    if error.code in (ErrorCode.DEVICE_LOST, ErrorCode.WORKER_DIED):
        return 0
    if error.code is ErrorCode.DEVICE_UNREACHABLE:
        return 2
    if error.code is ErrorCode.LINK_BROKEN:
        return 3
    return 1


def _judge(state: JobState, *, now: float) -> JobState:
    """The verdict, as soon as there is one."""
    if not state.reports or state.phase.over:
        return state
    best = min(state.reports, key=lambda report: report.rank)  # the first of the best
    waited = now - state.first_report
    is_unsure = best.rank > 1
    awaits_probes = bool(state.probing) and waited < PROBE_WAIT_SECONDS
    if (is_unsure and waited < VERDICT_WAIT_SECONDS) or (awaits_probes and (is_unsure or state.lost)):
        return state
    all_lost = len(state.devices) > 1 and state.lost.issuperset(state.devices)
    return replace(state, phase=Phase.FAILED, error=_nobody_answers() if all_lost else best.error)


def _silent(state: JobState, *, now: float) -> tuple[str, ...]:
    longest = state.lost_seconds - ANSWER_SECONDS
    return tuple(device for device, heard in state.last_heard.items() if now - heard >= longest)


def _probe(state: JobState, devices: tuple[str, ...]) -> tuple[JobState, tuple[str, ...]]:
    if state.phase.over:
        return state, ()
    wanted = tuple(dict.fromkeys(d for d in devices if d in state.devices and d not in state.probing))
    return replace(state, probing=state.probing | set(wanted)), wanted


def _forget(state: JobState, device: str) -> JobState:
    return replace(state, last_heard={d: heard for d, heard in state.last_heard.items() if d != device})


def _lost(device: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.DEVICE_LOST,
        f"The device {device} was lost: its agent does not answer any more.",
        "Check its power and its network, see that `edgeswarm-agent run` runs there, and try again.",
    )


def _nobody_answers() -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.DEVICE_LOST,
        "All devices were lost at once: no agent answers any more.",
        "Check this machine's own network, and the switch or router between; then try again.",
    )


def _dropped(device: str, error: EdgeswarmError) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.DEVICE_LOST,
        f"The agent on {device} dropped the job: {error.message}",
        "Was it restarted? Look at its log, and try again.",
        detail=error.detail,
    )
