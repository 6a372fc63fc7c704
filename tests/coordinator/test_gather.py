from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan, Stage
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState, pack_layer, write_layer_file
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler, secure_server
from edgeswarm.wire.fetch import serve_blob
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from edgeswarm_coordinator.gather import stage_fetchers
from edgeswarm_coordinator.layer_files import LayerFiles

JOB = agent_pb2.JobReference(job_id="job", term=1, epoch=1)
PLAN = Plan(planner="by hand", micro_batch=2, micro_batches=1, stages=(Stage(0, 2, {"nano-1-000001": 2}, 1),))


def serve(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    """A worker whose layers hold their own number, and a constant that nobody asked for in one of them.

    Layer 1 of round 9 is damaged, round 8 is another one.
    """
    request = data_pb2.FetchLayerRequest.FromString(message)
    assert request.changed_only
    weights = {"w": torch.full((3,), float(request.layer))}
    constants = {} if request.layer else {"mask": torch.ones(1000)}
    blob = pack_layer(LayerState(5 if request.round == 8 else request.round, weights, constants=constants))
    return serve_blob(blob[:-4] if (request.round, request.layer) == (9, 1) else blob)


@pytest.fixture
def operator(authority: CertificateAuthority) -> Identity:
    return authority.issue(node_id="operator-here-00000f", role=Role.OPERATOR)


@pytest.fixture
def address(authority: CertificateAuthority) -> Iterator[str]:
    worker = authority.issue(node_id="nano-1-000001", role=Role.AGENT)
    handlers = [raw_service("edgeswarm.wire.v1.Layers", {"Fetch": raw_unary_stream_handler(serve)})]
    server, port = secure_server(worker, address="127.0.0.1:0", workers=2, handlers=handlers)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def gather(address: str, operator: Identity, round_number: int, folder: Path) -> int:
    beginning = folder.parent / "beginning"
    beginning.mkdir(exist_ok=True)
    for layer in (0, 1):
        frozen = {"frozen": torch.full((2,), 10.0 + layer)} if layer else {}
        start = LayerState(2, {"w": torch.zeros(3), **frozen}, constants={"mask": torch.ones(1000)})
        write_layer_file(beginning, layer, start)
    fetchers = stage_fetchers(
        PLAN,
        job=JOB,
        round_number=round_number,
        addresses={"nano-1-000001": address},
        identity=operator,
        beginning=LayerFiles(beginning, round=2, layers=2),
        folder=folder,
    )
    return fetchers["nano-1-000001"]()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "round"
    folder.mkdir()
    return folder


def test_each_layer_comes_from_its_stage_and_what_is_frozen_from_the_beginning(
    address: str, operator: Identity, folder: Path
) -> None:
    written = gather(address, operator, 4, folder)
    first, second = LayerFiles(folder, round=4, layers=2).all()
    assert {name: float(value[0]) for name, value in first.parameters.items()} == {"w": 0.0}
    assert {name: float(value[0]) for name, value in second.parameters.items()} == {"w": 1.0, "frozen": 11.0}
    assert (first.constants, second.constants) == ({}, {})
    assert written == sum(path.stat().st_size for path in folder.iterdir())


def test_a_beginning_that_somebody_cleaned_up_is_told(address: str, operator: Identity, folder: Path) -> None:
    fetchers = stage_fetchers(
        PLAN,
        job=JOB,
        round_number=4,
        addresses={"nano-1-000001": address},
        identity=operator,
        beginning=LayerFiles(folder / "gone", round=2, layers=2),
        folder=folder,
    )
    with pytest.raises(EdgeswarmError, match=r"began with are damaged: .*gone/layer-0\.safetensors") as caught:
        fetchers["nano-1-000001"]()
    assert caught.value.code is ErrorCode.OUTPUT_FAILED


@pytest.mark.parametrize(("round_number", "problem"), [(8, "layer 0"), (9, "layer 1")])
def test_a_wrong_or_damaged_state_names_device_and_layer(
    address: str, operator: Identity, folder: Path, round_number: int, problem: str
) -> None:
    with pytest.raises(EdgeswarmError, match=f"{problem} that nano-1-000001 gave") as caught:
        gather(address, operator, round_number, folder)
    assert caught.value.code is ErrorCode.WORKER_FAILED


def test_a_worker_that_is_gone_is_named(operator: Identity, folder: Path) -> None:
    with pytest.raises(EdgeswarmError, match="nano-1-000001") as caught:
        gather("127.0.0.1:9", operator, 4, folder)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_a_disk_that_fails_is_no_fault_of_the_device(address: str, operator: Identity, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        gather(address, operator, 4, tmp_path / "gone")
