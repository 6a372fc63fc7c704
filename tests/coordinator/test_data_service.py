from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import create_cluster
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState, pack_layer, write_layer_file
from edgeswarm.wire.byte_stream import open_stream
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.fetch import FETCH_LAYER, fetch_blob
from edgeswarm.wire.sample_stream import SamplePart, ask_for_samples
from edgeswarm.wire.tensor_samples import decode_items
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from edgeswarm_coordinator.data_service import DataServiceProcess, DataServiceReady, DataServiceSettings

JOB_FILE = """
import sys
import edgeswarm
import torch
from numbers_beside_it import SCALE

class Data:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        print("reading", index)
        if index == 13:
            raise OSError("bad sector")
        if index == 14:
            return {1, 2}, 0
        return torch.full((3,), index * SCALE, dtype=torch.uint8), index

class EvaluationData(Data):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        if index == 3:
            raise KeyError("image")
        return torch.ones(2), -index

def evaluation():
    print("opening the other")
    sys.stdout.flush()
    return EvaluationData()

def data():
    print("opening")
    sys.stdout.flush()
    return Data()

job = edgeswarm.Job(
    model=print, dataset=data, loss=print, optimizer=print, batch_size=8, evaluation_dataset=evaluation
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("service")
    for name in ("job", "snapshot"):
        (folder / name).mkdir()
    (folder / "job" / "train.py").write_text(JOB_FILE)
    (folder / "job" / "numbers_beside_it.py").write_text("SCALE = 2")
    create_cluster(authority_folder=folder / "authority", operator_folder=folder / "operator")
    return folder


@pytest.fixture(scope="module")
def settings(folder: Path) -> DataServiceSettings:
    return DataServiceSettings(
        identity_folder=str(folder / "operator"),
        listen_address="127.0.0.1:0",
        job_folder=str(folder / "job"),
        job_file="train.py",
        job_id="digits-1",
        snapshot_folder=str(folder / "snapshot"),
    )


@pytest.fixture(scope="module")
def process(settings: DataServiceSettings, folder: Path) -> Iterator[DataServiceProcess]:
    with running(settings, folder / "service.log") as started:
        yield started


@contextlib.contextmanager
def running(settings: DataServiceSettings, log_path: Path) -> Iterator[DataServiceProcess]:
    service = DataServiceProcess(settings, log_path=log_path)
    service.start()
    try:
        yield service
    finally:
        service.stop()


@dataclass(frozen=True)
class Service:
    """The service's ports, as a member of its cluster calls them."""

    identity: Identity
    layers_port: int
    samples_port: int

    def layer(self, index: int, round_number: int = 0) -> bytearray:
        reference = agent_pb2.JobReference(job_id="digits-1")
        request = data_pb2.FetchLayerRequest(job=reference, layer=index, round=round_number)
        address = f"127.0.0.1:{self.layers_port}"
        with secure_channel(address, identity=self.identity, node_id=self.identity.node_id) as channel:
            try:
                return fetch_blob(channel, FETCH_LAYER, request, timeout_seconds=20)
            except grpc.RpcError as error:
                raise error_of_call(error, device="desk") from error

    def samples(self, request: data_pb2.FetchSamplesRequest) -> bytearray:
        address = f"127.0.0.1:{self.samples_port}"
        with contextlib.closing(open_stream(address, identity=self.identity, node_id=self.identity.node_id)) as stream:
            stream.within(20)
            return ask_for_samples(stream, request)


@pytest.fixture(scope="module")
def service(process: DataServiceProcess, folder: Path) -> Service:
    ready = process.wait_ready(60)
    process.check()
    identity = Identity.from_pem((folder / "operator" / "identity.pem").read_bytes())
    return Service(identity, ready.layers_port, ready.samples_port)


def samples(
    indices: list[int],
    part: SamplePart = SamplePart.BOTH,
    job_id: str = "digits-1",
    sample_set: data_pb2.SampleSet = data_pb2.SAMPLE_SET_TRAINING,
) -> data_pb2.FetchSamplesRequest:
    reference = agent_pb2.JobReference(job_id=job_id)
    return data_pb2.FetchSamplesRequest(job=reference, indices=indices, part=int(part), set=sample_set)  # type: ignore[arg-type]


def test_samples_by_index_in_the_order_asked_for(service: Service, folder: Path) -> None:
    targets = decode_items(service.samples(samples([5, 3, 39], SamplePart.TARGETS)))
    assert targets == [5, 3, 39]
    inputs = decode_items(service.samples(samples([5, 3], SamplePart.INPUTS)))
    assert torch.equal(torch.stack(inputs), torch.tensor([[10] * 3, [6] * 3], dtype=torch.uint8))  # type: ignore[arg-type]
    assert len(decode_items(service.samples(samples(list(range(13)))))) == 13
    assert decode_items(service.samples(samples([]))) == []
    assert "opening" in (folder / "service.log").read_text()  # what the user's code prints is not the answer


