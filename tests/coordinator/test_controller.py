from __future__ import annotations

import threading
from datetime import datetime, timezone
from pathlib import Path

import pytest

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode
from edgeswarm.security.authority import CertificateAuthority
from edgeswarm_coordinator.command import new_job_id
from edgeswarm_coordinator.controller import list_devices, make_plan_for_job, train
from edgeswarm_coordinator.events import (
    FIND_DEVICES,
    LOAD_JOB,
    RESERVE_DEVICES,
    Event,
    JobBegins,
    StepDone,
    StepStarted,
)
from edgeswarm_coordinator.options import DiscoveryOptions, TrainOptions

from .stand_in_agent import StandInAgent


def options(job_path: Path, *agents: StandInAgent, output: Path | None = None) -> TrainOptions:
    discovery = DiscoveryOptions(peers=tuple(agent.address for agent in agents), mdns=False)
    return TrainOptions(job_path, output=output, listen_address="127.0.0.1", discovery=discovery)


def test_a_folder_that_exists_stops_everything_at_its_beginning(tmp_path: Path, folders: Folders) -> None:
    events: list[Event] = []
    with pytest.raises(EdgeswarmError) as caught:
        train(options(tmp_path / "job.py", output=tmp_path), folders=folders, listener=events.append)
    assert caught.value.code is ErrorCode.OUTPUT_EXISTS
    assert events == []


def test_without_a_cluster_the_remedy_is_init(tmp_path: Path, folders: Folders) -> None:
    with pytest.raises(EdgeswarmError) as caught:
        list_devices(DiscoveryOptions(mdns=False), folders=folders)
    assert caught.value.code is ErrorCode.TRUST
    assert "edgeswarm init" in caught.value.remedy


def test_no_device_is_exit_code_three(folders: Folders, authority: CertificateAuthority) -> None:
    with pytest.raises(EdgeswarmError) as caught:
        list_devices(DiscoveryOptions(mdns=False), folders=folders)
    assert caught.value.exit_code is ExitCode.NOTHING_FOUND


def test_devices_are_listed_busy_or_not(folders: Folders, authority: CertificateAuthority) -> None:
    with StandInAgent.of(authority, "nano-1-000001", busy_with_job="yesterday's") as agent:
        (device,) = list_devices(DiscoveryOptions(peers=(agent.address,), mdns=False), folders=folders)
    assert (device.short_name, device.busy_with_job, device.idle) == ("nano-1", "yesterday's", False)


def test_a_job_file_that_fails_frees_what_was_reserved(
    tmp_path: Path, folders: Folders, authority: CertificateAuthority
) -> None:
    marker = tmp_path / "reserved"
    (tmp_path / "job.py").write_text(
        "import pathlib, time\n"
        f"while not pathlib.Path({str(marker)!r}).exists(): time.sleep(0.01)\n"
        "raise ValueError('no luck')\n"
    )

    def listener(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == RESERVE_DEVICES:
            marker.touch()

    with StandInAgent.of(authority, "nano-1-000001") as agent:
        with pytest.raises(EdgeswarmError, match="no luck") as caught:
            train(options(tmp_path / "job.py", agent, output=tmp_path / "out"), folders=folders, listener=listener)
        assert caught.value.code is ErrorCode.JOB_FILE
        assert len(agent.reserved) == 1
        assert agent.released == agent.reserved
    assert not (tmp_path / "out").exists()


def test_busy_devices_are_one_message(tmp_path: Path, folders: Folders, authority: CertificateAuthority) -> None:
    (tmp_path / "job.py").write_text("import time\nfor _ in range(600): time.sleep(0.1)\n")
    with StandInAgent.of(authority, "nano-1-000001", busy_with_job="yesterday's") as agent:
        with pytest.raises(EdgeswarmError, match="nano-1-000001 is busy with job yesterday's") as caught:
            train(options(tmp_path / "job.py", agent, output=tmp_path / "out"), folders=folders)
        assert caught.value.code is ErrorCode.DEVICE_BUSY
        assert agent.reserved == []


@pytest.mark.parametrize(
    ("command", "step"),
    [
        (train, FIND_DEVICES),
        (train, LOAD_JOB),
        (train, RESERVE_DEVICES),
        (make_plan_for_job, FIND_DEVICES),  # which reserves what has to measure, once the job is loaded
        (make_plan_for_job, LOAD_JOB),
    ],
)
def test_cancel_frees_the_devices_at_any_step(
    tmp_path: Path, folders: Folders, authority: CertificateAuthority, step: str, command: object
) -> None:
    (tmp_path / "job.py").write_text("import time\nfor _ in range(600): time.sleep(0.1)\n")
    cancel = threading.Event()
    jobs: list[str] = []

    def listener(event: Event) -> None:
        if isinstance(event, JobBegins):
            jobs.append(event.job_id)
        if isinstance(event, StepStarted) and event.step == step:
            cancel.set()

    assert callable(command)
    with StandInAgent.of(authority, "nano-1-000001") as agent:
        with pytest.raises(EdgeswarmError) as caught:
            command(
                options(tmp_path / "job.py", agent, output=tmp_path / "out"),
                folders=folders,
                listener=listener,
                cancel=cancel,
            )
        assert caught.value.exit_code is ExitCode.INTERRUPTED
        # A Reserve under way is waited for: the Release comes behind it.
        assert agent.released == agent.reserved == (jobs if step == RESERVE_DEVICES else [])


def test_ctrl_c_is_an_interruption(tmp_path: Path, folders: Folders, authority: CertificateAuthority) -> None:
    def listener(event: Event) -> None:
        if isinstance(event, StepStarted) and event.step == FIND_DEVICES:
            raise KeyboardInterrupt

    with StandInAgent.of(authority, "nano-1-000001") as agent, pytest.raises(EdgeswarmError) as caught:
        list_devices(DiscoveryOptions(peers=(agent.address,), mdns=False), folders=folders, listener=listener)
    assert caught.value.code is ErrorCode.INTERRUPTED


def test_a_job_id_names_job_and_time() -> None:
    job_id = new_job_id("my job!", now=datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    assert job_id.startswith("my-job-20300102T030405Z-")
    assert len(job_id) == len("my-job-20300102T030405Z-") + 4
