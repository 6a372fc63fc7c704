"""Profiles of the devices at hand: from the cache what holds, measured what is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from edgeswarm.config import host_and_port, join_host_and_port
from edgeswarm.security.identity import Identity
from edgeswarm.wire.v1 import agent_pb2

from .agents import AgentLink
from .background import Task
from .curve_ends import without_losses
from .deployment import Place, host_seen_from
from .events import MEASURE_LINKS, PROFILE_LAYERS, ProfileProgress
from .model_facts import ModelFacts
from .profile_cache import DATA_SOURCE, Link, ProfileCache, Profiles
from .profiling import (
    LayerWork,
    TimedPart,
    doubtful_links,
    link_hosts,
    measure_layers,
    measure_link,
    measure_source_link,
    missing_links,
    missing_parts,
    missing_source_links,
    parts_to_time,
)
from .progress import Progress
from .reserving import Devices
from .supervision import Supervision


class Measuring:
    """One command's measurements. fresh: measure what is cached, too. after: what keeps devices or the network busy until it is
    done. measured_on: the devices that measured layers.

    Layers first, on all kinds of hardware at once; then links, one after another, since two at once would share a card.
    """

    def __init__(
        self,
        *,
        cache: ProfileCache,
        fresh: bool,
        identity: Identity,
        job: agent_pb2.JobReference,
        devices: Devices,
        progress: Progress,
        supervision: Supervision,
        after: Sequence[Task[None]] = (),
    ) -> None:
        self._cache = cache
        self._profiles = Profiles() if fresh else cache.load()
        self._identity = identity
        self._job = job
        self._devices = devices
        self._progress = progress
        self._supervision = supervision
        self._after = after
        self._counter = threading.Lock()
        self.measured_on: tuple[str, ...] = ()

    def profiles(self, facts: ModelFacts, *, links: Mapping[str, AgentLink], places: Mapping[str, Place]) -> Profiles:
        """Everything that the planner needs of these devices. Reserves those that have to measure layers."""
        devices = [link.device for link in links.values()]
        parts = parts_to_time(facts)
        work = missing_parts(self._profiles, devices, parts=parts, dtype=facts.dtype)
        if work:
            self._supervision.wait(*self._after)
            self.measured_on = tuple(item.device for item in work)
            self._devices.reserve({item.device: links[item.device] for item in work})
            with self._progress.step(PROFILE_LAYERS, f"on {', '.join(item.device for item in work)}"):
                self._measure_layers(facts, work, parts, links)
        now, places_of_links = time.time(), {device: places[device] for device in links}
        pairs = missing_links(self._profiles, places_of_links, now=now)
        if facts.served is not None:
            pairs += missing_source_links(self._profiles, places_of_links, now=now)
        if pairs:
            self._supervision.wait(*self._after)
            with self._progress.step(MEASURE_LINKS, f"{len(pairs)} directions"):
                self._measure_links(pairs, links, places)
        return self._profiles

    def _measure_layers(
        self, facts: ModelFacts, work: list[LayerWork], parts: Mapping[str, TimedPart], links: Mapping[str, AgentLink]
    ) -> None:
        total = sum(len(item.signatures) for item in work)
        done = 0

        def measured(device: str, layer: str) -> None:
            nonlocal done
            with self._counter:
                done += 1
                self._progress.tell(ProfileProgress(done, total, f"{layer} on {device}"))

        known = self._profiles

        def measure(item: LayerWork) -> Profiles:
            profiles = measure_layers(
                links[item.device],
                item,
                job=self._job,
                layer_graph=facts.layer_graph,
                dtype=facts.dtype,
                parts=parts,
                measured=partial(measured, item.device),
                known_costs=known.processes.get(item.hardware_key),
            )
            kept = without_losses(profiles, known=known)
            self._cache.add(kept)  # at once: another device may fail
            return kept

        tasks = [
            self._supervision.spawn(partial(measure, item), name=f"profile on {item.device}", device=item.device)
            for item in work
        ]
        for kept in self._supervision.wait(*tasks):
            self._profiles.update(kept)

    def _measure_links(
        self, pairs: list[tuple[str, str]], links: Mapping[str, AgentLink], places: Mapping[str, Place]
    ) -> None:
        for done, (sender, receiver) in enumerate(pairs, start=1):
            self._keep_link(sender, receiver, self._measured_link(sender, receiver, links, places))
            self._progress.tell(ProfileProgress(done, len(pairs), f"{sender} to {receiver}"))
        for sender, receiver in doubtful_links(self._profiles, pairs):
            again = self._measured_link(sender, receiver, links, places)
            if again.bandwidth_bytes_per_second > self._profiles.links[sender, receiver].bandwidth_bytes_per_second:
                self._keep_link(sender, receiver, again)

    def _measured_link(
        self, sender: str, receiver: str, links: Mapping[str, AgentLink], places: Mapping[str, Place]
    ) -> Link:
        if sender == DATA_SOURCE:
            measure = partial(measure_source_link, links[receiver], identity=self._identity)
        else:
            port = host_and_port(links[receiver].address)[1]
            address = join_host_and_port(host_seen_from(places[sender], places[receiver]), port)
            measure = partial(measure_link, links[sender], receiver, address=address)
        task = self._supervision.spawn(measure, name=f"link {sender} {receiver}")
        self._supervision.wait(task)
        return replace(task.result(), hosts=link_hosts(places, sender, receiver))

    def _keep_link(self, sender: str, receiver: str, link: Link) -> None:
        measured = Profiles(links={(sender, receiver): link})
        self._profiles.update(measured)
        self._cache.add(measured)  # at once: the next one may fail
