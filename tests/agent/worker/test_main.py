"""The real worker process, by the pipe that the daemon has to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.wire.v1 import agent_pb2, worker_pb2
from edgeswarm_agent.supervisor import WorkerProcess, WorkerSettings
from edgeswarm_agent.worker.main import readable_error

from ..processes import Cluster


@pytest.mark.thorough
def test_a_halt_ends_what_came_before_it_though_it_had_not_begun(tmp_path: Path) -> None:
    identity, folders = Cluster.create(tmp_path).agent("nano-1")
    settings = WorkerSettings(
        device=identity.node_id,
        identity_folder=folders.agent_dir,
        listen="127.0.0.1:0",
        log_path=tmp_path / "worker.log",
    )
    worker = WorkerProcess(settings, on_event=lambda event: None, on_death=lambda error: None)
    try:
        # Sent before torch is imported: they wait in the queue, and the halt is read before the prepare begins.
        request = agent_pb2.PrepareRequest(job=agent_pb2.JobReference(job_id="job-1", term=1, epoch=1))
        prepare = worker.send(worker_pb2.WorkerCommand(prepare=worker_pb2.PrepareCommand(request=request)))
        halt = worker.send(worker_pb2.WorkerCommand(halt=agent_pb2.HaltRequest()))
        with pytest.raises(EdgeswarmError, match="the epoch was halted"):
            prepare.next(60)
        assert halt.next(60).HasField("halted")
        # What the user's code reads, and what it starts, takes no command away.
        assert Path(f"/proc/{worker.process_id}/fd/0").readlink() == Path("/dev/null")
        # A later one is not halted: it fails for what it lacks.
        request.training.job_file = "train.py"
        command = worker_pb2.PrepareCommand(request=request, bundle_folder=str(tmp_path))
        with pytest.raises(EdgeswarmError) as caught:
            worker.request(worker_pb2.WorkerCommand(prepare=command), 60)
        assert caught.value.code is ErrorCode.JOB_FILE
        assert caught.value.message == f"There is no job file {tmp_path / 'train.py'}."
        # Nor are there layers that could be kept.
        request.keeps_layers = True
        with pytest.raises(EdgeswarmError, match="this worker has none of the job"):
            worker.request(worker_pb2.WorkerCommand(prepare=worker_pb2.PrepareCommand(request=request)), 60)
    finally:
        worker.kill("the test is over")


def test_what_is_true_of_the_device_alone_names_it() -> None:
    refused = EdgeswarmError(
        ErrorCode.GRAPH_REFUSED, "The model uses aten.x, which PyTorch 2.1 doesn't have.", "Newer."
    )
    told = readable_error(refused, "nano-1")
    assert told.message == "The model uses aten.x, which PyTorch 2.1 doesn't have (on nano-1)."
    assert told.remedy == "Newer."
    elsewhere = EdgeswarmError(ErrorCode.DATA_FAILED, "Item 3 can't be read.", "Mend it.")
    assert readable_error(elsewhere, "nano-1") is elsewhere
