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
    """A worker whose layers hold their own number; layer 1 of round 9 is damaged, round 8 is another one."""
    request = data_pb2.FetchLayerRequest.FromString(message)
    assert request.changed_only
    blob = pack_layer(
        LayerState(5 if request.round == 8 else request.round, {"w": torch.full((3,), float(request.layer))})
    )
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
    known = folder.parent / "known"
    known.mkdir(exist_ok=True)
    for layer in range(2):
        frozen = {"frozen": torch.full((3,), 7.0)} if layer else {}
        state = LayerState(0, {**frozen, "w": torch.zeros(3)}, constants={"mask": torch.ones(1000)})
        write_layer_file(known, layer, state)
    fetchers = stage_fetchers(
        PLAN,
        job=JOB,
        round_number=round_number,
        addresses={"nano-1-000001": address},
        identity=operator,
        known_folder=known,
        folder=folder,
    )
    return fetchers["nano-1-000001"]()


def test_each_layer_comes_from_its_stage_and_gets_back_what_it_began_with_but_its_constants(
    address: str, operator: Identity, tmp_path: Path
) -> None:
    folder = tmp_path / "layers"
    folder.mkdir()
    written = gather(address, operator, 4, folder)
    files = LayerFiles(folder, round=4, layers=2)
    assert [float(state.parameters["w"][0]) for state in files.all()] == [0.0, 1.0]
    assert all(state.constants == {} for state in files.all())
    assert [list(state.parameters) for state in files.all()] == [["w"], ["frozen", "w"]]
    assert files.read(1).parameters["frozen"].tolist() == [7.0] * 3
    assert written == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize(("round_number", "problem"), [(8, "layer 0"), (9, "layer 1")])
def test_a_wrong_or_damaged_state_names_device_and_layer(
    address: str, operator: Identity, tmp_path: Path, round_number: int, problem: str
) -> None:
    (tmp_path / "layers").mkdir()
    with pytest.raises(EdgeswarmError, match=f"{problem} that nano-1-000001 gave") as caught:
        gather(address, operator, round_number, tmp_path / "layers")
    assert caught.value.code is ErrorCode.WORKER_FAILED


def test_a_worker_that_is_gone_is_named(operator: Identity, tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="nano-1-000001") as caught:
        gather("127.0.0.1:9", operator, 4, tmp_path)
    assert caught.value.code is ErrorCode.DEVICE_UNREACHABLE


def test_a_disk_that_fails_is_no_fault_of_the_device(address: str, operator: Identity, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        gather(address, operator, 4, tmp_path / "gone")


@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_a_beginning_that_somebody_cleaned_up_is_told(
    address: str, operator: Identity, tmp_path: Path, damage: str
) -> None:
    known, folder = tmp_path / "known", tmp_path / "layers"
    known.mkdir()
    folder.mkdir()
    path = write_layer_file(known, 0, LayerState(0, {"w": torch.zeros(3)}))
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-1])
    fetchers = stage_fetchers(
        PLAN,
        job=JOB,
        round_number=4,
        addresses={"nano-1-000001": address},
        identity=operator,
        known_folder=known,
        folder=folder,
    )
    with pytest.raises(EdgeswarmError, match=rf"began with are gone or damaged: {path}") as caught:
        fetchers["nano-1-000001"]()
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "TMPDIR" in caught.value.remedy
