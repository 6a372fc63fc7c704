"""The simulation itself: replicas that follow their schedules over rounds, joined by streams, feeds and all-reduces.

    begin round --> [ policy names an action --> samples there? --> compute --> send frames ] ... --> all-reduce --> step -+
        ^                                                                                                                  |
        +------------------------------------------------------------------------------------------------------------------+

Each replica goes into its next round as soon as it has stepped, as workers do: nobody waits for the others, but for the
gradients of parameters that several stages hold (tied_sums.py). What a
device's processor spends on a frame delays the frame, and is taken from its computing: it is owed until the next action, which
takes that much longer, unless the device has idled meanwhile. What it spends on an all-reduce it spends beside its last
backward, which then ends later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from edgeswarm.feed_ahead import FEED_AHEAD
from edgeswarm.plan import Plan
from edgeswarm.profile import PlanningInstance
from edgeswarm.schedule.policies import make_policy
from edgeswarm.schedule.policy import Action

from .all_reduce import GroupAllReduce, Member
from .event_queue import EventQueue
from .group_links import connect_group
from .log import TIED_SUM, ComputeRecord, Log, TransferRecord, WaitRecord
from .network import Card, Network, Stream, Transfer
from .replica import BACKWARD, FORWARD, WEIGHTS, Frame, Replica, carrying_seconds, frame_to, handling_seconds, pay
from .sample_feed import SampleFeed
from .stage_work import Part, replica_works
from .tied_sums import Arrival, TiedSums, tied_sums

# No card is faster; an infinite one would make its bytes under way no number.
MOST_BYTES_PER_SECOND = 1e18
_A_MOMENT = 1e-12  # seconds, below which rounding is all there is


class Engine:
    """Simulates rounds of a valid plan, from idle devices and no samples fetched. log: filled where given.

    warm_up: rounds after which the pipeline is taken to have settled. rounds: with as many behind these, to be counted;
    one of each, or as many as the samples reach that a replica fetches ahead.
    """

    def __init__(self, instance: PlanningInstance, plan: Plan, *, log: Log | None = None) -> None:
        self._plan = plan
        self._log = log
        # What a micro-batch ends with: nothing of it is held behind that.
        self._last_kind = WEIGHTS if plan.has_weights_apart else BACKWARD
        self._queue = EventQueue()
        self._network = Network(self._queue, log=None if log is None else self._log_transfer)
        self.works = replica_works(instance, plan)
        self._micro_batches = len(self.works[0].parts)
        has_source = any(work.sample_bytes for work in self.works)
        self.warm_up = -(-FEED_AHEAD // self._micro_batches) if has_source else 1
        self.rounds = 2 * self.warm_up
        self._replicas = [Replica(index, work, self.rounds) for index, work in enumerate(self.works)]
        self._unfinished = [len(self._replicas)] * self.rounds
        self._first_done = [math.inf] * len(plan.stages)
        self._stream: Callable[[Replica, int], Stream]
        self._connect(instance)
        self._tied = TiedSums(
            tied_sums(instance.model, plan),
            [
                [replica for replica in self._replicas if replica.work.stage == index]
                for index in range(len(plan.stages))
            ],
            send=self._send_sum,
            done=self._step,
        )
        for replica in self._replicas:
            self._begin_round(replica)

    def run(self, round_number: int) -> None:
        """Simulates up to the end of a round."""
        done = self._queue.run(lambda: self._unfinished[round_number] == 0)
        assert done, "replicas wait for each other for ever"

    def end_of(self, round_number: int) -> float:
        """Seconds at which the last replica ended the round."""
        return max(replica.ends[round_number] for replica in self._replicas)

    def between_ends(self, first: int, last: int) -> list[tuple[float, float]]:
        """By replica: seconds at which it ended these two rounds."""
        return [(replica.ends[first], replica.ends[last]) for replica in self._replicas]

    def second_round_begins(self) -> float:
        """Seconds at which the first stage has ended its first round; later stages' all-reduces may go on."""
        return max(replica.ends[0] for replica in self._replicas if replica.work.stage == 0)

    def longest_period(self, first: int, last: int) -> float:
        """Seconds from the end of one round to the end of the next, on average from round first to last: the slowest replica's.

        Stages may still drift apart when these rounds are counted: in the long run all take what the slowest takes.
        """
        return max((replica.ends[last] - replica.ends[first]) / (last - first) for replica in self._replicas)

    def most_in_flight(self) -> tuple[int, ...]:
        """By stage: how many micro-batches a replica has taken on so far, and not yet begun to give back, at the most.

        With any K from that to the plan's, all that was simulated happens just so.
        """
        most = [0] * len(self._plan.stages)
        for replica in self._replicas:
            most[replica.work.stage] = max(most[replica.work.stage], replica.most_in_flight)
        return tuple(most)

    def repeats(self) -> bool:
        """Whether the second round is the first one again, known at the end of the first.

        So it is where the first stage begins it all at once, each other replica is over with the first round before
        anything of the second is sent to it, and no samples come in between.
        """
        ends = [replica.ends[0] for replica in self._replicas if replica.work.stage == 0]
        if any(replica.feed is not None for replica in self._replicas) or min(ends) != max(ends):
            return False
        return all(
            replica.ends[0] <= ends[0] + self._first_done[replica.work.stage - 1]
            for replica in self._replicas
            if replica.work.stage > 0
        )

    # --- who is connected with whom -----------------------------------------------------------------------------

    def _connect(self, instance: PlanningInstance) -> None:
        source = instance.data_source
        bandwidth = instance.network.bandwidth
        egress: dict[int, Card] = {}
        ingress: dict[int, Card] = {}
        # The card of the source's machine is that of the agent there, and no faster than either was seen to be. Several agents
        # there are taken for machines of their own between them.
        at_source = _only_one(source.on_its_machine) if source is not None else None
        source_card = None if source is None else _card(source.egress)
        for replica in self._replicas:
            place = replica.work.device
            outward = [rate for other, rate in enumerate(bandwidth[place]) if other != place]
            inward = [row[place] for other, row in enumerate(bandwidth) if other != place]
            if source is not None and not source.on_its_machine[place]:
                inward.append(source.bandwidth[place])
            egress[replica.index] = _card(max(outward, default=MOST_BYTES_PER_SECOND))
            if source is not None and place == at_source:
                source_card = egress[replica.index] = _card(min(source.egress, max(outward)))
            ingress[replica.index] = _card(max(inward, default=MOST_BYTES_PER_SECOND))

        streams: dict[tuple[int, int], Stream] = {}

        def stream(sender: Replica, receiver: int) -> Stream:
            pair = (sender.index, receiver)
            if pair not in streams:
                ends = (sender.work.device, self.works[receiver].device)
                streams[pair] = self._network.connect(
                    *pair,
                    egress=egress[sender.index],
                    ingress=ingress[receiver],
                    bandwidth=bandwidth[ends[0]][ends[1]],
                    latency=instance.network.latency(*ends)
                    + handling_seconds(sender.work)
                    + handling_seconds(self.works[receiver]),
                )
            return streams[pair]

        self._stream = stream

        def frames(
            sender: Replica, peers: Iterable[tuple[int, int]], bytes_per_sample: int, count: int
        ) -> tuple[Frame, ...]:
            return tuple(
                frame_to(stream(sender, peer), sender, self._replicas[peer], bytes_per_sample * samples, frames=count)
                for peer, samples in peers
            )

        for replica in self._replicas:
            work = replica.work
            parts: dict[int, Part] = {id(part): part for part in work.parts if part is not None}
            for identity, part in parts.items():
                replica.gradients[identity] = frames(replica, part.upstream, work.answered_bytes, work.answered_frames)
                replica.outputs[identity] = frames(replica, part.downstream, work.output_bytes, work.output_frames)
        self._connect_groups(instance, egress, ingress)
        if source is not None and source_card is not None:
            # Another process sends them, which holds nothing of the agent's up but by its part of the card.
            samples_alone = _card(MOST_BYTES_PER_SECOND)
            for replica in self._replicas:
                if replica.mine and replica.work.sample_bytes:
                    rate = source.bandwidth[replica.work.device]
                    is_there = source.on_its_machine[replica.work.device]
                    line = self._network.connect(
                        -1,
                        replica.index,
                        egress=_card(rate) if is_there else source_card,
                        ingress=_card(rate) if is_there else ingress[replica.index],
                        holder=samples_alone,
                        bandwidth=rate,
                        # Nobody says which of the devices the source is near.
                        latency=instance.network.latency_seconds + handling_seconds(replica.work),
                    )
                    replica.feed = self._feed(replica, line)

    def _connect_groups(
        self, instance: PlanningInstance, egress: Mapping[int, Card], ingress: Mapping[int, Card]
    ) -> None:
        for stage_index, stage in enumerate(self._plan.stages):
            if not stage.replicated:
                continue
            of_stage = {replica.work.name: replica for replica in self._replicas if replica.work.stage == stage_index}
            owners = stage.chunk_owners
            group = [of_stage[name] for name in (*owners, *(name for name in stage.devices if name not in owners))]
            flows = connect_group(
                self._network,
                instance,
                stage,
                members={replica.work.name: replica.index for replica in group},
                egress=egress,
                ingress=ingress,
                latency=instance.network.most_latency([replica.work.device for replica in group])
                + 2 * max(handling_seconds(replica.work) for replica in group),
            )
            # All cut the same gradients; when the buckets are ready differs by replica.
            all_reduce = GroupAllReduce(
                self._queue,
                self._network,
                stage=stage_index,
                buckets=group[0].work.buckets,
                statistics_bytes=group[0].work.statistics_bytes,
                members=[Member(*flow, replica.work.overheads) for flow, replica in zip(flows, group, strict=True)],
                owners=len(owners),
                handled=lambda place, seconds, group=group: self._handled(group[place], seconds),  # type: ignore[misc]
                finished=lambda place, group=group: self._summed(group[place]),  # type: ignore[misc]
            )
            for replica in group:
                replica.all_reduce = all_reduce

    def _feed(self, replica: Replica, line: Stream) -> SampleFeed:
        def arrived(size: float) -> None:
            replica.owed += carrying_seconds(replica.work, size)
            if replica.waits_for_samples or replica.is_idle:
                # After this call, since the feed has still to note what came.
                self._queue.at(self._queue.now, self._try_samples, replica)

        return SampleFeed(
            self._queue,
            self._network,
            stream=line,
            samples=[part.samples for part in replica.work.parts if part is not None],
            sample_bytes=replica.work.sample_bytes,
            made_bytes=replica.work.made_sample_bytes,
            arrived=arrived,
        )

    # --- a replica ----------------------------------------------------------------------------------------------

    def _begin_round(self, replica: Replica) -> None:
        replica.round += 1
        if replica.round == self.rounds:
            return
        replica.first_slot = replica.round * self._micro_batches
        replica.policy = make_policy(self._plan.schedule, replica.mine, in_flight=replica.work.in_flight)
        if replica.mine:
            self._next(replica)
        else:
            self._after_last_backward(replica, handed_in=False)

    def _next(self, replica: Replica) -> None:
        """Starts the action that the policy names, if any."""
        action = replica.next_action()
        if action is None:
            replica.is_idle = True
            return
        replica.is_idle = False
        replica.action = action
        if action.kind is self._last_kind:
            replica.in_flight -= 1
        elif action.kind is FORWARD:
            replica.in_flight += 1
            replica.most_in_flight = max(replica.most_in_flight, replica.in_flight)
            if replica.feed is not None and not replica.feed.take():
                # The worker has taken on the forward, since nothing else can come before it, and waits in it for the samples.
                replica.waits_for_samples = True
                return
        self._start(replica)

    def _try_samples(self, replica: Replica) -> None:
        assert replica.feed is not None
        if replica.is_idle:
            self._next(replica)
        elif replica.waits_for_samples and replica.feed.take():
            replica.waits_for_samples = False
            self._start(replica)

    def _start(self, replica: Replica) -> None:
        action = replica.action
        part = replica.work.parts[action.micro_batch]
        assert part is not None
        start = self._queue.now
        replica.started = start
        seconds = max(0.0, _seconds(part, action) + pay(replica, start))
        replica.busy_until = start + seconds
        replica.stalled = 0.0
        self._queue.at(start + seconds, self._computed, replica)
        # Where nothing can wait, gradients of weights are done with the backward.
        gives_gradients = WEIGHTS if part.weights_seconds else BACKWARD
        is_last = action.kind is gives_gradients and action.micro_batch == replica.mine[-1]
        if is_last and replica.all_reduce is not None:
            for number, bucket in enumerate(replica.work.buckets):
                computed = seconds * bucket.ready
                self._queue.at(start + computed, self._gradients_done, (replica, number, computed))

    def _gradients_done(self, bucket: tuple[Replica, int, float]) -> None:
        """Hands a bucket in once so many seconds of the backward are computed: later, where earlier ones slow it down."""
        replica, number, computed = bucket
        now = self._queue.now
        sharing = max(0.0, replica.sharing_until - now) / 2
        missing = computed - (now - replica.started - (replica.stalled - sharing))
        then = now + missing + min(missing, sharing)
        # After hours what is missing may be less than the clock's last digit.
        if now < replica.busy_until and missing > _A_MOMENT and then > now:
            self._queue.at(then, self._gradients_done, bucket)
            return
        assert replica.all_reduce is not None
        replica.all_reduce.hand_in(replica.all_reduce.first_bucket + number)

    def _computed(self, replica: Replica) -> None:
        action = replica.action
        now = self._queue.now
        if now < replica.busy_until:  # an all-reduce took some of the processor
            self._queue.at(replica.busy_until, self._computed, replica)
            return
        replica.free_since = now
        replica.policy.finished(action)
        self._first_done[replica.work.stage] = min(self._first_done[replica.work.stage], now)
        part = replica.work.parts[action.micro_batch]
        assert part is not None
        if self._log is not None:
            record = (action.kind.value, replica.round, action.micro_batch, replica.started, now)
            self._log.computed.append(ComputeRecord(replica.index, *record))
        if action.kind is FORWARD:
            self._send_frames(replica, action, replica.outputs[id(part)], self._inputs_arrived)
            if (
                replica.all_reduce is not None
                and replica.all_reduce.first_bucket
                and action.micro_batch == replica.mine[-1]
            ):
                replica.all_reduce.hand_in(0)
        elif action.kind is BACKWARD:
            self._send_frames(replica, action, replica.gradients[id(part)], self._gradients_arrived)
        if replica.policy.is_done:
            self._after_last_backward(replica)
            return
        self._next(replica)

    def _send_frames(
        self,
        replica: Replica,
        action: Action,
        frames: tuple[Frame, ...],
        delivered: Callable[[tuple[Replica, int, float]], None],
    ) -> None:
        slot = replica.first_slot + action.micro_batch
        label = (action.kind.value, replica.round, action.micro_batch) if self._log is not None else None
        for stream, receiver, size, sending, receiving in frames:
            replica.owed += sending
            self._network.send(stream, Transfer(size, delivered, (receiver, slot, receiving), label=label))

    def _inputs_arrived(self, arrival: tuple[Replica, int, float]) -> None:
        replica, slot, receiving = arrival
        self._arrived(replica, replica.before_inputs, slot, receiving)

    def _gradients_arrived(self, arrival: tuple[Replica, int, float]) -> None:
        replica, slot, receiving = arrival
        self._arrived(replica, replica.before_gradients, slot, receiving)

    def _arrived(self, replica: Replica, missing: list[int], slot: int, receiving: float) -> None:
        missing[slot] -= 1
        replica.owed += receiving
        if replica.is_idle and missing[slot] == 0:
            self._next(replica)

    # --- the end of a round -------------------------------------------------------------------------------------

    def _after_last_backward(self, replica: Replica, *, handed_in: bool = True) -> None:
        """handed_in: whether the last backward hands the buckets in; without one they are all ready."""
        replica.is_idle = False
        replica.started = self._queue.now
        all_reduce = replica.all_reduce
        if all_reduce is None:
            self._summed(replica)
            return
        for number in range(0 if not handed_in else all_reduce.buffers - 1, all_reduce.buffers):
            # In its turn: the last bucket may be handed in at this very moment, and comes before.
            self._queue.at(self._queue.now, all_reduce.hand_in, number)

    def _summed(self, replica: Replica) -> None:
        """Its group's gradients are summed up; tied ones still have to be, between stages."""
        if self._tied.involve(replica.work.stage):
            self._tied.arrive(replica)
        else:
            self._step(replica)

    def _send_sum(self, sender: Replica, size: int, arrival: Arrival) -> None:
        receiver, _, number = arrival
        sender.owed += carrying_seconds(sender.work, size)
        label = (TIED_SUM, sender.work.stage, number) if self._log is not None else None
        stream = self._stream(sender, receiver.index)
        self._network.send(stream, Transfer(size, self._sum_came, arrival, urgent=False, label=label))

    def _sum_came(self, arrival: Arrival) -> None:
        receiver, _, number = arrival
        receiver.owed += carrying_seconds(receiver.work, self._tied.size_of(number))
        self._tied.came(arrival)

    def _step(self, replica: Replica) -> None:
        now = self._queue.now
        waits = replica.all_reduce is not None or self._tied.involve(replica.work.stage)
        if self._log is not None and waits:
            self._log.all_reduces.append(WaitRecord(replica.index, replica.round, replica.started, now))
        replica.started = now
        seconds = max(0.0, replica.work.step_seconds + pay(replica, now))
        self._queue.at(now + seconds, self._stepped, replica)

    def _stepped(self, replica: Replica) -> None:
        now = self._queue.now
        replica.free_since = now
        replica.ends.append(now)
        self._unfinished[replica.round] -= 1
        if self._log is not None:
            self._log.computed.append(ComputeRecord(replica.index, "step", replica.round, -1, replica.started, now))
        self._begin_round(replica)

    def _handled(self, replica: Replica, seconds: float) -> float:
        """When the replica's processor will be done with so much of an all-reduce.

        A backward that goes on has half of the processor meanwhile, and ends that much later:

            backward     bbbbbbbbbb            b b b b b b b b b b
            all-reduce             aaaa  -->    a a a a
        """
        begins = max(self._queue.now, replica.handling_until)
        shared = min(seconds, max(0.0, replica.busy_until - begins))
        replica.busy_until += shared
        if shared:
            replica.stalled += shared
            replica.sharing_until = begins + 2 * shared
        replica.handling_until = begins + seconds + shared
        return replica.handling_until

    def _log_transfer(self, stream: Stream, transfer: Transfer, end: float) -> None:
        assert self._log is not None
        record = TransferRecord(stream.sender, stream.receiver, transfer.label, transfer.size, transfer.started, end)
        self._log.transfers.append(record)


def _seconds(part: Part, action: Action) -> float:
    if action.kind is FORWARD:
        return part.forward_seconds
    return part.backward_seconds if action.kind is BACKWARD else part.weights_seconds


def _only_one(flags: Sequence[bool]) -> int | None:
    """Which one is set, where no other is and there are others."""
    places = [place for place, is_set in enumerate(flags) if is_set]
    return places[0] if len(places) == 1 and len(flags) > 1 else None


def _card(bytes_per_second: float) -> Card:
    return Card(min(bytes_per_second, MOST_BYTES_PER_SECOND))
