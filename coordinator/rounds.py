"""From the reports of single workers to rounds of the whole job. Pure.

A round is done when every device has reported it. Its loss is what the last stage's first replica says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from edgeswarm.plan import Plan
from edgeswarm.samples import SampleOrder
from edgeswarm.wire.v1 import agent_pb2

from .events import RoundDone, RoundParts

RECENT_ROUNDS = 16  # over which the speed is told


def parts_of(report: agent_pb2.RoundReport) -> RoundParts:
    """One worker's report as plain data."""
    return RoundParts(
        seconds=report.seconds,
        forward=report.forward_seconds,
        backward=report.backward_seconds,
        send=report.send_seconds,
        waiting=dict(report.waiting_seconds),
        all_reduce=report.all_reduce_seconds,
        step=report.step_seconds,
        other=report.other_seconds,
        samples=report.samples,
        sent_bytes=report.sent_bytes,
        received_bytes=report.received_bytes,
        peak_memory_bytes=report.peak_memory_bytes,
        cpu_seconds=report.cpu_seconds,
        fetched_sample_bytes=report.fetched_sample_bytes,
        model_cpu_seconds=report.model_cpu_seconds,
        left_out_bytes=report.left_out_bytes,
    )


class RoundCollector:
    """Gathers the reports of one plan epoch.

    order: which samples a round has. rounds: of the whole job. first_round: the one that this epoch begins with.
    learning_rate_schedule: the job's. evaluations_seconds: of those that are still to come.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        order: SampleOrder,
        rounds: int,
        epoch: int,
        first_round: int = 0,
        learning_rate_schedule: Callable[[int], float] | None = None,
    ) -> None:
        self._plan = plan
        self._order = order
        self._rounds = rounds
        self._epoch = epoch
        self._next = first_round
        self.evaluations_seconds = 0.0
        self._schedule = learning_rate_schedule
        self._reports: dict[int, dict[str, agent_pb2.RoundReport]] = {}
        self._newest: dict[str, int] = {}
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT_ROUNDS)

    @property
    def next_round(self) -> int:
        """The first round that isn't done."""
        return self._next

    def add(self, device: str, report: agent_pb2.RoundReport) -> list[RoundDone]:
        """The rounds that are done with this report, in order. Reports of another epoch and repeated ones change nothing.

        A device reports its rounds in order, but one that could not tell them for long has dropped the oldest: a round that
        a device has passed without a report is passed over here, too.
        """
        if report.epoch != self._epoch or report.round < self._next or device not in self._plan.devices:
            return []
        self._reports.setdefault(report.round, {}).setdefault(device, report)
        self._newest[device] = max(report.round, self._newest.get(device, report.round))
        done = []
        while self._next <= min(self._newest.get(name, -1) for name in self._plan.devices):
            reports = self._reports.pop(self._next, {})
            if len(reports) == len(self._plan.devices):
                done.append(self._round_done(self._next, reports))
            self._next += 1
        return done

    def _round_done(self, number: int, reports: dict[str, agent_pb2.RoundReport]) -> RoundDone:
        parts = {device: parts_of(reports[device]) for device in self._plan.devices}
        samples = self._order.samples_of(number)
        seconds = max(part.seconds for part in parts.values())
        self._recent.append((samples, seconds))
        recent_seconds = sum(s for _, s in self._recent)
        teller = reports[self._plan.stages[-1].devices[0]]
        left = None
        if len(self._recent) > 1:
            left = (self._rounds - number - 1) * recent_seconds / len(self._recent) + self.evaluations_seconds
        return RoundDone(
            round=number,
            rounds=self._rounds,
            epoch=self._order.epoch_of(number),
            loss=teller.loss_sum / teller.loss_count if teller.loss_count else float("nan"),
            samples=samples,
            seconds=seconds,
            samples_per_second=sum(n for n, _ in self._recent) / recent_seconds if recent_seconds else 0.0,
            seconds_left=left,
            stage_use=tuple(
                sum(parts[device].use for device in stage.devices) / len(stage.devices) for stage in self._plan.stages
            ),
            parts=parts,
            gradient_norm=teller.gradient_norm if teller.HasField("gradient_norm") else None,
            learning_rate_factor=float(self._schedule(number)) if self._schedule is not None else None,
        )
