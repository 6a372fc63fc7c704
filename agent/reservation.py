"""Who holds a device: a pure state machine. Times are passed in; nothing here reads a clock or a socket.

    idle ──reserve──▶ held(job, term, epoch) ──release, lease expired──▶ idle
                        │  ▲
                        └──┘ reserve again, watch, prepare: the same job, its term and epoch only grow

The stream of Watch is the lease. While one is open the job holds the device; when none has been open for
`lease_seconds`, it has expired. A new coordinator of the same job may open its Watch before the old one's stream is
seen to break: the newest watch counts, an older one that breaks later changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from edgeswarm.errors import EdgeswarmError, ErrorCode

DEFAULT_LEASE_SECONDS = 2.0
# Between Reserve and the first Watch a coordinator waits for the slowest of its other devices (10 s), on a machine that
# imports torch meanwhile, whose libraries hold all its threads up while they load.
FIRST_WATCH_SECONDS = 60.0
# Terms are remembered beyond a job's end, so that its old coordinator can't come back with a lower one.
_REMEMBERED_JOBS = 64


@dataclass(frozen=True)
class JobCall:
    """What every control call carries: the job, its coordinator's term, the plan epoch."""

    job_id: str
    term: int
    epoch: int = 0


@dataclass(frozen=True)
class Holding:
    """The job that holds the device.

    who: for a person, who runs it. since_seconds: wall clock, seconds since 1970.
    broken_since: monotonic seconds since when no Watch is open, None while one is.
    lease_seconds: how long it may be broken; watch: number of the newest Watch, 0 before the first.
    """

    job_id: str
    term: int
    epoch: int
    who: str
    since_seconds: float
    lease_seconds: float
    broken_since: float | None
    watch: int = 0

    def lease_left_seconds(self, now: float) -> float | None:
        """Seconds until the lease expires, 0.0 when it has; None while a Watch is open. `now` is monotonic."""
        if self.broken_since is None:
            return None
        allowed = self.lease_seconds if self.watch else max(self.lease_seconds, FIRST_WATCH_SECONDS)
        return max(0.0, self.broken_since + allowed - now)

    def expired(self, now: float) -> bool:
        return self.lease_left_seconds(now) == 0.0


@dataclass(frozen=True)
class Reservation:
    """The device's state: who holds it (None: idle) and the highest term seen of each of the last jobs."""

    device: str
    holding: Holding | None = None
    terms: dict[str, int] = field(default_factory=dict)

    def reserve(
        self, call: JobCall, *, who: str, lease_seconds: float, clock_seconds: float, now: float
    ) -> Reservation:
        """The job takes the device, or takes it again under an equal or higher term (then its epoch stays).

        lease_seconds: 0 or less means the default. Raises: DEVICE_BUSY, STALE_CALL.
        """
        self._refuse_other_job(call)
        self._refuse_old_term(call)
        lease = lease_seconds if lease_seconds > 0 else DEFAULT_LEASE_SECONDS
        if self.holding is not None:
            holding = replace(self.holding, term=call.term, who=who, lease_seconds=lease)
        else:
            holding = Holding(
                job_id=call.job_id,
                term=call.term,
                epoch=call.epoch,
                who=who,
                since_seconds=clock_seconds,
                lease_seconds=lease,
                broken_since=now,
            )
        return self._holding(holding)

    def admit(self, call: JobCall) -> Reservation:
        """The state after a call of the holding job, whose term may be a new coordinator's.

        Raises: STALE_CALL (device idle, older term), DEVICE_BUSY.
        """
        holding = self._held_by(call)
        return self._holding(replace(holding, term=call.term))

    def admit_in_epoch(self, call: JobCall) -> Reservation:
        """As `admit`, for a call that means the plan epoch in force. Raises: STALE_CALL for any other epoch, too."""
        admitted = self.admit(call)
        epoch = self._held_by(call).epoch
        if call.epoch != epoch:
            raise self._stale(f"a call of plan epoch {call.epoch} came; epoch {epoch} is in force")
        return admitted

    def admit_halt(self, call: JobCall) -> Reservation:
        """As `admit`, for a halt: it may mean an epoch that hasn't begun here, never one that is over (STALE_CALL)."""
        admitted = self.admit(call)
        epoch = self._held_by(call).epoch
        if call.epoch < epoch:
            raise self._stale(f"a halt of plan epoch {call.epoch} came; epoch {epoch} is in force")
        return admitted

    def begin_epoch(self, call: JobCall) -> Reservation:
        """The state after Prepare: the call's epoch is in force. Raises: as `admit`, STALE_CALL for an older epoch."""
        holding = self._held_by(call)
        if call.epoch < holding.epoch:
            raise self._stale(f"plan epoch {call.epoch} came after epoch {holding.epoch}")
        return self._holding(replace(holding, term=call.term, epoch=call.epoch))

    def watch_opened(self, call: JobCall) -> Reservation:
        """A new Watch is open: `holding.watch` is its number. Raises: as `admit`."""
        holding = self._held_by(call)
        return self._holding(replace(holding, term=call.term, broken_since=None, watch=holding.watch + 1))

    def watch_broken(self, job_id: str, watch: int, *, now: float) -> Reservation:
        """The stream of this Watch broke. Changes nothing where a newer one is open or the job is over."""
        holding = self.holding
        if holding is None or holding.job_id != job_id or holding.watch != watch or holding.broken_since is not None:
            return self
        return replace(self, holding=replace(holding, broken_since=now))

    def released(self) -> Reservation:
        """Idle again; the terms stay known."""
        return replace(self, holding=None)

    def _holding(self, holding: Holding) -> Reservation:
        terms = {job: term for job, term in self.terms.items() if job != holding.job_id}
        terms[holding.job_id] = holding.term
        newest = list(terms.items())[-_REMEMBERED_JOBS:]
        return replace(self, holding=holding, terms=dict(newest))

    def _held_by(self, call: JobCall) -> Holding:
        self._refuse_old_term(call)
        if self.holding is None:
            raise EdgeswarmError(
                ErrorCode.STALE_CALL,
                f"Job {call.job_id} doesn't hold {self.device}: the device is idle, since the job was released there "
                "or its coordinator was away for longer than the lease.",
                "Start the job again.",
            )
        self._refuse_other_job(call)
        return self.holding

    def _refuse_other_job(self, call: JobCall) -> None:
        holding = self.holding
        if holding is not None and holding.job_id != call.job_id:
            raise EdgeswarmError(
                ErrorCode.DEVICE_BUSY,
                f"{self.device} is busy with job {holding.job_id} of {holding.who} since {since(holding)}.",
                "Wait until that job ends, stop it, or train without this device.",
            )

    def _refuse_old_term(self, call: JobCall) -> None:
        known = self.terms.get(call.job_id, 0)
        if call.term < known:
            raise self._stale(
                f"a coordinator of term {call.term} called; term {known} has taken over job {call.job_id}"
            )

    def _stale(self, problem: str) -> EdgeswarmError:
        return EdgeswarmError(
            ErrorCode.STALE_CALL,
            f"{self.device} refused an old call: {problem}.",
            "Nothing to do: a newer coordinator or plan is in charge.",
        )


def since(holding: Holding) -> str:
    """When the job took the device, in UTC, as a person reads it and as ISO 8601."""
    return datetime.fromtimestamp(holding.since_seconds, tz=timezone.utc).isoformat(timespec="seconds")
