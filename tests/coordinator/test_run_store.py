"""The folder of runs: which training is meant, which still lives, which are forgotten; with real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator import run_store
from edgeswarm_coordinator.processes import lives, process_of, send_signal, this_machine, this_process, wait_for_end
from edgeswarm_coordinator.run_events import ended
from edgeswarm_coordinator.run_store import KEPT_ENDED_RUNS, RECORD_FILE, RecordFile, RunStore, read_run
from edgeswarm_coordinator.runs import ProcessName, RunRecord, RunState

from .test_runs import BEGUN

HERE = dataclasses.replace(BEGUN, host=socket.gethostname(), machine=this_machine())


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


@pytest.fixture
def another_process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def keep(store: RunStore, job_id: str, *, running: bool = False, started: float = 1000.0, name: str = "") -> RunRecord:
    record = dataclasses.replace(
        HERE, job_id=job_id, name=name or job_id.split("-", maxsplit=1)[0], started=started, process=this_process()
    )
    if not running:
        record = ended(record, None, now=started + 1)
    (store.folder_of(job_id) / RECORD_FILE).write_text(json.dumps(record.to_json()))
    return record


def test_nothing_there_is_an_empty_list_and_makes_no_folder(store: RunStore) -> None:
    assert store.all() == []
    assert not store.folder.exists()


def test_newest_first(store: RunStore) -> None:
    for number in (2, 3, 1):
        keep(store, f"digits-{number}", started=1000.0 * number)
    assert [run.record.job_id for run in store.all()] == ["digits-3", "digits-2", "digits-1"]


def test_a_training_is_found_by_id_by_its_beginning_and_by_name(store: RunStore) -> None:
    keep(store, "digits-20260105-aaaa")
    keep(store, "my-words-20260105-bbbb", name="my words")
    for asked in ("digits-20260105-aaaa", "digits-2026", "digits"):
        assert store.find(asked).record.job_id == "digits-20260105-aaaa"
    assert store.find("my words").record.job_id == "my-words-20260105-bbbb"


def test_an_id_that_begins_another_one_is_meant_itself(store: RunStore) -> None:
    keep(store, "digits-1")
    keep(store, "digits-10")
    assert store.find("digits-1").record.job_id == "digits-1"


def test_of_several_the_one_that_runs_is_meant(store: RunStore) -> None:
    keep(store, "digits-1")
    keep(store, "digits-2")
    with pytest.raises(EdgeswarmError) as caught:
        store.find("digits")
    assert caught.value.code is ErrorCode.CONFIG
    assert "digits-1" in caught.value.message
    assert "digits-2" in caught.value.message
    keep(store, "digits-3", running=True)
    assert store.find("digits").record.job_id == "digits-3"


def test_a_whole_name_is_meant_before_the_beginning_of_an_id_even_of_one_that_runs(store: RunStore) -> None:
    keep(store, "job-20260105-aaaa")
    keep(store, "job_long-20260106-bbbb", running=True)
    assert store.find("job").record.job_id == "job-20260105-aaaa"
    assert store.find("job_").record.job_id == "job_long-20260106-bbbb"


def test_one_that_is_not_there(store: RunStore) -> None:
    with pytest.raises(EdgeswarmError) as caught:
        store.find("digits")
    assert caught.value.code is ErrorCode.NO_SUCH_JOB


def test_the_only_one_that_runs(store: RunStore) -> None:
    keep(store, "digits-1")
    with pytest.raises(EdgeswarmError) as caught:
        store.only_one_running()
    assert caught.value.code is ErrorCode.NO_SUCH_JOB
    keep(store, "digits-2", running=True)
    assert store.only_one_running().record.job_id == "digits-2"
    keep(store, "words-1", running=True)
    with pytest.raises(EdgeswarmError) as several:
        store.only_one_running()
    assert several.value.code is ErrorCode.CONFIG
    assert "words-1" in several.value.message


def test_a_damaged_record_is_told_and_hides_no_other(store: RunStore) -> None:
    keep(store, "digits-1")
    (store.folder_of("words-1") / RECORD_FILE).write_text("{")
    assert [run.record.job_id for run in store.all()] == ["digits-1"]
    assert "words-1" in store.unreadable[0].message


def test_only_the_newest_ended_ones_are_kept_and_all_that_run(store: RunStore) -> None:
    keep(store, "old-but-running", running=True, started=1.0)
    for number in range(KEPT_ENDED_RUNS + 3):
        keep(store, f"digits-{number:03d}", started=10.0 + number)
    store.forget_old()
    kept = {run.record.job_id for run in store.all()}
    assert len(kept) == KEPT_ENDED_RUNS + 1
    assert "old-but-running" in kept
    assert kept.isdisjoint({"digits-000", "digits-001", "digits-002"})


def test_a_process_that_is_gone_is_lost_and_so_is_one_whose_number_another_has(
    store: RunStore, another_process: subprocess.Popen[bytes]
) -> None:
    pid = another_process.pid
    living = process_of(pid)
    assert living is not None
    folder = store.folder_of("digits-1")
    for process, state in (
        (living, RunState.RUNNING),
        (ProcessName(pid, "1 of an earlier boot"), RunState.LOST),
    ):
        record = dataclasses.replace(HERE, job_id="digits-1", process=process)
        (folder / RECORD_FILE).write_text(json.dumps(record.to_json()))
        assert read_run(folder).state is state
    assert not send_signal(ProcessName(pid, "1 of an earlier boot"), 9)
    assert another_process.poll() is None
    assert send_signal(living, 9)
    assert wait_for_end(living, timeout_seconds=10.0), "one that waits for its parent has ended"
    assert not lives(living)


def test_one_of_another_machine_may_live(store: RunStore) -> None:
    record = dataclasses.replace(BEGUN, machine="another machine", job_id="digits-1", updated=time.time() - 3600.0)
    folder = store.folder_of("digits-1")
    (folder / RECORD_FILE).write_text(json.dumps(record.to_json()))
    run = read_run(folder)
    assert run.state is RunState.RUNNING
    assert run.elsewhere
    # Nobody has written it for so long that the machine must have gone.
    record = dataclasses.replace(record, updated=time.time() - 30 * 24 * 3600.0)
    (folder / RECORD_FILE).write_text(json.dumps(record.to_json()))
    assert read_run(folder).state is RunState.LOST


def test_a_machine_that_is_called_otherwise_now_is_the_same(store: RunStore) -> None:
    """One that was killed there is lost, and one that runs can be stopped."""
    gone = dataclasses.replace(HERE, host="before", job_id="digits-1", process=ProcessName(1, "of another boot"))
    living = dataclasses.replace(HERE, host="before", job_id="digits-2", process=this_process())
    for record in (gone, living):
        (store.folder_of(record.job_id) / RECORD_FILE).write_text(json.dumps(record.to_json()))
    found = {run.record.job_id: (run.state, run.elsewhere) for run in store.all()}
    assert found == {"digits-1": (RunState.LOST, False), "digits-2": (RunState.RUNNING, False)}


def test_a_process_whose_name_is_no_text_is_one_all_the_same() -> None:
    """The kernel cuts names to fifteen bytes, in the middle of a letter."""
    code = "import time\nopen('/proc/self/comm', 'wb').write('обучение'.encode())\nprint(1, flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = process_of(process.pid)
        process.kill()
    assert found is not None


def test_this_process_lives() -> None:
    assert lives(this_process())
    assert this_process().pid == os.getpid()


def test_the_file_is_there_at_once_and_follows_now_and_then(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write_every_seconds = 0.05
    monkeypatch.setattr(run_store, "_WRITE_EVERY_SECONDS", write_every_seconds)
    folder = store.folder_of("digits-1")
    begun = time.monotonic()
    file = RecordFile(folder, HERE)
    assert read_run(folder).record == HERE
    versions = {HERE.round}
    number = HERE.round
    while len(versions) < 3 and time.monotonic() < begun + 30.0:
        number += 1
        file.record = dataclasses.replace(HERE, round=number)
        versions.add(read_run(folder).record.round)
        time.sleep(0.005)
    assert 3 <= len(versions) <= 1 + (time.monotonic() - begun) / write_every_seconds
    file.record = ended(HERE, None, now=2000.0)
    file.close()
    assert read_run(folder).state is RunState.DONE
    assert file.problem is None


def test_a_record_that_cannot_be_written_is_a_problem_and_no_failure(store: RunStore) -> None:
    folder = store.folder_of("digits-1")
    file = RecordFile(folder, HERE)
    (folder / RECORD_FILE).unlink()
    folder.rmdir()
    file.record = dataclasses.replace(HERE, round=3)
    file.close()
    assert isinstance(file.problem, OSError)
