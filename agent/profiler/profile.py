"""A Profile call as the worker runs it: each layer in turn, one curve as soon as it is measured; then the worker's own costs.

calibrate the clock | frames | optimizer steps | curve | curve | ... | second looks

Curves are of the pace at the beginning (reference_work.py). Each is sent once more after its second look, so that whoever waits
hears of it; at the end all of them, at the pace that was usual in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.wire.v1 import agent_pb2

from ..telemetry.hardware import cpu_burst_seconds
from ..telemetry.memory import read_memory
from ..worker.accelerator import held_bytes, made_ready
from .held_memory import held_sample_bytes
from .layer_timing import Timing, time_layer
from .reference_work import Paces, ReferenceWork, steady
from .repeats import Stretch
from .second_look import after_second_look, sizes_to_look_at, takes_little
from .update_cost import measure_updates
from .wire_cost import WireCost

CALIBRATION_SECONDS = 0.5  # many times the period of a usual quota


def run_profile(
    request: agent_pb2.ProfileRequest,
    *,
    send: Callable[[agent_pb2.LayerCurve], None],
    slow_down: float,
    check_halt: Callable[[], None],
    measure_wire: Callable[[], WireCost] | None = None,
) -> agent_pb2.ProcessCost:
    """Times the request's layers and sends a curve for each, and better ones later; an empty one where not even the smallest
    batch fits.

    measure_wire: measures frames where there is a wire. Returns what the worker itself costs.
    Raises: GRAPH_REFUSED for a layer that can't be built here, whatever check_halt raises.
    """
    accelerator = made_ready()
    stretch = Stretch()
    calibrate(stretch)
    wire = WireCost(0.0, 0.0) if measure_wire is None else measure_wire()
    updates = measure_updates(accelerator)
    reference = ReferenceWork() if accelerator == "cpu" else None
    paces = Paces(steady if reference is None else reference.look)
    reference_bytes = 0 if reference is None else reference.held_bytes
    base_bytes = 0
    curves: dict[str, agent_pb2.LayerCurve] = {}
    first_looks: dict[str, list[Timing]] = {}

    def budget() -> int:
        return memory_budget(accelerator, request.memory_limit_bytes)

    def timed(
        layer: agent_pb2.ProfileLayer,
        batch_sizes: Sequence[int],
        *,
        apart: bool = False,
        is_second_look: bool = False,
    ) -> list[Timing]:
        check_halt()
        return time_layer(
            StageGraph.from_json(layer.stage_graph_json),
            batch_sizes,
            longest_seconds=request.longest_seconds,
            memory_budget=budget(),
            slow_down=slow_down,
            check_halt=check_halt,
            accelerator=accelerator,
            stretch=stretch,
            paces=paces,
            apart=apart,
            is_second_look=is_second_look,
        )

    for layer in request.layers:
        sizes = sorted(set(layer.batch_sizes or request.batch_sizes))
        timings = timed(layer, sizes, apart=not layer.in_flight)
        curve = curve_of(layer.signature, timings)
        if layer.in_flight and accelerator == "cpu":
            curve.held_sample_bytes = held_sample_bytes(
                StageGraph.from_json(layer.stage_graph_json),
                timings,
                memory_budget=budget(),
                check_halt=check_halt,
            )
        send(curve)
        curves[layer.signature] = curve
        first_looks[layer.signature] = timings
        # After the first: kernels of all layers at all batch sizes lie around in no worker that trains.
        base_bytes = base_bytes or held_bytes(accelerator) - reference_bytes
    layers_alone = {layer.signature: first_looks[layer.signature] for layer in request.layers if not layer.in_flight}
    little = takes_little(layers_alone)
    for layer in request.layers:
        first = first_looks[layer.signature]
        if first and layer.signature not in little:
            sizes = sizes_to_look_at(first, largest_alone=layer.in_flight)
            second = timed(layer, sizes, is_second_look=True)
            again = curve_of(layer.signature, after_second_look(first, second))
            again.held_sample_bytes = curves[layer.signature].held_sample_bytes
            curves[layer.signature] = again
            send(again)
    usual = paces.usual()
    for curve in curves.values():
        send(at_pace(curve, usual.cpu_seconds if stretch.is_stalled else usual.wall_seconds))
    return agent_pb2.ProcessCost(
        base_bytes=base_bytes or held_bytes(accelerator) - reference_bytes,
        stretch=stretch.factor,
        burst_seconds=cpu_burst_seconds(torch.get_num_threads()),
        frame_seconds=wire.frame_seconds * stretch.factor,
        byte_seconds=wire.byte_seconds * stretch.factor,
        updates=[
            agent_pb2.UpdateCost(
                optimizer=update.optimizer,
                # One thread's work: several don't make it shorter.
                tensor_seconds=update.tensor_seconds * (max(1.0, stretch.factor) if accelerator == "cpu" else 1.0),
                byte_seconds=update.byte_seconds * (stretch.factor if accelerator == "cpu" else 1.0),
            )
            for update in updates
        ],
    )


def calibrate(stretch: Stretch) -> None:
    """Computes for a moment: how long a CPU second takes is known before the first layer."""
    matrix = torch.rand(128, 128)
    started, computed = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < CALIBRATION_SECONDS:
        torch.mm(matrix, matrix)
    stretch.add(time.perf_counter() - started, time.process_time() - computed)


def memory_budget(accelerator: str, limit_bytes: int = 0) -> int:
    """Bytes that a layer may take now. A Jetson's GPU shares the device's memory, so both limits hold.

    limit_bytes: that the device's owner lets this process hold in all; 0 for no limit.
    """
    budget = read_memory().budget()
    if limit_bytes:
        budget = min(budget, max(0, limit_bytes - held_bytes(accelerator)))
    if accelerator == "cuda":
        free, _ = torch.cuda.mem_get_info()
        budget = min(budget, free)
    return budget


def curve_of(signature: str, timings: list[Timing]) -> agent_pb2.LayerCurve:
    apart = next((timing.apart for timing in timings if timing.apart is not None), None)
    return agent_pb2.LayerCurve(
        signature=signature,
        batch_sizes=[timing.batch_size for timing in timings],
        forward_seconds=[timing.forward_seconds for timing in timings],
        backward_seconds=[timing.backward_seconds for timing in timings],
        relative_errors=[timing.relative_error for timing in timings],
        peak_bytes=[timing.peak_bytes for timing in timings],
        rest_part=apart.rest if apart is not None else None,
        weights_part=apart.weights if apart is not None else None,
    )


def at_pace(curve: agent_pb2.LayerCurve, times_as_slow: float) -> agent_pb2.LayerCurve:
    """The same layer where all takes so many times as long."""
    told = agent_pb2.LayerCurve()
    told.CopyFrom(curve)
    told.forward_seconds[:] = [times_as_slow * seconds for seconds in curve.forward_seconds]
    told.backward_seconds[:] = [times_as_slow * seconds for seconds in curve.backward_seconds]
    return told
