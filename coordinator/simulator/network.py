"""Links: each device's card has an egress and an ingress that all its transfers share; each pair has a bandwidth of its own.

One stream goes from a device to each peer, as the worker has it. On a stream transfers go one after another; streams that
share a card get fair (max-min) parts of it, worked out again whenever one of them starts or ends:

    a --> b   |== frame 0 ==|== frame 1 ==|              a's egress is 10: alone a stream gets 10,
    a --> c          |======= frame 2 ======|            two of them 5 each
              10     5             5      10

Urgent transfers (activations, gradients) go before patient ones (all-reduce) over all streams of a device: while it has
anything urgent to send, a patient transfer stands still wherever it is. The worker decides that at every chunk of
512 KiB, here it is at once. A transfer arrives one latency after its last byte has left.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

from .event_queue import EventQueue

INFINITE = float("inf")
# Sets of streams. With a hundred devices there may be any number of them, of hundreds each.
_MOST_REMEMBERED = 2_000
_BY_BANDWIDTH = operator.attrgetter("bandwidth")


class Transfer:
    """Bytes that go to a peer. delivered(argument) is called when they are there. label: what a timeline calls them."""

    __slots__ = ("argument", "delivered", "label", "left", "size", "started", "urgent")

    def __init__(
        self, size: float, delivered: Callable[[Any], None], argument: Any, *, urgent: bool = True, label: Any = None
    ) -> None:
        self.size = size
        self.left = size
        self.delivered = delivered
        self.argument = argument
        self.urgent = urgent
        self.label = label
        self.started = -1.0


class Card:
    """One direction of a device's network card. capacity: bytes per second."""

    __slots__ = ("capacity", "count", "flows", "left", "streams", "urgent")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.flows: list[Stream] = []
        self.streams: list[Stream] = []
        self.urgent = 0  # transfers waiting or under way; of an egress
        self.left = 0.0  # while rates are worked out: what is not given away yet, and to how many
        self.count = 0


class Stream:
    """From one device to another; bandwidth: of the pair, in bytes per second. latency: in seconds. bit: of this stream alone.

    holder: whose urgent transfers its patient ones stand still for, and its own urgent ones are among: its egress, mostly.
    """

    __slots__ = (
        "bandwidth",
        "bit",
        "current",
        "egress",
        "holder",
        "ingress",
        "latency",
        "patient",
        "rate",
        "receiver",
        "sender",
        "since",
        "urgent",
        "version",
    )

    def __init__(
        self,
        bit: int,
        sender: int,
        receiver: int,
        *,
        egress: Card,
        ingress: Card,
        holder: Card,
        bandwidth: float,
        latency: float,
    ) -> None:
        self.bit = bit
        self.sender = sender
        self.receiver = receiver
        self.egress = egress
        self.ingress = ingress
        self.holder = holder
        self.bandwidth = bandwidth
        self.latency = latency
        self.urgent: deque[Transfer] = deque()
        self.patient: deque[Transfer] = deque()
        self.current: Transfer | None = None
        self.rate = 0.0
        self.since = 0.0  # when `current.left` was true
        self.version = 0  # an event of another version is void


