"""Reports of short rounds go together; of long ones, each at once."""

from __future__ import annotations

from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_agent.worker.round_reports import BETWEEN_MESSAGES_SECONDS, RoundReports


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(seconds: list[float]) -> tuple[list[list[int]], RoundReports]:
    """The messages of rounds that take these seconds, as their rounds' numbers."""
    clock = Clock()
    messages: list[list[int]] = []
    reports = RoundReports(
        send=lambda together: messages.append([report.round for report in together.reports]), clock=clock
    )
    for number, took in enumerate(seconds):
        clock.now += took
        reports.add(agent_pb2.RoundReport(round=number))
    return messages, reports


def test_long_rounds_are_told_at_once() -> None:
    messages, reports = run([BETWEEN_MESSAGES_SECONDS * 1.5] * 4)
    assert messages == [[0], [1], [2], [3]]
    reports.send_held()
    assert len(messages) == 4  # nothing was left, and nothing is said


def test_short_rounds_are_told_together_and_in_order() -> None:
    messages, reports = run([BETWEEN_MESSAGES_SECONDS / 3.5] * 10)
    assert messages == [[0], [1, 2, 3, 4], [5, 6, 7, 8]]
    reports.send_held()
    assert messages[-1] == [9]


def test_what_is_sent_by_the_clock_of_another_thread_counts_as_a_message() -> None:
    messages, reports = run([1.0, 0.0])
    reports.send_held()
    reports.add(agent_pb2.RoundReport(round=2))
    assert messages == [[0], [1]]
