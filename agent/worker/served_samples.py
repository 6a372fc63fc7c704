"""A worker's samples from the job's data service, over a stream that is opened when the first ones are missing.

    read -- those that are kept --> cache
         -- the others ----------> stream -- FetchSamplesRequest --> data service
                                          <-- samples --------------   into the cache, too

A stream that broke is opened again, once for each call: it may have been idle for hours, and a radio link comes and goes.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Sequence

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.feed_ahead import FEED_CALL_BYTES, MOST_SAMPLES_A_CALL
from edgeswarm.wire.byte_stream import ByteStream, TooLateError
from edgeswarm.wire.sample_stream import SamplePart, ask_for_samples
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .sample_cache import SampleCache
from .samples import FetchedSamples, Samples

# A data set that is slow isn't dead: all that ask it wait for one another.
FETCH_TIMEOUT_SECONDS = 600.0
_CALL_SECONDS = 10.0  # that one call is to take at most, by what calls have taken so far
_ATTEMPTS = 2


class ServedSamples:
    """Samples of the job's data service. What was fetched is kept as far as the cache has room: later epochs are local.

    What was kept stays: with a new order in each epoch no choice of what to drop is better than none.
    connect: opens a stream to the data service; raises EdgeswarmError. holder: who runs it, for messages. sample_set: of which
    of the job's data sets. cache: may be shared by several, and outlive this one. `close` it.
    """

    def __init__(
        self,
        connect: Callable[[], ByteStream],
        job: agent_pb2.JobReference,
        *,
        holder: str,
        sample_set: data_pb2.SampleSet = data_pb2.SAMPLE_SET_TRAINING,
        cache: SampleCache | None = None,
        timeout_seconds: float = FETCH_TIMEOUT_SECONDS,
    ) -> None:
        self._connect = connect
        self._job = job
        self._holder = holder
        self._set = sample_set
        self._cache = cache or SampleCache()
        self._timeout_seconds = timeout_seconds
        self._sample_bytes = 0
        self._reading = threading.Lock()
        # Under the guard: which stream there is, whether somebody asks on it, and whether that is to end.
        self._guard = threading.Lock()
        self._stream: ByteStream | None = None
        self._is_asking = False
        self._is_cancelled = False
        self._is_closed = False
        self.calls = 0
        self.fetched_samples = 0
        self.fetched_bytes = 0
        self.fetch_seconds = 0.0

    def read(self, indices: Sequence[int], part: SamplePart) -> Samples:
        with self._reading:
            kept = self._cache.kept(self._job.job_id, int(self._set), int(part))
            places = kept.find(indices)
            missing = [index for index in dict.fromkeys(indices) if index not in places]
            while missing:
                # Asked anew: what the first calls took says how many the next one may bring.
                here = self.samples_a_call()
                piece, missing = missing[:here], missing[here:]
                data = self._fetch(piece, part)
                try:
                    places |= kept.add(piece, data)
                except ValueError as error:
                    raise self._unsound(str(error)) from error
            return FetchedSamples(places)

    def samples_a_call(self) -> int:
        if not self._sample_bytes:
            return 1
        by_time = _CALL_SECONDS * self.fetched_samples / max(self.fetch_seconds, 1e-9)
        return max(1, min(FEED_CALL_BYTES // self._sample_bytes, int(by_time), MOST_SAMPLES_A_CALL))

    def cancel(self) -> None:
        """Ends a `read` that is under way with an error; one that is just connecting when it has connected, or failed to."""
        with self._guard:
            self._is_cancelled = self._is_asking
            self._break_off_call()

    def close(self) -> None:
        """As `cancel`, and for good. Idempotent, and from any thread."""
        with self._guard:
            self._is_cancelled = self._is_closed = True
            self._break_off_call()
            if not self._is_asking:
                self._close_stream()

    def _break_off_call(self) -> None:
        """Under the guard. A stream on which nobody asks stays: the next feed has use for it."""
        if self._is_asking and self._stream is not None:
            self._stream.break_off()  # the one who asks closes it

    def _fetch(self, indices: list[int], part: SamplePart) -> bytearray:
        request = data_pb2.FetchSamplesRequest(
            job=self._job,
            indices=indices,
            part=int(part),  # type: ignore[arg-type]
            set=self._set,
        )
        data = self._ask(request, deadline=time.monotonic() + self._timeout_seconds)
        self._sample_bytes = max(self._sample_bytes, -(-len(data) // len(indices)))
        self.calls += 1
        self.fetched_samples += len(indices)
        self.fetched_bytes += len(data)
        return data

    def _ask(self, request: data_pb2.FetchSamplesRequest, *, deadline: float) -> bytearray:
        with self._guard:
            self._is_asking, self._is_cancelled = True, self._is_closed
        try:
            for left in reversed(range(_ATTEMPTS)):
                try:
                    stream = self._open()
                    started = time.monotonic()
                    stream.within(max(0.0, deadline - started))
                    answer = ask_for_samples(stream, request)
                    self.fetch_seconds += time.monotonic() - started
                    return answer
                except (OSError, EOFError) as error:
                    self._drop_stream()
                    if not left or self._is_cancelled or isinstance(error, (TooLateError, ssl.SSLError)):
                        raise self._no_answer(error) from error
                except BaseException:
                    self._drop_stream()
                    raise
            raise AssertionError("the last attempt returns or raises")
        finally:
            with self._guard:
                self._is_asking = False
                if self._is_closed:
                    self._close_stream()

    def _open(self) -> ByteStream:
        """The stream at hand, or a new one. Raises OSError where nobody wants it any more."""
        with self._guard:
            self._check_wanted()
            stream = self._stream
        if stream is None:
            stream = self._connect()
        with self._guard:
            self._stream = stream
            self._check_wanted()
        return stream

    def _check_wanted(self) -> None:
        """Under the guard."""
        if self._is_cancelled:
            raise ConnectionAbortedError("nobody waits for it any more")

    def _drop_stream(self) -> None:
        with self._guard:
            self._close_stream()

    def _close_stream(self) -> None:
        """Under the guard."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _no_answer(self, error: OSError | EOFError) -> EdgeswarmError:
        service, detail = f"The data service on {self._holder}", str(error)
        if self._is_cancelled:
            return EdgeswarmError(
                ErrorCode.LINK_BROKEN,
                f"{service} was asked for samples, and nobody waits for them any more.",
                "Run the command again; the agent's log there says more.",
            )
        if isinstance(error, TooLateError):
            return EdgeswarmError(
                ErrorCode.DEVICE_UNREACHABLE,
                f"{service} did not send samples within {self._timeout_seconds:g} s.",
                f"Check the network to {self._holder}, and whether the job's dataset can be read there.",
                detail=detail,
            )
        if isinstance(error, ssl.SSLError):  # at its first answer: the handshake is through on this side before that
            return EdgeswarmError(
                ErrorCode.TRUST,
                f"{service} doesn't accept this device's certificate.",
                "Join this device again with `edgeswarm-agent join`; if it has joined, check both clocks.",
                detail=detail,
            )
        return EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"{service} can't be reached: the connection broke while it sent samples, twice.",
            f"Check that {self._holder} is on, and the network to it.",
            detail=detail,
        )

    def _unsound(self, why: str) -> EdgeswarmError:
        return EdgeswarmError(
            ErrorCode.DATA_FAILED,
            f"The data service on {self._holder} sent samples that can't be read: {why}.",
            "Use the same version of edgeswarm on all devices.",
        )
