"""What was measured before, kept on the operator's disk: curves of layers by kind of hardware, links by pair of devices.

    profiles.json
      curves.<hardware key>.<dtype>.<layer signature>   batch sizes, seconds; `asked` says up to which batch size it was tried
      processes.<hardware key>                          what a worker costs beside its layers
      links.<from>.<to>                                 bandwidth, latency, cost of a byte, when and between which hosts;
                                                        from `data-source`: from the operator's machine, where it serves samples

Whole stages that check the sums of layers have signatures and curves like layers.
A curve that ends before the batch size it was asked for ended where memory or time did: asking again would give the same,
unless the device then has clearly more memory (curve_ends.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.json_fields import Fields
from edgeswarm.security.files import make_private_folder, write_atomically

from .process_costs import ProcessCosts

FORMAT = "edgeswarm-profiles/7"
FILE_NAME = "profiles.json"
LINK_AGE_SECONDS = 24 * 3600.0
# The sender of links from the machine that serves samples; no node is named so.
DATA_SOURCE = "data-source"


@dataclass(frozen=True)
class Curve:
    """Seconds of one layer forward and backward by batch size, as measured.

    asked: the largest batch size that was asked for, in samples. relative_errors: of forward and backward together.
    peak_bytes: taken beyond parameters and the sums of their gradients. These two may be empty: not known.
    held_sample_bytes: by which a further micro-batch in flight makes a worker larger, for each sample; 0: not known.
    memory_bytes: what training might use on the device when it was measured; 0: not known.
    rest_part, weights_part: where gradients of weights come apart, what the rest of a backward takes and what they do, in
    times of one in one go.
    """

    batch_sizes: tuple[int, ...]
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    asked: int
    relative_errors: tuple[float, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    memory_bytes: int = 0
    held_sample_bytes: float = 0.0
    rest_part: float = 1.0
    weights_part: float = 0.0

    def __post_init__(self) -> None:
        for more in (self.relative_errors, self.peak_bytes):
            if more and len(more) != len(self.batch_sizes):
                raise ValueError("a curve has as many errors and peaks as batch sizes, or none")
        if not len(self.batch_sizes) == len(self.forward_seconds) == len(self.backward_seconds):
            raise ValueError("a curve has as many seconds as batch sizes")
        if any(b <= a for a, b in zip(self.batch_sizes, self.batch_sizes[1:], strict=False)):
            raise ValueError("the batch sizes of a curve must rise")

    def to_json(self) -> dict[str, Any]:
        return {
            "batch_sizes": list(self.batch_sizes),
            "forward_seconds": list(self.forward_seconds),
            "backward_seconds": list(self.backward_seconds),
            "asked": self.asked,
            "relative_errors": list(self.relative_errors),
            "peak_bytes": list(self.peak_bytes),
            "memory_bytes": self.memory_bytes,
            "held_sample_bytes": self.held_sample_bytes,
            "rest_part": self.rest_part,
            "weights_part": self.weights_part,
        }


@dataclass(frozen=True)
class Link:
    """One direction of a pair. measured_at: seconds since 1970. *_byte_cpu_seconds: what a byte takes either end.

    hosts: those of sender and receiver, then; empty: not known.
    """

    bandwidth_bytes_per_second: float
    latency_seconds: float
    measured_at: float
    send_byte_cpu_seconds: float = 0.0
    receive_byte_cpu_seconds: float = 0.0
    hosts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "bandwidth_bytes_per_second": self.bandwidth_bytes_per_second,
            "latency_seconds": self.latency_seconds,
            "measured_at": self.measured_at,
            "send_byte_cpu_seconds": self.send_byte_cpu_seconds,
            "receive_byte_cpu_seconds": self.receive_byte_cpu_seconds,
            "hosts": list(self.hosts),
        }


@dataclass
class Profiles:
    """Measurements in memory. curves: by (hardware key, dtype, signature). processes: by hardware key.

    links: by (from, to), node ids.
    """

    curves: dict[tuple[str, str, str], Curve] = field(default_factory=dict)
    processes: dict[str, ProcessCosts] = field(default_factory=dict)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)

    def curve(self, hardware_key: str, dtype: str, signature: str, *, largest_batch: int) -> Curve | None:
        """The curve, if it was measured at least up to `largest_batch`."""
        curve = self.curves.get((hardware_key, dtype, signature))
        return curve if curve is not None and curve.asked >= largest_batch else None

    def link(self, sender: str, receiver: str, *, hosts: tuple[str, str], now: float) -> Link | None:
        """The link, if it was measured between these hosts in the last 24 hours.

        Who changes from radio to cable has another address. A time in the future (a clock was set back) doesn't count.
        """
        link = self.links.get((sender, receiver))
        holds = link is not None and link.hosts == hosts and 0 <= now - link.measured_at <= LINK_AGE_SECONDS
        return link if holds else None

    def update(self, other: Profiles) -> None:
        """Take over all that `other` has; where both have something, `other` is newer."""
        self.curves.update(other.curves)
        self.processes.update(other.processes)
        self.links.update(other.links)

    def to_json(self) -> dict[str, Any]:
        curves: dict[str, dict[str, dict[str, Any]]] = {}
        for (key, dtype, signature), curve in self.curves.items():
            curves.setdefault(key, {}).setdefault(dtype, {})[signature] = curve.to_json()
        links: dict[str, dict[str, Any]] = {}
        for (sender, receiver), link in self.links.items():
            links.setdefault(sender, {})[receiver] = link.to_json()
        processes = {key: costs.to_json() for key, costs in self.processes.items()}
        return {"format": FORMAT, "curves": curves, "processes": processes, "links": links}

    @classmethod
    def from_json(cls, document: object) -> Profiles:
        """Raises EdgeswarmError (INSTANCE_INVALID) naming the field."""
        fields = Fields.of(document, _invalid, what="a file of profiles")
        fields.expect_format(FORMAT, optional=True)
        profiles = cls()
        for path, entry in _leaves(fields.section("curves"), depth=3):
            try:
                profiles.curves[path[0], path[1], path[2]] = Curve(
                    batch_sizes=tuple(int(size) for size in entry.numbers("batch_sizes", minimum=1)),
                    forward_seconds=entry.numbers("forward_seconds", minimum=0),
                    backward_seconds=entry.numbers("backward_seconds", minimum=0),
                    asked=entry.integer("asked", minimum=1),
                    relative_errors=entry.numbers("relative_errors", minimum=0),
                    peak_bytes=tuple(int(size) for size in entry.numbers("peak_bytes", minimum=0)),
                    memory_bytes=entry.integer("memory_bytes", minimum=0, default=0),
                    held_sample_bytes=entry.number("held_sample_bytes", minimum=0, default=0.0),
                    rest_part=entry.number("rest_part", minimum=0, default=1.0),
                    weights_part=entry.number("weights_part", minimum=0, default=0.0),
                )
            except ValueError as error:
                raise entry.error(str(error)) from None
        processes = fields.section("processes")
        profiles.processes = {key: ProcessCosts.from_json(processes.section(key)) for key in processes.names()}
        for path, entry in _leaves(fields.section("links"), depth=2):
            profiles.links[path[0], path[1]] = Link(
                bandwidth_bytes_per_second=entry.number("bandwidth_bytes_per_second", minimum=1),
                latency_seconds=entry.number("latency_seconds", minimum=0),
                measured_at=entry.number("measured_at", minimum=0),
                send_byte_cpu_seconds=entry.number("send_byte_cpu_seconds", minimum=0),
                receive_byte_cpu_seconds=entry.number("receive_byte_cpu_seconds", minimum=0),
                hosts=entry.texts("hosts", optional=True),
            )
        return profiles


class ProfileCache:
    """The file. warn: told when it can't be read; everything is then measured again. Once where it can't be written."""

    def __init__(self, folder: Path, *, warn: Callable[[str], None]) -> None:
        self._path = make_private_folder(folder) / FILE_NAME
        self._warn = warn
        self._cannot_keep = False

    def load(self) -> Profiles:
        """All that is kept; empty where there is no file yet or where it is damaged."""
        try:
            return Profiles.from_json(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return Profiles()
        except (OSError, ValueError, EdgeswarmError) as error:
            self._warn(f"The cached profiles in {self._path} can't be read ({error}); measuring again.")
            return Profiles()

    def add(self, measured: Profiles) -> None:
        """Keep what was measured, beside what another process may have added meanwhile.

        A file that can't be written is a warning.
        """
        try:
            with self._locked():
                kept = self.load()
                kept.update(measured)
                write_atomically(self._path, json.dumps(kept.to_json()).encode())
        except OSError as error:
            if not self._cannot_keep:
                self._warn(
                    f"The profiles can't be kept in {self._path} ({error.strerror}); the next run measures again."
                )
            self._cannot_keep = True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # A file of its own, since the profiles' file is replaced on each write.
        with open(self._path.with_name(FILE_NAME + ".lock"), "a+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _leaves(fields: Fields, *, depth: int) -> Iterator[tuple[tuple[str, ...], Fields]]:
    for key in fields.names():
        entry = fields.section(key)
        if depth == 1:
            yield (key,), entry
        else:
            for path, leaf in _leaves(entry, depth=depth - 1):
                yield (key, *path), leaf


def _invalid(problem: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.INSTANCE_INVALID, f"The profiles are not valid: {problem}.", "--fresh-profiles measures anew."
    )