@pytest.mark.parametrize(
    ("index", "said"), [(13, "OSError: bad sector"), (14, "Item 14 of the dataset holds a set"), (40, "has 40")]
)
def test_an_item_that_fails_is_named(service: Service, index: int, said: str) -> None:
    with pytest.raises(EdgeswarmError, match=said) as caught:
        service.samples(samples([1, index, 2]))
    assert caught.value.code is ErrorCode.DATA_FAILED
    assert f"Item {index}" in caught.value.message


def test_what_the_users_code_raised_is_told_with_the_users_line(service: Service) -> None:
    with pytest.raises(
        EdgeswarmError, match=r"can't be read: train\.py, line \d+: OSError: bad sector\. Correct"
    ) as caught:
        service.samples(samples([13]))
    assert "Traceback" in caught.value.detail


def test_the_evaluation_set_is_open_before_anybody_asks(service: Service, folder: Path) -> None:
    """One that takes long would keep a device waiting for more than a call may take."""
    assert (folder / "service.log").read_text().count("opening the other") == 1
    evaluation = data_pb2.SAMPLE_SET_EVALUATION
    data = service.samples(samples([4, 0], SamplePart.TARGETS, sample_set=evaluation))
    assert decode_items(data) == [-4, 0]
    assert (folder / "service.log").read_text().count("opening the other") == 1
    with pytest.raises(EdgeswarmError, match=r"Item 3 of the evaluation dataset .* line \d+: KeyError: 'image'"):
        service.samples(samples([3], sample_set=evaluation))
    with pytest.raises(EdgeswarmError, match="Item 5 was asked for, and the evaluation dataset has 5"):
        service.samples(samples([5], sample_set=evaluation))


def test_a_full_disk_for_what_the_data_set_prints_is_no_reason_to_stop(settings: DataServiceSettings) -> None:
    with running(settings, Path("/dev/full")) as process:
        assert process.wait_ready().samples_port > 0
        process.check()


def test_layers_of_round_0_that_may_be_written_later(service: Service, folder: Path) -> None:
    with pytest.raises(EdgeswarmError, match="no state of layer 2 at round 0"):
        service.layer(2)
    state = LayerState(0, {"w": torch.rand(700, 700)})
    write_layer_file(folder / "snapshot", 2, state)
    assert service.layer(2) == pack_layer(state)
    with pytest.raises(EdgeswarmError, match="at round 3") as caught:
        service.layer(2, round_number=3)
    assert caught.value.code is ErrorCode.STALE_CALL


def test_where_no_samples_are_served_the_job_is_not_loaded(settings: DataServiceSettings, folder: Path) -> None:
    """The devices have their own data: what is wrong with them here is no matter."""
    (folder / "job" / "wrong.py").write_text("raise ValueError")
    service = DataServiceProcess(
        replace(settings, job_file="wrong.py", serves_samples=False), log_path=folder / "none.log"
    )
    service.start()
    try:
        ready = service.wait_ready(60)
        assert service._process is not None
        maps = Path(f"/proc/{service._process.pid}/maps").read_text()
        assert "libtorch" not in maps
        state = LayerState(0, {"w": torch.rand(7)})
        write_layer_file(folder / "snapshot", 5, state)
        identity = Identity.from_pem((folder / "operator" / "identity.pem").read_bytes())
        assert ready.samples_port == 0
        assert Service(identity, ready.layers_port, 0).layer(5) == pack_layer(state)
    finally:
        service.stop()


def test_another_jobs_call_is_refused(service: Service) -> None:
    with pytest.raises(EdgeswarmError, match="belongs to job digits-1, not to 'other'"):
        service.samples(samples([1], job_id="other"))


def test_a_stranger_is_refused(service: Service, tmp_path: Path) -> None:
    _, stranger = create_cluster(authority_folder=tmp_path / "a", operator_folder=tmp_path / "o")
    other = replace(service, identity=stranger)
    with pytest.raises(EdgeswarmError) as caught:
        other.samples(samples([1]))
    assert caught.value.code is ErrorCode.TRUST
    with pytest.raises(EdgeswarmError) as caught:
        other.layer(1)
    assert caught.value.code in (ErrorCode.TRUST, ErrorCode.DEVICE_UNREACHABLE)


