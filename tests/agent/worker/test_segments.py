"""The real worker process through several starts of one epoch, an evaluation, and a second epoch that resumes the first."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.evaluation import export_evaluation
from edgeswarm.model.export import export_model
from edgeswarm.plan import Plan, Stage
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import unpack_layer
from edgeswarm.wire.byte_stream import StreamListener
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler, secure_channel, secure_server
from edgeswarm.wire.fetch import FETCH_LAYER, fetch_blob, serve_pieces
from edgeswarm.wire.sample_stream import SamplePart, answer_requests
from edgeswarm.wire.tensor_samples import encode_items
from edgeswarm.wire.v1 import agent_pb2, data_pb2, worker_pb2
from edgeswarm_agent.supervisor import WorkerProcess, WorkerSettings

from ..processes import Cluster
from .stage_run import layer_states

SAMPLES, EVALUATION_SAMPLES, BATCH, EPOCHS = 20, 11, 8, 3  # three rounds an epoch
JOB_FILE = """
import torch
from torch.nn import functional
import edgeswarm

def nothing():
    raise AssertionError("only the coordinator's machine has these")

def accuracy(output, labels):
    return (output.argmax(1) == labels).double().mean()

def sgd(named):
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.1, momentum=0.9)

job = edgeswarm.Job(
    model=nothing, dataset=nothing, evaluation_dataset=nothing, loss=functional.cross_entropy, optimizer=sgd,
    metrics={"accuracy": accuracy}, batch_size=8, epochs=3,
)
"""


class Data:
    def __init__(self, samples: int, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(samples, 6, generator=generator)
        self.labels = torch.randint(0, 3, (samples,), generator=generator)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


DATA = {
    data_pb2.SAMPLE_SET_TRAINING: Data(SAMPLES, seed=1),
    data_pb2.SAMPLE_SET_EVALUATION: Data(EVALUATION_SAMPLES, seed=2),
}


def build() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


class Desk:
    """The coordinator's machine: it serves layers and samples, and keeps what it was asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self.operator = cluster.operator
        model = build()
        batch = torch.zeros(4, 6)
        exported = export_model(model, (batch,))
        evaluation = export_evaluation(model, (batch,), {}, training=exported.layer_graph)
        self.graph, self.evaluation_graph = exported.layer_graph, evaluation.layer_graph
        self.layers = layer_states(self.graph, model, constants=exported.constants, evaluation=evaluation)
        self.asked: list[data_pb2.FetchSamplesRequest] = []
        self.sample_bytes = 0
        handlers = [raw_service("edgeswarm.wire.v1.Layers", {"Fetch": raw_unary_stream_handler(self._layer)})]
        self.server, port = secure_server(self.operator, address="127.0.0.1:0", workers=8, handlers=handlers)
        self.address = f"127.0.0.1:{port}"
        self.server.start()
        serve = partial(answer_requests, answer=self._samples, doing="Serving samples")
        self.listener = StreamListener(self.operator, behind="127.0.0.1:0", taken=serve)
        self.samples_address = f"127.0.0.1:{self.listener.port}"

    def _layer(self, data: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        yield from serve_pieces([self.layers[data_pb2.FetchLayerRequest.FromString(data).layer]])

    def stop(self) -> None:
        self.listener.stop()
        self.server.stop(None)

    def _samples(self, request: data_pb2.FetchSamplesRequest) -> bytes:
        self.asked.append(request)
        items = [DATA[request.set][index] for index in request.indices]
        blob = encode_items(items, SamplePart(int(request.part)))
        if request.set == data_pb2.SAMPLE_SET_TRAINING:
            self.sample_bytes += len(blob)
        return blob

    def asked_of(self, sample_set: data_pb2.SampleSet) -> list[int]:
        return sorted(index for request in self.asked if request.set == sample_set for index in request.indices)


class OneWorker:
    """A worker that holds the whole model, as its daemon has it. ending: ends what was started, also where the start fails."""

    def __init__(self, folder: Path, ending: contextlib.ExitStack) -> None:
        cluster = Cluster.create(folder)
        identity, folders = cluster.agent("nano-1")
        self.name = identity.node_id
        self.other_agent = cluster.agent("nano-2", "0b0b0b")[0]
        self.desk = Desk(cluster)
        ending.callback(self.desk.stop)
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        (self.bundle / "train.py").write_text(JOB_FILE)
        self.events: queue.SimpleQueue[worker_pb2.WorkerEvent] = queue.SimpleQueue()
        self.worker = WorkerProcess(
            WorkerSettings(
                device=self.name,
                identity_folder=folders.agent_dir,
                listen="127.0.0.1:0",
                log_path=folder / "worker.log",
            ),
            on_event=self.events.put,
            on_death=lambda error: None,
        )
        ending.callback(self.worker.kill, "the test is over")
        self.port = self.worker.wait_hello(60).port

    def prepare(self, *, epoch: int, first_round: int) -> None:
        self.job = agent_pb2.JobReference(job_id="job-1", term=1, epoch=epoch)
        desk, end = self.desk, len(self.desk.graph.layers)
        plan = Plan(planner="by hand", micro_batch=4, micro_batches=2, stages=(Stage(0, end, {self.name: 4}, 1),))
        request = agent_pb2.PrepareRequest(
            job=self.job,
            plan_json=json.dumps(plan.to_json()).encode(),
            stage_graph_json=json.dumps(desk.graph.stage(0, end).to_json()).encode(),
            evaluation_graph_json=json.dumps(desk.evaluation_graph.stage(0, end).to_json()).encode(),
            sources=[
                agent_pb2.LayerSource(layer=layer, node_id=desk.operator.node_id, address=desk.address)
                for layer in range(end)
            ],
            first_round=first_round,
            training=agent_pb2.TrainingSettings(
                job_file="train.py",
                batch_size=BATCH,
                epochs=EPOCHS,
                dataset_length=SAMPLES,
                evaluation_length=EVALUATION_SAMPLES,
                least_batch=1,
                data_mode="served",
                data_service=agent_pb2.Peer(node_id=desk.operator.node_id, address=desk.samples_address),
            ),
        )
        prepare = worker_pb2.PrepareCommand(request=request, bundle_folder=str(self.bundle))
        assert self.worker.request(worker_pb2.WorkerCommand(prepare=prepare), 60).HasField("ready")

    def start(self, first_round: int, end_round: int, *, evaluate: bool = False) -> None:
        start = agent_pb2.StartRequest(job=self.job, first_round=first_round, end_round=end_round, evaluate=evaluate)
        assert self.worker.request(worker_pb2.WorkerCommand(start=start), 60).HasField("started")

    def events_until_done(self) -> list[worker_pb2.WorkerEvent]:
        events: list[worker_pb2.WorkerEvent] = []
        while not events or not events[-1].HasField("rounds_done"):
            event = self.events.get(timeout=60)
            assert not event.HasField("failure"), event.failure.error_json
            if not event.HasField("hello"):
                events.append(event)
        return events

    def fetch_layers(self, round_number: int, *, identity: Identity | None = None) -> dict[int, bytes]:
        address = f"127.0.0.1:{self.port}"
        with secure_channel(address, identity=identity or self.desk.operator, node_id=self.name) as channel:
            return {
                layer: bytes(fetch_blob(channel, FETCH_LAYER, request, timeout_seconds=10))
                for layer in range(len(self.desk.graph.layers))
                for request in [data_pb2.FetchLayerRequest(job=self.job, layer=layer, round=round_number)]
            }


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneWorker]:
    with contextlib.ExitStack() as ending:
        yield OneWorker(tmp_path, ending)


