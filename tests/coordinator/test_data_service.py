from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.security.authority import create_cluster
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState, pack_layer, write_layer_file
from edgeswarm.wire.call_errors import error_of_call
from edgeswarm.wire.channel import secure_channel
from edgeswarm.wire.fetch import FETCH_LAYER, FETCH_SAMPLES, Message, SamplePart, fetch_blob
from edgeswarm.wire.tensor_samples import decode_items
from edgeswarm.wire.v1 import agent_pb2, data_pb2
from edgeswarm_coordinator.data_service import DataServiceProcess, DataServiceSettings

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
    started = DataServiceProcess(settings, log_path=folder / "service.log")
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def channel(process: DataServiceProcess, folder: Path) -> Iterator[grpc.Channel]:
    ready = process.wait_ready(60)
    process.check()
    identity = Identity.from_pem((folder / "operator" / "identity.pem").read_bytes())
    with secure_channel(f"127.0.0.1:{ready.port}", identity=identity, node_id=identity.node_id) as opened:
        yield opened


def ask(channel: grpc.Channel, method: str, request: Message) -> bytearray:
    try:
        return fetch_blob(channel, method, request, timeout_seconds=20)
    except grpc.RpcError as error:
        raise error_of_call(error, device="desk") from error


def samples(
    indices: list[int],
    part: SamplePart = SamplePart.BOTH,
    job_id: str = "digits-1",
    sample_set: data_pb2.SampleSet = data_pb2.SAMPLE_SET_TRAINING,
) -> Message:
    reference = agent_pb2.JobReference(job_id=job_id)
    return data_pb2.FetchSamplesRequest(job=reference, indices=indices, part=int(part), set=sample_set)  # type: ignore[arg-type]


def layer(index: int, round_number: int = 0) -> Message:
    reference = agent_pb2.JobReference(job_id="digits-1")
    return data_pb2.FetchLayerRequest(job=reference, layer=index, round=round_number)


def test_samples_by_index_in_the_order_asked_for(channel: grpc.Channel, folder: Path) -> None:
    targets = decode_items(ask(channel, FETCH_SAMPLES, samples([5, 3, 39], SamplePart.TARGETS)))
    assert targets == [5, 3, 39]
    inputs = decode_items(ask(channel, FETCH_SAMPLES, samples([5, 3], SamplePart.INPUTS)))
    assert torch.equal(torch.stack(inputs), torch.tensor([[10] * 3, [6] * 3], dtype=torch.uint8))  # type: ignore[arg-type]
    assert len(decode_items(ask(channel, FETCH_SAMPLES, samples(list(range(13)))))) == 13
    assert decode_items(ask(channel, FETCH_SAMPLES, samples([]))) == []
    assert "opening" in (folder / "service.log").read_text()  # what the user's code prints is not the answer


@pytest.mark.parametrize(
    ("index", "said"), [(13, "OSError: bad sector"), (14, "Item 14 of the dataset holds a set"), (40, "has 40")]
)
def test_an_item_that_fails_is_named(channel: grpc.Channel, index: int, said: str) -> None:
    with pytest.raises(EdgeswarmError, match=said) as caught:
        ask(channel, FETCH_SAMPLES, samples([1, index, 2]))
    assert caught.value.code is ErrorCode.DATA_FAILED
    assert f"Item {index}" in caught.value.message


def test_what_the_users_code_raised_is_told_with_the_users_line(channel: grpc.Channel) -> None:
    with pytest.raises(
        EdgeswarmError, match=r"can't be read: train\.py, line \d+: OSError: bad sector\. Correct"
    ) as caught:
        ask(channel, FETCH_SAMPLES, samples([13]))
    assert "Traceback" in caught.value.detail


def test_the_evaluation_set_is_opened_when_it_is_wanted(channel: grpc.Channel, folder: Path) -> None:
    ask(channel, FETCH_SAMPLES, samples([1]))
    assert "opening the other" not in (folder / "service.log").read_text()
    evaluation = data_pb2.SAMPLE_SET_EVALUATION
    data = ask(channel, FETCH_SAMPLES, samples([4, 0], SamplePart.TARGETS, sample_set=evaluation))
    assert decode_items(data) == [-4, 0]
    assert (folder / "service.log").read_text().count("opening the other") == 1
    with pytest.raises(EdgeswarmError, match=r"Item 3 of the evaluation dataset .* line \d+: KeyError: 'image'"):
        ask(channel, FETCH_SAMPLES, samples([3], sample_set=evaluation))
    with pytest.raises(EdgeswarmError, match="Item 5 was asked for, and the evaluation dataset has 5"):
        ask(channel, FETCH_SAMPLES, samples([5], sample_set=evaluation))


def test_layers_of_round_0_that_may_be_written_later(channel: grpc.Channel, folder: Path) -> None:
    with pytest.raises(EdgeswarmError, match="no state of layer 2 at round 0"):
        ask(channel, FETCH_LAYER, layer(2))
    state = LayerState(0, {"w": torch.rand(700, 700)})
    write_layer_file(folder / "snapshot", 2, state)
    assert ask(channel, FETCH_LAYER, layer(2)) == pack_layer(state)
    with pytest.raises(EdgeswarmError, match="at round 3") as caught:
        ask(channel, FETCH_LAYER, layer(2, round_number=3))
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
        with secure_channel(f"127.0.0.1:{ready.port}", identity=identity, node_id=identity.node_id) as channel:
            assert ask(channel, FETCH_LAYER, layer(5)) == pack_layer(state)
            with pytest.raises(EdgeswarmError):
                ask(channel, FETCH_SAMPLES, samples([1]))
    finally:
        service.stop()


def test_another_jobs_call_is_refused(channel: grpc.Channel) -> None:
    with pytest.raises(EdgeswarmError, match="belongs to job digits-1, not to 'other'"):
        ask(channel, FETCH_SAMPLES, samples([1], job_id="other"))


def test_a_stranger_is_refused(process: DataServiceProcess, channel: grpc.Channel, tmp_path: Path) -> None:
    _, stranger = create_cluster(authority_folder=tmp_path / "a", operator_folder=tmp_path / "o")
    port = channel._channel.target().decode().rpartition(":")[2]  # type: ignore[attr-defined]
    with (
        secure_channel(f"127.0.0.1:{port}", identity=stranger, node_id=stranger.node_id) as other,
        pytest.raises(EdgeswarmError) as caught,
    ):
        ask(other, FETCH_SAMPLES, samples([1]))
    assert caught.value.code in (ErrorCode.TRUST, ErrorCode.DEVICE_UNREACHABLE)


def test_a_dataset_that_does_not_open_is_said_with_the_users_line(settings: DataServiceSettings, folder: Path) -> None:
    source = JOB_FILE.replace('print("opening")', "open('no-such-file')")
    (folder / "job" / "broken.py").write_text(source)
    broken = DataServiceProcess(replace(settings, job_file="broken.py"), log_path=folder / "broken.log")
    broken.start()
    try:
        with pytest.raises(EdgeswarmError, match=r"^broken.py, line \d+: FileNotFoundError") as caught:
            broken.wait_ready(60)
        assert caught.value.code is ErrorCode.JOB_FILE
    finally:
        broken.stop()


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
