"""A stage's layers: fetched from whoever holds them, and given to whoever asks."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import grpc
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState, layer_pieces, unpack_layer
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.fetch import FETCH_LAYER, PREPARE_SECONDS, fetch_blob, serve_pieces
from edgeswarm.wire.v1 import agent_pb2, data_pb2

from .epoch_state import EpochSwitch
from .step import StageOptimizer

PARALLEL_FETCHES = 4


def fetch_layers(
    identity: Identity,
    job: agent_pb2.JobReference,
    sources: Sequence[agent_pb2.LayerSource],
    *,
    round_number: int,
    switch: EpochSwitch,
) -> dict[int, LayerState]:
    """The state of each layer at the beginning of a round, by layer; several layers at once.

    Raises EdgeswarmError that names the holder which can't be reached or doesn't have the layer, and what ended the epoch.
    """
    channels: dict[str, grpc.Channel] = {}
    for source in sources:
        if source.address not in channels:
            channels[source.address] = secure_channel(source.address, identity=identity, node_id=source.node_id)

    def fetch(source: agent_pb2.LayerSource) -> tuple[int, LayerState]:
        request = data_pb2.FetchLayerRequest(job=job, layer=source.layer, round=round_number)
        try:
            blob = fetch_blob(channels[source.address], FETCH_LAYER, request, timeout_seconds=PREPARE_SECONDS)
        except grpc.RpcError as error:
            raise error_of_call(error, device=source.node_id, doing=f"fetch layer {source.layer}") from error
        state = in_own_memory(unpack_layer(blob))
        if state.round != round_number:
            raise EdgeswarmError(
                ErrorCode.STALE_CALL,
                f"{source.node_id} sent layer {source.layer} of round {state.round}, not of round {round_number}.",
            )
        return source.layer, state

    def close() -> None:
        for channel in channels.values():
            channel.close()

    # A halt doesn't wait for the rest of a large layer.
    switch.on_thrown(close)
    try:
        with ThreadPoolExecutor(PARALLEL_FETCHES, thread_name_prefix="fetch") as pool:
            fetches = [pool.submit(fetch, source) for source in sources]
            failed = [
                ended for ended in wait(fetches, return_when=FIRST_EXCEPTION).done if ended.exception() is not None
            ]
            if failed:  # nor does an error wait for it
                pool.shutdown(wait=False, cancel_futures=True)
                close()
                failed[0].result()
            return dict(ended.result() for ended in fetches)
    except Exception:
        switch.check()
        raise
    finally:
        close()


def in_own_memory(state: LayerState) -> LayerState:
    """The state with tensors that lie where torch puts them, at multiples of 64 bytes.

    Where they lie in what came over the network depends on the length of its header, and matrix products of the same numbers
    at another alignment differ in the last bit: a training that is resumed would not be the same.
    """

    def copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in tensors.items()}

    return dataclasses.replace(
        state,
        parameters=copied(state.parameters),
        buffers=copied(state.buffers),
        constants=copied(state.constants),
        optimizer={
            name: {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in values.items()}
            for name, values in state.optimizer.items()
        },
    )


def tensors_of(states: Mapping[int, LayerState]) -> dict[str, torch.Tensor]:
    """All tensors of a stage by original name. A weight that several of its layers use is the same in each."""
    tensors: dict[str, torch.Tensor] = {}
    for state in states.values():
        for members in (state.parameters, state.buffers, state.constants):
            for name, tensor in members.items():
                tensors.setdefault(name, tensor)
    return tensors


def load_optimizer_state(optimizer: StageOptimizer, module: StageModule, states: Mapping[int, LayerState]) -> None:
    """Puts the optimizer state that came with the layers where the optimizer keeps it. Round 0 has none.

    Raises EdgeswarmError (JOB_INVALID) where the optimizer has other groups than the one before.
    """
    if optimizer.optimizer is None:
        return
    # Not by what it holds: some, as Adagrad, make their state when they are made. A tied weight comes with several layers.
    loaded: set[str] = set()
    groups = {id(each): group for group in optimizer.optimizer.param_groups for each in group["params"]}
    for state in states.values():
        for name, values in state.optimizer.items():
            parameter = module.parameters[name]
            if values and name not in loaded:
                loaded.add(name)
                # As in torch's own load_state_dict: state goes to the parameter, the counter of steps where its kernels want it.
                group = groups.get(id(parameter), {})
                stays = {"step"} if not (group.get("fused") or group.get("capturable")) else set()
                optimizer.optimizer.state[parameter] = {
                    key: value.to(parameter.device) if isinstance(value, torch.Tensor) and key not in stays else value
                    for key, value in values.items()
                }
        if state.groups and len(state.groups) != len(optimizer.optimizer.param_groups):
            raise EdgeswarmError(
                ErrorCode.JOB_INVALID,
                f"The optimizer has {len(optimizer.optimizer.param_groups)} groups over the layers that this device has now, and "
                f"had {len(state.groups)} over those of which the checkpoint tells.",
                "Keep a group even where it is empty: each device makes the optimizer over its own layers.",
            )
        for group, saved in zip(optimizer.optimizer.param_groups, state.groups, strict=False):
            group.update(saved)


class LayerHolder:
    """Gives the state of this worker's layers as it is between two rounds: from `hold` on, until `let_go`.

    A layer is sent out of the tensors that computing uses, a chunk at a time, and isn't copied as a whole: a table of words with
    its optimizer's state may be half of a small device's memory.

    evaluation: the same stage in evaluation mode, whose constants belong to the layers too.
    """

    def __init__(
        self, module: StageModule, optimizer: StageOptimizer, *, job_id: str, evaluation: StageModule | None = None
    ) -> None:
        self._module = module
        self._job_id = job_id
        self._names_by_layer = _names_by_layer(module.graph)
        self._constants = dict(module.constants)
        if evaluation is not None:
            for layer, names in _names_by_layer(evaluation.graph).items():
                self._names_by_layer[layer] |= names
            self._constants = {**evaluation.constants, **self._constants}
        self._optimizer = optimizer
        self._reading = threading.Lock()
        self._round: int | None = None

    def hold(self, round_number: int) -> None:
        """The state is that of the beginning of this round, and nothing changes it now."""
        with self._reading:
            self._round = round_number

    def let_go(self) -> None:
        """The state is about to change: waits for whoever copies a chunk of it now, and refuses the rest from then on."""
        with self._reading:
            self._round = None

    def read(self, request: data_pb2.FetchLayerRequest) -> tuple[int, Iterator[bytes]]:
        """(how many bytes a layer has, the messages that carry it). Raises EdgeswarmError for a job, a layer or a round that
        isn't here; later on, between two of the messages, where the state was let go meanwhile.
        """
        with self._reading:
            if request.job.job_id != self._job_id:
                raise EdgeswarmError(
                    ErrorCode.STALE_CALL, f"this worker works for job {self._job_id}, not for {request.job.job_id}"
                )
            state = self._state(
                request.layer,
                request.round,
                changed_only=request.changed_only,
                with_optimizer=not request.without_optimizer,
            )
            size, pieces = layer_pieces(state)
        return size, self._while_held(serve_pieces(pieces), round_number=request.round)

    def _while_held(self, chunks: Iterator[bytes], *, round_number: int) -> Iterator[bytes]:
        while True:
            with self._reading:
                if self._round != round_number:
                    raise EdgeswarmError(
                        ErrorCode.STALE_CALL, f"this worker doesn't hold the state of round {round_number} any more"
                    )
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    def states(self, round_number: int) -> dict[int, LayerState]:
        """All layers, with the very tensors that computing uses. Raises EdgeswarmError for another round than that held."""
        with self._reading:
            return {layer: self._state(layer, round_number) for layer in self._names_by_layer}

    def _state(
        self, layer: int, round_number: int, *, changed_only: bool = False, with_optimizer: bool = True
    ) -> LayerState:
        if self._round is None:
            raise EdgeswarmError(ErrorCode.STALE_CALL, "this worker holds no finished state now")
        names = self._names_by_layer.get(layer)
        if names is None or round_number != self._round:
            raise EdgeswarmError(
                ErrorCode.STALE_CALL,
                f"this worker holds layers {sorted(self._names_by_layer)} of round {self._round}, "
                f"not layer {layer} of round {round_number}",
            )
        module = self._module
        optimizer = self._optimizer.optimizer
        constants, buffers = dict(self._constants), dict(module.buffers)
        held = list(module.parameters.items())
        if changed_only:
            constants.clear()
            buffers = {name: buffers[name] for norm in module.graph.batch_norms for name in norm.buffers}
            held = [(name, parameter) for name, parameter in held if parameter.requires_grad]
        parameters = {name: p.detach() for name, p in held if name in names}
        optimizer_state: dict[str, dict[str, object]] = {}
        groups: list[dict[str, object]] = []
        if optimizer is not None and with_optimizer:
            for name in parameters:
                state = optimizer.state.get(module.parameters[name])
                if state:
                    optimizer_state[name] = {
                        key: value.detach() if isinstance(value, torch.Tensor) else value
                        for key, value in state.items()
                    }
            for group in optimizer.param_groups:
                groups.append({key: value for key, value in group.items() if key not in ("params", "param_names")})
        return LayerState(
            round=self._round,
            parameters=parameters,
            buffers={name: buffer for name, buffer in buffers.items() if name in names},
            constants={name: constant for name, constant in constants.items() if name in names},
            optimizer=optimizer_state,
            groups=groups,
        )


def _names_by_layer(graph: StageGraph) -> dict[int, frozenset[str]]:
    return {graph.first_layer + index: frozenset(names) for index, names in enumerate(graph.layer_tensors)}