def plain_evaluation(layers: dict[int, bytes]) -> dict[str, float]:
    model = build().eval()
    state = dict(model.state_dict())
    for layer in layers.values():
        held = unpack_layer(layer)
        state.update({**held.parameters, **held.buffers})
    model.load_state_dict(state)
    data = DATA[data_pb2.SAMPLE_SET_EVALUATION]
    with torch.no_grad():
        output = model(data.inputs)
        right = (output.argmax(1) == data.labels).double()
        return {"loss": float(functional.cross_entropy(output, data.labels)), "accuracy": float(right.mean())}


def metrics_of(event: worker_pb2.WorkerEvent) -> dict[str, float]:
    return {metric.name: metric.sum / metric.count for metric in event.evaluation.metrics}


def reports_of(events: list[worker_pb2.WorkerEvent]) -> list[agent_pb2.RoundReport]:
    return [report for event in events for report in event.rounds.reports]


def kinds_of(events: list[worker_pb2.WorkerEvent]) -> list[Any]:
    return [event.WhichOneof("event") for event in events]


def test_an_epoch_in_segments_with_evaluations_and_a_second_one_that_resumes_it(one: OneWorker) -> None:
    one.prepare(epoch=1, first_round=0)
    one.start(0, 3, evaluate=True)
    first = one.events_until_done()
    assert [report.round for report in reports_of(first)] == [0, 1, 2]
    assert kinds_of(first)[-3:] == ["rounds", "evaluation", "rounds_done"]
    report = first[-2].evaluation
    assert (report.epoch, report.round, report.samples) == (1, 3, EVALUATION_SAMPLES)
    after_3 = one.fetch_layers(3)
    assert metrics_of(first[-2]) == pytest.approx(plain_evaluation(after_3), rel=1e-5)

    with pytest.raises(EdgeswarmError, match="round 3 comes next here") as caught:
        one.start(4, 6)
    assert caught.value.code is ErrorCode.STALE_CALL
    with pytest.raises(EdgeswarmError, match="round 3 comes next here"):
        one.start(3, 2)

    one.start(3, 9, evaluate=True)
    second = one.events_until_done()
    assert [report.round for report in reports_of(second)] == list(range(3, 9))
    assert second[-1].rounds_done.next_round == 9
    after_9 = one.fetch_layers(9)
    assert metrics_of(second[-2]) == pytest.approx(plain_evaluation(after_9), rel=1e-5)
    with pytest.raises(grpc.RpcError):  # its round is over
        one.fetch_layers(3)
    with pytest.raises(grpc.RpcError, match="nano-2-0b0b0b is an agent, and only an operator may do this"):
        one.fetch_layers(9, identity=one.other_agent)

    # Every sample came once, and was told of once; later epochs and evaluations had them here.
    assert one.desk.asked_of(data_pb2.SAMPLE_SET_TRAINING) == list(range(SAMPLES))
    assert one.desk.asked_of(data_pb2.SAMPLE_SET_EVALUATION) == list(range(EVALUATION_SAMPLES))
    reports = reports_of(first + second)
    assert sum(report.fetched_sample_bytes for report in reports) == one.desk.sample_bytes > 0
    assert reports[-1].fetched_sample_bytes == 0

    one.desk.layers = after_3
    one.prepare(epoch=2, first_round=3)
    with pytest.raises(EdgeswarmError, match="round 3 comes next here"):
        one.start(0, 3)
    one.start(3, 3, evaluate=True)
    assert metrics_of(one.events_until_done()[0]) == metrics_of(first[-2])
    one.start(3, 9)
    assert len(reports_of(one.events_until_done())) == 6
    assert one.fetch_layers(9) == after_9
