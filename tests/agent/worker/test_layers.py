from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest
import torch
from torch import Tensor, nn

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.stage import StageModule
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState, unpack_layer
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler, secure_server
from edgeswarm.wire.fetch import CHUNK_BYTES
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from edgeswarm_agent.worker.epoch_state import EpochSwitch
from edgeswarm_agent.worker.errors import HaltedError
from edgeswarm_agent.worker.gradients import GradientBuckets
from edgeswarm_agent.worker.layers import LayerHolder, fetch_layers, load_optimizer_state, tensors_of
from edgeswarm_agent.worker.step import StageOptimizer

Optimizer = Callable[[Sequence[tuple[str, nn.Parameter]]], torch.optim.Optimizer]


def two_groups(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    weights = [parameter for name, parameter in named if name.endswith("weight")]
    others = [parameter for name, parameter in named if not name.endswith("weight")]
    return torch.optim.AdamW([{"params": weights, "lr": 0.02}, {"params": others, "weight_decay": 0.0}], lr=0.01)


def momentum(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.01, momentum=0.9)


def adagrad(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Its state is there as soon as it is made."""
    return torch.optim.Adagrad([parameter for _, parameter in named], lr=0.1)


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


@functools.cache
def graph_of_it() -> LayerGraph:
    return export_model(small_model(), (torch.zeros(4, 6),)).layer_graph


def state_of(holder: LayerHolder, request: data_pb2.FetchLayerRequest) -> LayerState:
    """As it comes over the network."""
    size, chunks = holder.read(request)
    data = bytearray(b"".join(chunks))
    assert len(data) == size
    return unpack_layer(data)


class Worker:
    """A stage with its optimizer, as a worker has it between two rounds."""

    def __init__(self, optimizer: Optimizer, states: dict[int, LayerState] | None = None) -> None:
        graph = graph_of_it()
        torch.manual_seed(0)
        model = small_model()
        self.layers = len(graph.layers)
        tensors = tensors_of(states) if states is not None else dict(model.named_parameters())
        self.module = StageModule(graph.stage(0, self.layers), tensors)
        job = Job(
            model=lambda: model,
            dataset=lambda: [],
            loss=lambda output, targets: output,
            optimizer=optimizer,
            batch_size=4,
            learning_rate_schedule=lambda number: 1 / (1 + number),
        )
        self.parameters = self.module.named_parameters_in_order()
        self.buckets = GradientBuckets(self.parameters)
        self.optimizer = StageOptimizer(job, self.parameters)
        if states is not None:
            load_optimizer_state(self.optimizer, self.module, states)
        self.round = 0
        self.holder = LayerHolder(self.module, self.optimizer, job_id="job-1")
        self.holder.hold(0)

    def run_round(self, number: int) -> None:
        self.buckets.zero()
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
        torch.autograd.backward([self.module.forward(4, [inputs], draw=None)[0].square().sum()])
        self.buckets.touched.update(self.buckets.names)
        self.optimizer.step(self.buckets, count=4.0, sum_of_squares=None, round_number=number)
        self.round = number + 1
        self.holder.hold(self.round)

    def states(self) -> dict[int, LayerState]:
        return {layer: self.read(self.request(layer)) for layer in range(self.layers)}

    def read(self, request: data_pb2.FetchLayerRequest) -> LayerState:
        return state_of(self.holder, request)

    def request(self, layer: int, *, job_id: str = "job-1") -> data_pb2.FetchLayerRequest:
        job = agent_pb2.JobReference(job_id=job_id)
        return data_pb2.FetchLayerRequest(job=job, layer=layer, round=self.round)


@pytest.mark.parametrize("optimizer", [two_groups, momentum, adagrad])
def test_a_worker_goes_on_from_the_layers_of_another_with_the_same_bits(optimizer: Optimizer) -> None:
    whole = Worker(optimizer)
    for number in range(3):
        whole.run_round(number)
    second = Worker(optimizer, whole.states())
    for number in range(3, 6):
        whole.run_round(number)
        second.run_round(number)
    for (name, one), (_, other) in zip(whole.parameters, second.parameters, strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("optimizer", [two_groups, momentum, adagrad])
def test_a_worker_that_keeps_its_layers_goes_on_with_the_same_bits(optimizer: Optimizer) -> None:
    """As one does whose shares change: nothing is packed, and no weight is copied."""
    first, whole = Worker(optimizer), Worker(optimizer)
    for number in range(3):
        first.run_round(number)
        whole.run_round(number)
    kept = first.holder.states(3)
    second = Worker(optimizer, kept)
    for (_, one), (_, other) in zip(first.parameters, second.parameters, strict=True):
        assert one.data_ptr() == other.data_ptr()
    for number in range(3, 6):
        whole.run_round(number)
        second.run_round(number)
    for (name, one), (_, other) in zip(whole.parameters, second.parameters, strict=True):
        assert torch.equal(one, other), name


def test_an_optimizer_of_other_groups_than_before_is_refused() -> None:
    """One that leaves out empty groups: the first one's values would go to whatever is first now."""
    whole = Worker(two_groups)
    whole.run_round(0)
    with pytest.raises(EdgeswarmError, match=r"has 1 groups over the layers .* and had 2") as caught:
        Worker(adagrad, whole.states())
    assert caught.value.code is ErrorCode.JOB_INVALID


def test_layers_are_kept_from_the_round_that_is_held_alone() -> None:
    worker = Worker(momentum)
    worker.run_round(0)
    with pytest.raises(EdgeswarmError, match="of round 1, not layer 0 of round 2"):
        worker.holder.states(2)
    worker.holder.let_go()
    with pytest.raises(EdgeswarmError, match="no finished state now"):
        worker.holder.states(1)


def test_layers_are_given_to_their_own_job_alone() -> None:
    worker = Worker(momentum)
    with pytest.raises(EdgeswarmError, match="works for job job-1, not for job-2"):
        worker.holder.read(worker.request(0, job_id="job-2"))
    with pytest.raises(EdgeswarmError, match="not layer 9"):
        worker.holder.read(worker.request(9))


def test_layers_are_given_at_the_round_that_is_held_alone() -> None:
    worker = Worker(momentum)
    worker.run_round(0)
    assert worker.read(worker.request(0)).round == 1
    worker.holder.hold(2)
    with pytest.raises(EdgeswarmError, match="of round 2, not layer 0 of round 1"):
        worker.holder.read(worker.request(0))
    worker.holder.let_go()
    with pytest.raises(EdgeswarmError, match="no finished state now"):
        worker.holder.read(worker.request(0))


def test_a_layer_is_sent_out_of_its_own_memory_and_not_once_that_changes() -> None:
    weight = nn.Parameter(torch.ones(3 * CHUNK_BYTES // 4, 1))
    model = nn.Linear(1, len(weight), bias=False)
    exported = export_model(model, (torch.zeros(4, 1),))
    module = StageModule(exported.layer_graph.stage(0, 1), {"weight": weight})
    job = Job(model=lambda: model, dataset=lambda: [], loss=nn.functional.mse_loss, optimizer=momentum, batch_size=4)
    holder = LayerHolder(module, StageOptimizer(job, module.named_parameters_in_order()), job_id="job-1")
    holder.hold(0)
    request = data_pb2.FetchLayerRequest(job=agent_pb2.JobReference(job_id="job-1"))
    _, chunks = holder.read(request)
    next(chunks)
    (parameter,) = module.parameters.values()
    with torch.no_grad():
        parameter[-1] = 7.0  # no copy was made before
    rest = b"".join(chunks)
    assert torch.frombuffer(bytearray(rest[-4:]), dtype=torch.float32).item() == 7.0
    _, chunks = holder.read(request)
    next(chunks)
    holder.let_go()
    with pytest.raises(EdgeswarmError, match="doesn't hold the state of round 0 any more") as caught:
        next(chunks)
    assert caught.value.code is ErrorCode.STALE_CALL
    holder.hold(0)
    _, chunks = holder.read(request)
    next(chunks)
    holder.let_go()
    holder.hold(1)
    with pytest.raises(EdgeswarmError, match="doesn't hold the state of round 0 any more"):
        next(chunks)


class FrozenBackbone(nn.Module):
    """A frozen layer, a batch norm that learns, one in evaluation mode, and a tensor made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.learns, self.stays, self.head = nn.BatchNorm1d(8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.stays.eval().requires_grad_(False)

    def forward(self, values: Tensor) -> Tensor:
        scores: Tensor = self.head(self.stays(self.learns(self.frozen(values)))) + torch.tensor([1.0, 2.0])
        return scores


def test_what_training_does_not_change_is_left_out_on_demand() -> None:
    exported = export_model(FrozenBackbone(), (torch.zeros(4, 6),))
    model, layers = FrozenBackbone(), len(exported.layer_graph.layers)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers()), **exported.constants}
    module = StageModule(exported.layer_graph.stage(0, layers), tensors)
    job = Job(model=FrozenBackbone, dataset=lambda: [], loss=nn.functional.mse_loss, optimizer=momentum, batch_size=4)
    trained = [pair for pair in module.named_parameters_in_order() if pair[1].requires_grad]
    holder = LayerHolder(module, StageOptimizer(job, trained), job_id="job-1")
    holder.hold(0)
    found: dict[bool, set[str]] = {}
    for changed_only in (False, True):
        request = data_pb2.FetchLayerRequest(job=agent_pb2.JobReference(job_id="job-1"), changed_only=changed_only)
        found[changed_only] = set()
        for layer in range(layers):
            request.layer = layer
            state = state_of(holder, request)
            found[changed_only].update({*state.parameters, *state.buffers, *state.constants})
    assert found[False] == tensors.keys() - set(exported.layer_graph.unused)
    counted = {f"learns.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert found[True] == {"learns.weight", "learns.bias", "head.weight", "head.bias", *counted}


def test_the_optimizer_state_is_left_out_on_demand() -> None:
    weight = nn.Parameter(torch.ones(2, 6))
    model = nn.Linear(6, 2, bias=False)
    exported = export_model(model, (torch.zeros(4, 6),))
    module = StageModule(exported.layer_graph.stage(0, 1), {"weight": weight})
    job = Job(model=lambda: model, dataset=lambda: [], loss=nn.functional.mse_loss, optimizer=momentum, batch_size=4)
    trained = StageOptimizer(job, module.named_parameters_in_order())
    holder = LayerHolder(module, trained, job_id="job-1")
    holder.hold(1)
    assert trained.optimizer is not None
    (parameter,) = module.parameters.values()
    trained.optimizer.state[parameter] = {"momentum_buffer": torch.full((2, 6), 3.0)}
    request = data_pb2.FetchLayerRequest(job=agent_pb2.JobReference(job_id="job-1"), round=1)
    whole = state_of(holder, request)
    request.without_optimizer = True
    weights = state_of(holder, request)
    momentum_buffer = whole.optimizer["weight"]["momentum_buffer"]
    assert isinstance(momentum_buffer, Tensor)
    assert torch.equal(momentum_buffer, torch.full((2, 6), 3.0))
    assert weights.optimizer == {}
    assert weights.parameters.keys() == whole.parameters.keys() == {"weight"}


Fetch = Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]


@contextlib.contextmanager
def holder(folder: Path, fetch: Fetch, *, layers: int) -> Iterator[tuple[Identity, list[agent_pb2.LayerSource]]]:
    """A device that gives layers as `fetch` does: who may ask it, and so many layers of its."""
    authority = CertificateAuthority.create(folder / "ca")
    server, port = secure_server(
        authority.issue(node_id="b-000002", role=Role.AGENT),
        address="127.0.0.1:0",
        workers=8,
        handlers=[raw_service("edgeswarm.wire.v1.Layers", {"Fetch": raw_unary_stream_handler(fetch)})],
    )
    server.start()
    address = f"127.0.0.1:{port}"
    sources = [agent_pb2.LayerSource(layer=layer, node_id="b-000002", address=address) for layer in range(layers)]
    try:
        yield authority.issue(node_id="a-000001", role=Role.AGENT), sources
    finally:
        server.stop(grace=0).wait(5)


def test_a_halt_ends_a_fetch_that_hangs(tmp_path: Path) -> None:
    asked, over = threading.Event(), threading.Event()

    def hang(_: bytes, __: object) -> Iterator[bytes]:
        asked.set()
        over.wait(30)
        yield b""

    switch = EpochSwitch()
    threading.Thread(target=lambda: asked.wait(30) and switch.halt()).start()
    with holder(tmp_path, hang, layers=6) as (identity, sources):
        with pytest.raises(HaltedError):
            fetch_layers(identity, agent_pb2.JobReference(job_id="job-1"), sources, round_number=0, switch=switch)
        over.set()


def test_a_holder_that_lacks_a_layer_is_told_while_another_layer_is_still_under_way(tmp_path: Path) -> None:
    worker = Worker(momentum)
    over, arrived = threading.Event(), threading.Event()

    def fetch(data: bytes, _: object) -> Iterator[bytes]:
        request = data_pb2.FetchLayerRequest.FromString(data)
        if request.layer == 0:
            over.wait(30)
            arrived.set()
        yield from worker.holder.read(request)[1]

    job = agent_pb2.JobReference(job_id="job-1")
    with holder(tmp_path, fetch, layers=9) as (identity, sources):
        with pytest.raises(EdgeswarmError, match=r"not layer [1-8] of round 0") as caught:
            fetch_layers(identity, job, sources, round_number=0, switch=EpochSwitch())
        assert caught.value.code is ErrorCode.STALE_CALL
        assert not arrived.is_set(), "it waited for the other layer"
        over.set()


def test_a_layer_may_take_as_long_as_a_worker_has_to_get_ready(tmp_path: Path) -> None:
    """Over slow Wi-Fi a large one takes many minutes; a holder that is gone is noticed by the connection to it."""
    worker = Worker(momentum)
    left_seconds: list[float] = []

    def fetch(data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        left_seconds.append(context.time_remaining())
        yield from worker.holder.read(data_pb2.FetchLayerRequest.FromString(data))[1]

    job = agent_pb2.JobReference(job_id="job-1")
    with holder(tmp_path, fetch, layers=1) as (identity, sources):
        states = fetch_layers(identity, job, sources, round_number=0, switch=EpochSwitch())
    assert states.keys() == {0}
    assert 3000 < left_seconds[0] <= 3600
