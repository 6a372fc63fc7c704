"""That a stream's other end closes it, for tests where it is kept open, without an end, if something is wrong."""

from __future__ import annotations

import threading

from edgeswarm.wire.byte_stream import ByteStream


def ends(stream: ByteStream, *, seconds: float = 10.0) -> bool:
    """Whether it ends; the limit only ends a test that is stuck."""
    waiting = threading.Thread(target=stream.wait_for_end, daemon=True)
    waiting.start()
    waiting.join(seconds)
    return not waiting.is_alive()
