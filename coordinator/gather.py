"""The trained layers, from the workers that hold them: one replica of each stage gives the state of its stage. Imports torch.

    nano-1  layers 0, 1  ──┐
    nano-2  layers 2, 3  ──┼── one at a time each ──> layer-<i>.safetensors in the checkpoint's folder
    what training leaves ──┘

Each layer goes to the disk as it comes: at no time more than one of each stage lies in this machine's memory. What training
doesn't change, frozen parameters above all, isn't sent again: it is taken from the layers that the workers began with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.layer_file import layer_file_name
from edgeswarm.plan import Plan
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState, pack_layer, unpack_layer
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.fetch import FETCH_LAYER, fetch_blob
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .background import cancelled_when_abandoned
from .layer_files import LayerFiles

LAYER_SECONDS = 3600.0  # for one layer; a slow link is no failure, a device that is gone is noticed elsewhere


def stage_fetchers(
    plan: Plan,
    *,
    job: agent_pb2.JobReference,
    round_number: int,
    addresses: Mapping[str, str],
    identity: Identity,
    folder: Path,
    begin: LayerFiles,
    changing: Set[str],
    with_optimizer: bool,
) -> dict[str, Callable[[], int]]:
    """By device, for the first replica of each stage: a function that fetches the stage's layers from its worker into `folder`.

    round_number: the state at the beginning of this round. addresses: of the workers, "host:port".
    begin: the layers that the workers began with. changing: names of what training changes (`LayerGraph.changing`).
    with_optimizer: with the state that going on would need.
    The functions return the bytes that they wrote. They raise EdgeswarmError: DEVICE_UNREACHABLE and what the worker says,
    WORKER_FAILED for a state that can't be read; and OSError where a file can't be written.
    """
    return {
        stage.devices[0]: partial(
            _fetch_stage,
            stage.devices[0],
            range(stage.first_layer, stage.end_layer),
            job=job,
            round_number=round_number,
            address=addresses[stage.devices[0]],
            identity=identity,
            folder=folder,
            begin=begin,
            changing=changing,
            with_optimizer=with_optimizer,
        )
        for stage in plan.stages
    }


def _fetch_stage(
    device: str,
    layers: range,
    *,
    job: agent_pb2.JobReference,
    round_number: int,
    address: str,
    identity: Identity,
    folder: Path,
    begin: LayerFiles,
    changing: Set[str],
    with_optimizer: bool,
) -> int:
    written = 0
    with secure_channel(address, identity=identity, node_id=device) as channel, cancelled_when_abandoned(channel.close):
        for layer in layers:
            request = data_pb2.FetchLayerRequest(
                job=job,
                layer=layer,
                round=round_number,
                changed_only=True,
                without_optimizer=not with_optimizer,
            )
            try:
                blob = fetch_blob(channel, FETCH_LAYER, request, timeout_seconds=LAYER_SECONDS)
            except grpc.RpcError as error:
                raise error_of_call(error, device=device, doing=f"fetch layer {layer}") from error
            try:
                state = unpack_layer(blob)
            except ValueError as error:
                raise _unreadable(device, layer, str(error)) from error
            if state.round != round_number:
                raise _unreadable(device, layer, f"it is of round {state.round}, not {round_number}")
            began = _at_the_beginning(begin, layer)
            absent = {*began.parameters, *began.buffers} - {*state.parameters, *state.buffers}
            if missing := sorted(absent & changing):
                raise _unreadable(device, layer, f"{missing[0]} is missing")
            data = pack_layer(_completed(state, began)) if absent else blob
            written += len(data)
            with (folder / layer_file_name(layer)).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
    return written


def _at_the_beginning(begin: LayerFiles, layer: int) -> LayerState:
    try:
        return begin.read(layer)
    except EdgeswarmError as error:
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"The layers that the training began with are gone or damaged: {error.message}",
            "Let nothing clean up the folder for temporary files while a training runs, or set TMPDIR to another one.",
        ) from error


def _completed(state: LayerState, began: LayerState) -> LayerState:
    """With what training doesn't change, but for the constants: those come with every export again."""
    parameters, buffers = {**began.parameters, **state.parameters}, {**began.buffers, **state.buffers}
    return replace(state, parameters=parameters, buffers=buffers, constants={})


def _unreadable(device: str, layer: int, problem: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.WORKER_FAILED,
        f"The state of layer {layer} that {device} gave is not usable: {problem}.",
        "Install the same version of edgeswarm on all devices.",
    )
