"""A device and its worker, without a coordinator."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import ErrorCode
from edgeswarm_agent import device as device_module
from edgeswarm_agent import hang
from edgeswarm_agent.device import Device, LastPart
from edgeswarm_agent.reservation import JobCall
from edgeswarm_agent.supervisor import WorkerSettings
from edgeswarm_agent.telemetry.hardware_now import HardwareNow

from .processes import exists, wait_until

# Waits for a neighbour, and says so again and again, as a worker does.
REPORTING_WORKER = """
import os, sys, time
from edgeswarm.wire.v1 import agent_pb2, worker_pb2
from edgeswarm_agent.pipe import MessagePipe

events = int(sys.argv[sys.argv.index("--events-fd") + 1])
pipe = MessagePipe(os.fdopen(os.dup(0), "rb"), os.fdopen(events, "wb", buffering=0))
pipe.send(worker_pb2.WorkerEvent(hello=worker_pb2.WorkerHello(process_id=os.getpid(), port=4321)))
while True:
    pipe.send(worker_pb2.WorkerEvent(progress=agent_pb2.WorkerProgress(action="waiting for nano-2", round=7)))
    time.sleep(0.02)
"""
CALL = JobCall("digits-1", 1)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """It looks often, and loses its patience soon."""
    for module in (device_module, hang):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
        monkeypatch.setattr(module, "SILENT_SECONDS", 0.6)
    settings = WorkerSettings(
        device="nano-1",
        identity_folder=tmp_path,
        listen="127.0.0.1:0",
        log_path=tmp_path / "worker.log",
        command=(sys.executable, "-c", REPORTING_WORKER),
    )
    made = Device(settings, hardware=HardwareNow(threads=1), log=lambda line: None)
    yield made
    made.close("the test is over")


def test_a_worker_that_says_nothing_any_more_is_ended(device: Device) -> None:
    """Stopped, it hears no SIGABRT either."""
    device.reserve(CALL, who="ada on desk", lease_seconds=30.0)
    worker = device.worker(CALL, start=True)
    device.prepared(LastPart("train.py", opened_data=False), rehearsal_seconds=0.0)
    time.sleep(0.8)  # longer than that
    assert worker.alive, "it says something now and then"
    os.kill(worker.process_id, signal.SIGSTOP)
    wait_until(lambda: worker.end is not None)
    assert worker.end is not None
    assert worker.end.code is ErrorCode.WORKER_DIED
    assert worker.end.message.endswith(
        "died: it hung and the agent ended it: for more than 1 s nothing was heard of it; "
        "it was at this: waiting for nano-2, round 8."
    )
    assert not exists(worker.process_id)