def test_one_that_trusts_us_and_is_none_of_ours_has_nothing(service: Service, tmp_path: Path) -> None:
    _, stranger = create_cluster(authority_folder=tmp_path / "a", operator_folder=tmp_path / "o")
    ours = service.identity
    mixed = Identity(ours.node_id, stranger.key_pem, stranger.certificate_pem, ours.authority_pem)
    with pytest.raises((OSError, EOFError)):
        replace(service, identity=mixed).samples(samples([1]))


def test_with_a_port_of_the_settings_samples_are_at_the_one_behind_it(
    settings: DataServiceSettings, folder: Path
) -> None:
    first = free_port_before_a_free_one()
    chosen = replace(settings, listen_address=f"127.0.0.1:{first}")
    with running(chosen, folder / "chosen.log") as service:
        assert service.wait_ready(60) == DataServiceReady(first, first + 1, "127.0.0.1")


def test_where_another_program_has_that_one_it_is_told(settings: DataServiceSettings, folder: Path) -> None:
    """At any other port a firewall might shut the devices out."""
    first = free_port_before_a_free_one()
    chosen = replace(settings, listen_address=f"127.0.0.1:{first}")
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        running(chosen, folder / "taken.log") as service,
        pytest.raises(EdgeswarmError, match=f"127.0.0.1:{first + 1} already.*another data_port") as caught,
    ):
        service.wait_ready(60)
    assert caught.value.code is ErrorCode.PORT_IN_USE


def free_port_before_a_free_one() -> int:
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port: int = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
                return port


def test_a_dataset_that_does_not_open_is_said_with_the_users_line(settings: DataServiceSettings, folder: Path) -> None:
    source = JOB_FILE.replace('print("opening")', "open('no-such-file')")
    (folder / "job" / "broken.py").write_text(source)
    with (
        running(replace(settings, job_file="broken.py"), folder / "broken.log") as broken,
        pytest.raises(EdgeswarmError, match=r"^broken.py, line \d+: FileNotFoundError") as caught,
    ):
        broken.wait_ready(60)
    assert caught.value.code is ErrorCode.JOB_FILE


def test_one_that_is_killed_is_explained(settings: DataServiceSettings, folder: Path) -> None:
    killed = DataServiceProcess(replace(settings, serves_samples=False), log_path=folder / "killed.log")
    killed.start()
    try:
        assert killed._process is not None
        killed._process.kill()
        for _ in range(2):
            with pytest.raises(EdgeswarmError, match="ended by SIGKILL") as caught:
                killed.wait_ready(60)
            assert caught.value.code is ErrorCode.DATA_FAILED
        with pytest.raises(EdgeswarmError, match="ended by SIGKILL"):
            killed.check()
    finally:
        killed.stop()
        killed.stop()


def test_of_what_a_dataset_prints_the_end_is_kept(settings: DataServiceSettings, folder: Path) -> None:
    log = folder / "talkative.log"
    # Beforehand: a service that loads no job is there sooner, and has no data set that would print that.
    log.write_bytes(6000 * (999 * b"-" + b"\n") + b"the end\n")
    talkative = DataServiceProcess(replace(settings, serves_samples=False), log_path=log)
    talkative.start()
    try:
        talkative.wait_ready(60)
        talkative.check()
        assert log.read_bytes().endswith(b"the end\n")
        assert log.stat().st_size <= 8000
    finally:
        talkative.stop()
    kept = log.read_bytes()
    assert b"the end\ndata service of job digits-1 ends after" in kept  # it went on where the end is now


def test_it_ends_when_its_parent_is_gone(settings: DataServiceSettings, tmp_path: Path) -> None:
    code = (
        "import json, os, pathlib, sys\n"
        "from edgeswarm_coordinator.data_service import DataServiceProcess, DataServiceSettings\n"
        "log = pathlib.Path(sys.argv[2])\n"
        "service = DataServiceProcess(DataServiceSettings(**json.loads(sys.argv[1])), log_path=log)\n"
        "service.start(); service.wait_ready(60)\n"
        "print(service._process.pid, 'torch' in sys.modules, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    of_layers = replace(settings, serves_samples=False)
    ran = subprocess.run(
        [sys.executable, "-c", code, json.dumps(of_layers.__dict__), str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL
    pid, torch_in_parent = ran.stdout.split()
    assert torch_in_parent == "False"
    for _ in range(1000):
        if not is_running(int(pid)):
            break
        signal.sigtimedwait([], 0.02)
    assert not is_running(int(pid))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_stopping_leaves_no_process_behind(settings: DataServiceSettings, tmp_path: Path) -> None:
    service = DataServiceProcess(settings, log_path=tmp_path / "log")
    service.stop()  # never started
    service.start()
    service.stop()  # not ready yet
    assert service._process is not None
    assert service._process.poll() is not None