class Network:
    """All streams. log: gets (stream, transfer, seconds of its end) for each transfer, where given."""

    def __init__(self, queue: EventQueue, *, log: Callable[[Stream, Transfer, float], None] | None = None) -> None:
        self._queue = queue
        self._log = log
        self._changed: list[Stream] = []
        self._count = 0
        # By the streams that share cards, one bit each. Micro-batches are alike, and so the same ones meet again and again.
        self._known_rates: dict[int, list[tuple[Stream, float]]] = {}
        queue.between_moments = self._settle

    def connect(
        self,
        sender: int,
        receiver: int,
        *,
        egress: Card,
        ingress: Card,
        bandwidth: float,
        latency: float,
        holder: Card | None = None,
    ) -> Stream:
        """holder: as a Stream has it; its own egress where none is given."""
        holder = egress if holder is None else holder
        self._count += 1
        bandwidth = min(bandwidth, egress.capacity, ingress.capacity)
        stream = Stream(
            1 << self._count,
            sender,
            receiver,
            egress=egress,
            ingress=ingress,
            holder=holder,
            bandwidth=bandwidth,
            latency=latency,
        )
        holder.streams.append(stream)
        return stream

    def send(self, stream: Stream, transfer: Transfer) -> None:
        """Queues a transfer behind those of its urgency."""
        holder = stream.holder
        if transfer.urgent:
            holder.urgent += 1
            if holder.urgent == 1:
                self._hold_patient(holder)
            stream.urgent.append(transfer)
        else:
            stream.patient.append(transfer)
        if stream.current is None:
            self._take_next(stream)

    # --- which transfer is under way ----------------------------------------------------------------------------

    def _take_next(self, stream: Stream) -> None:
        """Starts what may leave next on an idle stream, if anything."""
        if stream.urgent:
            transfer = stream.urgent[0]
        elif stream.patient and not stream.holder.urgent:
            transfer = stream.patient[0]
        else:
            return
        stream.current = transfer
        stream.since = self._queue.now
        stream.rate = 0.0
        if transfer.started < 0:
            transfer.started = stream.since
        stream.egress.flows.append(stream)
        stream.ingress.flows.append(stream)
        self._changed.append(stream)

    def _stop(self, stream: Stream) -> None:
        stream.current = None
        stream.version += 1
        stream.egress.flows.remove(stream)
        stream.ingress.flows.remove(stream)
        if stream.egress.flows or stream.ingress.flows:
            self._changed.append(stream)

    def _hold_patient(self, holder: Card) -> None:
        now = self._queue.now
        for stream in holder.streams:
            if stream.current is None or stream.current.urgent:
                continue
            stream.current.left -= stream.rate * (now - stream.since)
            self._stop(stream)

    def _last_byte(self, event: tuple[Stream, int]) -> None:
        stream, version = event
        if stream.version != version:
            return
        transfer, queue = stream.current, self._queue
        assert transfer is not None
        now = queue.now
        if self._log is not None:
            self._log(stream, transfer, now)
        holder = stream.holder
        if transfer.urgent:
            stream.urgent.popleft()
            holder.urgent -= 1
        else:
            stream.patient.popleft()
        queue.at(now + stream.latency, transfer.delivered, transfer.argument)
        following = stream.urgent[0] if stream.urgent else None
        if following is None and stream.patient and not stream.holder.urgent:
            following = stream.patient[0]
        if following is not None:
            # The same streams are under way as before, at the same rates.
            stream.current = following
            stream.since = now
            if following.started < 0:
                following.started = now
            self._schedule(stream)
        else:
            self._stop(stream)
        if transfer.urgent and not holder.urgent:
            for other in holder.streams:
                if other.current is None:
                    self._take_next(other)

    def _schedule(self, stream: Stream) -> None:
        assert stream.current is not None
        stream.version += 1
        left = stream.current.left
        seconds = left / stream.rate if left > 0 else 0.0
        self._queue.at(stream.since + seconds, self._last_byte, (stream, stream.version))

    # --- rates --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Works out the rates of all streams that share a card, directly or by way of others, with one that changed."""
        changed = self._changed
        if not changed:
            return
        self._changed = []
        if len(changed) == 1 and changed[0].current is not None:
            stream = changed[0]
            if len(stream.egress.flows) == 1 and len(stream.ingress.flows) == 1:
                stream.rate = stream.bandwidth
                self._schedule(stream)
                return
        flows, cards, which = _sharing(changed)
        if not flows:
            return
        rates = self._known_rates.get(which)
        if rates is None:
            rates = _fair_rates(flows, cards)
            if len(self._known_rates) < _MOST_REMEMBERED:
                self._known_rates[which] = rates
        now = self._queue.now
        for flow, rate in rates:
            if flow.rate != rate:
                assert flow.current is not None
                flow.current.left -= flow.rate * (now - flow.since)
                flow.since = now
                flow.rate = rate
                self._schedule(flow)


def _sharing(changed: list[Stream]) -> tuple[list[Stream], list[Card], int]:
    """The streams under way that are connected with the changed ones by common cards, these cards, and a bit for each stream."""
    flows: list[Stream] = []
    cards: list[Card] = []
    which = 0
    for stream in changed:
        for card in (stream.egress, stream.ingress):
            if card.count == 0:
                card.count = -1
                cards.append(card)
    for card in cards:  # grows meanwhile
        for flow in card.flows:
            if not which & flow.bit:
                which |= flow.bit
                flows.append(flow)
                other = flow.ingress if card is flow.egress else flow.egress
                if other.count == 0:
                    other.count = -1
                    cards.append(other)
    for card in cards:
        card.count = 0
    return flows, cards, which


def _fair_rates(flows: list[Stream], cards: list[Card]) -> list[tuple[Stream, float]]:
    """Max-min fair rates: raise all together until one is held by a card or its pair, fix that one, raise the rest."""
    rates: list[tuple[Stream, float]] = []
    for card in cards:
        card.left = card.capacity
        card.count = len(card.flows)
    waiting = sorted(flows, key=_BY_BANDWIDTH)
    while waiting:
        level = INFINITE
        tightest: Card | None = None
        for card in cards:
            if card.count and card.left < level * card.count:
                level = card.left / card.count
                tightest = card
        fixed: list[Stream]
        if tightest is None or waiting[0].bandwidth <= level:
            fixed, waiting = [waiting[0]], waiting[1:]
            level = fixed[0].bandwidth
        else:
            fixed = [flow for flow in waiting if flow.egress is tightest or flow.ingress is tightest]
            waiting = [flow for flow in waiting if flow.egress is not tightest and flow.ingress is not tightest]
        for flow in fixed:
            rates.append((flow, level))
            for card in (flow.egress, flow.ingress):
                card.left -= level
                card.count -= 1
    for card in cards:
        card.count = 0
    return rates
