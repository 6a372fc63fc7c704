"""The rounds of an unfinished training, one JSON object a line: appended at each checkpoint, cut off where one ends.

Read line by line: a training of days has more rounds than memory should hold.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from edgeswarm.errors import EdgeswarmError
from edgeswarm.json_fields import Fields

from .events import RoundDone, RoundParts
from .manifest import unreadable
from .metrics import round_to_json

ROUNDS_NAME = "rounds.jsonl"


def append_rounds(path: Path, rounds: Sequence[RoundDone], *, end_bytes: int) -> int:
    """Write these rounds behind the first `end_bytes` of the file; its bytes then. It is on the disk when this returns.

    Raises OSError.
    """
    lines = "".join(json.dumps(round_to_json(done), allow_nan=False) + "\n" for done in rounds).encode()
    with path.open("r+b" if path.exists() else "xb") as file:
        file.truncate(end_bytes)
        file.seek(end_bytes)
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    return end_bytes + len(lines)


def read_rounds(path: Path, *, end_bytes: int, rounds: int) -> Iterator[RoundDone]:
    """The rounds in the first `end_bytes` of the file. rounds: of the whole job.

    Raises EdgeswarmError (CHECKPOINT) naming the file where it is shorter, or isn't what `append_rounds` writes.
    """
    invalid = partial(unreadable, path)
    return (_round_from_line(line, invalid, rounds) for line in read_lines(path, end_bytes=end_bytes))


def read_lines(path: Path, *, end_bytes: int) -> Iterator[bytes]:
    """The lines in the first `end_bytes` of the file, without their ends. Raises EdgeswarmError (CHECKPOINT) as `read_rounds`."""
    invalid = partial(unreadable, path)
    left = end_bytes
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < end_bytes:
                raise invalid(f"it has {size} bytes, and {end_bytes} belong to the checkpoint")
            while left and (line := file.readline(left)):
                left -= len(line)
                yield line.rstrip(b"\n")
    except OSError as error:
        raise invalid(str(error.strerror or error)) from error


def _round_from_line(line: bytes, invalid: partial[EdgeswarmError], rounds: int) -> RoundDone:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise invalid(f"a line is no JSON: {error}") from error
    fields = Fields.of(document, invalid, what="a round")
    parts = fields.section("parts")
    return RoundDone(
        round=fields.integer("round", minimum=0),
        rounds=rounds,
        epoch=fields.integer("epoch", minimum=0),
        loss=fields.number("loss") if fields.has("loss") else math.nan,
        samples=fields.integer("samples", minimum=0),
        seconds=fields.number("seconds", minimum=0.0),
        samples_per_second=0.0,
        seconds_left=None,
        stage_use=fields.numbers("stage_use", minimum=0.0),
        parts={device: _parts(parts.section(device)) for device in parts.names()},
        gradient_norm=fields.optional_number("gradient_norm"),
        learning_rate_factor=fields.optional_number("learning_rate_factor"),
    )


def _parts(fields: Fields) -> RoundParts:
    waiting = fields.section("waiting_seconds")
    return RoundParts(
        seconds=fields.number("seconds"),
        forward=fields.number("forward_seconds"),
        backward=fields.number("backward_seconds"),
        send=fields.number("send_seconds"),
        waiting={what: waiting.number(what) for what in waiting.names()},
        all_reduce=fields.number("all_reduce_seconds"),
        step=fields.number("step_seconds"),
        other=fields.number("other_seconds"),
        samples=fields.integer("samples", minimum=0),
        sent_bytes=fields.integer("sent_bytes", minimum=0),
        received_bytes=fields.integer("received_bytes", minimum=0),
        peak_memory_bytes=fields.integer("peak_memory_bytes", minimum=0),
        cpu_seconds=fields.number("cpu_seconds"),
        fetched_sample_bytes=fields.integer("fetched_sample_bytes", minimum=0),
        model_cpu_seconds=fields.number("model_cpu_seconds"),
        left_out_bytes=fields.integer("left_out_bytes", minimum=0),
    )
