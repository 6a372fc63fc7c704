"""A Profile call as the worker runs it: each layer in turn, one curve as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable

import torch

from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.wire.v1 import agent_pb2

from ..telemetry.memory import read_memory
from .layer_timing import Timing, time_layer


def run_profile(
    request: agent_pb2.ProfileRequest,
    *,
    send: Callable[[agent_pb2.LayerCurve], None],
    slow_down: float,
    check_halt: Callable[[], None],
) -> None:
    """Times the request's layers and sends a curve for each; an empty one where not even the smallest batch fits.

    Raises: GRAPH_REFUSED for a layer that can't be built here, whatever check_halt raises.
    """
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    for layer in request.layers:
        check_halt()
        timings = time_layer(
            StageGraph.from_json(layer.stage_graph_json),
            sorted(set(request.batch_sizes)),
            longest_seconds=request.longest_seconds,
            memory_budget=memory_budget(accelerator),
            slow_down=slow_down,
            check_halt=check_halt,
            accelerator=accelerator,
        )
        send(curve_of(layer.signature, timings))


def memory_budget(accelerator: str) -> int:
    """Bytes that a layer may take now. A Jetson's GPU shares the device's memory, so both limits hold."""
    budget = read_memory().budget()
    if accelerator == "cuda":
        free, _ = torch.cuda.mem_get_info()
        budget = min(budget, free)
    return budget


def curve_of(signature: str, timings: list[Timing]) -> agent_pb2.LayerCurve:
    return agent_pb2.LayerCurve(
        signature=signature,
        batch_sizes=[timing.batch_size for timing in timings],
        forward_seconds=[timing.forward_seconds for timing in timings],
        backward_seconds=[timing.backward_seconds for timing in timings],
    )
