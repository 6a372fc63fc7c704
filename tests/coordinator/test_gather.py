from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.layer_file import layer_file_name
from edgeswarm.plan import Plan, Stage
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState, pack_layer, write_layer_file
from edgeswarm.wire.channel import raw_service, raw_unary_stream_handler, secure_server
from edgeswarm.wire.fetch import serve_pieces
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from edgeswarm_coordinator.gather import stage_fetchers
from edgeswarm_coordinator.layer_files import LayerFiles

WITHOUT_OPTIMIZER = 4
JOB = agent_pb2.JobReference(job_id="job", term=1, epoch=1)
PLAN = Plan(planner="by hand", micro_batch=2, micro_batches=1, stages=(Stage(0, 2, {"nano-1-000001": 2}, 1),))


def serve(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    """A worker whose layers hold their own number; layer 1 of round 9 is damaged, round 8 is another one, 7 lacks a weight."""
    request = data_pb2.FetchLayerRequest.FromString(message)
    assert request.changed_only, "what is frozen is not asked for"
    assert request.without_optimizer == (request.round == WITHOUT_OPTIMIZER)
    name = "other" if request.round == 7 else "w"
    weights, statistics = {name: torch.full((3,), float(request.layer))}, {"mean": torch.full((2,), 7.0)}
    blob = pack_layer(LayerState(5 if request.round == 8 else request.round, weights, buffers=statistics))
    return serve_pieces([blob[:-4] if (request.round, request.layer) == (9, 1) else blob])


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


@pytest.fixture
def begin(tmp_path: Path) -> LayerFiles:
    """What the workers began with: a frozen parameter and buffer beside what is trained, and a constant."""
    folder = tmp_path / "begin"
    folder.mkdir()
    for layer in range(2):
        state = LayerState(
            round=2,
            parameters={"frozen": torch.full((1000,), 3.0), "w": torch.zeros(3)},
            buffers={"kept": torch.ones(5), "mean": torch.zeros(2)},
            constants={"mask": torch.ones(1000)},
        )
        write_layer_file(folder, layer, state)
    return LayerFiles(folder, round=2, layers=2)


def gather(address: str, operator: Identity, round_number: int, folder: Path, begin: LayerFiles) -> int:
    fetchers = stage_fetchers(
        PLAN,
        job=JOB,
        round_number=round_number,
        addresses={"nano-1-000001": address},
        identity=operator,
        folder=folder,
        begin=begin,
        changing={"w", "mean"},
        with_optimizer=round_number != WITHOUT_OPTIMIZER,
    )
    return fetchers["nano-1-000001"]()


@pytest.mark.parametrize("round_number", [3, WITHOUT_OPTIMIZER])
def test_each_layer_comes_from_its_stage_and_what_is_frozen_from_the_beginning(
    address: str, operator: Identity, tmp_path: Path, begin: LayerFiles, round_number: int
) -> None:
    folder = tmp_path / "layers"
    folder.mkdir()
    written = gather(address, operator, round_number, folder, begin)
    files = LayerFiles(folder, round=round_number, layers=2)
    assert [float(state.parameters["w"][0]) for state in files.all()] == [0.0, 1.0]
    for state in files.all():
        assert state.constants == {}
        assert torch.equal(state.parameters["frozen"], torch.full((1000,), 3.0))
        assert {name: float(value[0]) for name, value in state.buffers.items()} == {"kept": 1.0, "mean": 7.0}
    assert written == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("damage", [(7, "layer 0"), (8, "layer 0"), (9, "layer 1")])
def test_a_wrong_or_damaged_state_names_device_and_layer(
    address: str, operator: Identity, tmp_path: Path, begin: LayerFiles, damage: tuple[int, str]
) -> None:
    round_number, problem = damage
    with pytest.raises(EdgeswarmError, match=f"{problem} that nano-1-000001 gave") as caught:
        gather(address, operator, round_number, tmp_path, begin)
    assert caught.value.code is ErrorCode.WORKER_FAILED


def test_a_worker_that_is_gone_is_named(operator: Identity, tmp_path: Path, begin: LayerFiles) -> None:
    with pytest.raises(EdgeswarmError, match="nano-1-000001") as caught:
        gather("127.0.0.1:9", operator, 4, tmp_path, begin)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_a_disk_that_fails_is_no_fault_of_the_device(
    address: str, operator: Identity, tmp_path: Path, begin: LayerFiles
) -> None:
    with pytest.raises(OSError, match="No such file"):
        gather(address, operator, 4, tmp_path / "gone", begin)


@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_a_beginning_that_somebody_cleaned_up_is_told(
    address: str, operator: Identity, tmp_path: Path, begin: LayerFiles, damage: str
) -> None:
    path = begin.folder / layer_file_name(0)
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-1])
    folder = tmp_path / "layers"
    folder.mkdir()
    with pytest.raises(EdgeswarmError, match=rf"began with are gone or damaged: .*{path}") as caught:
        gather(address, operator, 4, folder, begin)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "TMPDIR" in caught.value.remedy
