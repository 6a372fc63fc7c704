"""Streams that share cards: fair rates, priorities, latency."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm_coordinator.simulator.event_queue import EventQueue
from edgeswarm_coordinator.simulator.network import Card, Network, Stream, Transfer


class Lab:
    """Devices with cards, and when each transfer arrived."""

    def __init__(self, egress: list[float], ingress: list[float], *, latency: float = 0.0) -> None:
        self.queue = EventQueue()
        self.network = Network(self.queue)
        self.latency = latency
        self.egress = [Card(rate) for rate in egress]
        self.ingress = [Card(rate) for rate in ingress]
        self.arrived: dict[str, float] = {}

    def stream(self, sender: int, receiver: int, bandwidth: float = 1e9) -> Stream:
        return self.network.connect(
            sender,
            receiver,
            egress=self.egress[sender],
            ingress=self.ingress[receiver],
            bandwidth=bandwidth,
            latency=self.latency,
        )

    def send(self, stream: Stream, name: str, size: float, *, at: float = 0.0, urgent: bool = True) -> None:
        def arrive(_: object) -> None:
            self.arrived[name] = self.queue.now

        transfer = Transfer(size, arrive, None, urgent=urgent)
        self.queue.at(at, lambda _: self.network.send(stream, transfer), None)

    def run(self, count: int) -> dict[str, float]:
        assert self.queue.run(lambda: len(self.arrived) == count)
        return self.arrived


def test_the_second_of_two_streams_halves_the_first() -> None:
    """10 bytes/s: 100 bytes alone for 4 s, then beside another 30 bytes, then alone again."""
    lab = Lab([10.0], [1e9, 1e9])
    lab.send(lab.stream(0, 0), "first", 100)
    lab.send(lab.stream(0, 1), "second", 30, at=4.0)
    assert lab.run(2) == {"second": 10.0, "first": 13.0}


def test_on_one_stream_transfers_follow_one_another_and_a_latency_comes_behind() -> None:
    lab = Lab([10.0], [10.0], latency=0.5)
    stream = lab.stream(0, 0)
    for name in ("a", "b"):
        lab.send(stream, name, 20)
    assert lab.run(2) == {"a": 2.5, "b": 4.5}


def test_what_one_cannot_use_the_others_get() -> None:
    """Of 12 bytes/s one pair takes 2 at most, the others 5 each."""
    lab = Lab([12.0], [1e9] * 3)
    lab.send(lab.stream(0, 0, bandwidth=2.0), "slow", 10)
    lab.send(lab.stream(0, 1), "left", 25)
    lab.send(lab.stream(0, 2), "right", 25)
    assert lab.run(3) == {"slow": 5.0, "left": 5.0, "right": 5.0}


def test_an_urgent_transfer_stops_patient_ones_on_all_streams_of_the_device() -> None:
    lab = Lab([10.0, 10.0], [1e9] * 3)
    lab.send(lab.stream(0, 0), "bucket", 50, urgent=False)
    lab.send(lab.stream(0, 1), "gradient", 20, at=1.0)
    lab.send(lab.stream(1, 2), "another device's bucket", 30, urgent=False)
    assert lab.run(3) == {"gradient": 3.0, "another device's bucket": 3.0, "bucket": 7.0}


def test_a_patient_transfer_goes_on_where_it_stood_on_its_own_stream_too() -> None:
    lab = Lab([10.0], [1e9])
    stream = lab.stream(0, 0)
    lab.send(stream, "bucket", 50, urgent=False)
    lab.send(stream, "gradient", 20, at=1.0)
    lab.send(stream, "next bucket", 10, urgent=False)
    assert lab.run(3) == {"gradient": 3.0, "bucket": 7.0, "next bucket": 8.0}


rates = st.sampled_from([1.0, 3.0, 10.0, 40.0])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(rates, min_size=4, max_size=4),
    st.lists(rates, min_size=4, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), rates), min_size=1, max_size=10, unique_by=lambda t: t[:2]
    ),
)
def test_rates_are_max_min_fair(egress: list[float], ingress: list[float], pairs: list[tuple[int, int, float]]) -> None:
    """Each stream has its pair's bandwidth, or a full card on which none is faster."""
    lab = Lab(egress, ingress)
    streams = [lab.stream(*pair) for pair in pairs]
    for number, stream in enumerate(streams):
        lab.send(stream, str(number), 100.0)
    lab.queue.run(lambda: lab.queue.now > 0 or all(stream.current for stream in streams))
    lab.queue.between_moments()
    for card in (*lab.egress, *lab.ingress):
        assert sum(flow.rate for flow in card.flows) <= card.capacity * (1 + 1e-9)
    for stream in streams:
        full = [
            card
            for card in (stream.egress, stream.ingress)
            if sum(flow.rate for flow in card.flows) == pytest.approx(card.capacity)
        ]
        assert stream.rate == pytest.approx(stream.bandwidth) or any(
            stream.rate >= max(flow.rate for flow in card.flows) - 1e-9 for card in full
        )
