"""`edgeswarm train` and `plan` where they can't even begin: one message, the right exit code, nothing written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeswarm.errors import ExitCode
from edgeswarm_coordinator import command
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.supervision import Supervision

from .conftest import Invoke

BROKEN_JOBS = {
    "syntax": ("job = (\n", "job.py"),
    "no job": ("answer = 42\n", "has no `job`"),
    "another type": ("job = 42\n", "Job"),
    "a module that is missing": ("import no_such_module_anywhere\n", "no_such_module_anywhere"),
    "an exception": ("1 / 0\n", "division by zero"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThrowawayCluster]:
    with ThrowawayCluster(["nano-1"], mdns=False) as running:
        yield running


@pytest.fixture
def of_the_cluster(
    cluster: ThrowawayCluster, monkeypatch: pytest.MonkeyPatch, invoke: Invoke, tmp_path: Path
) -> Invoke:
    """The command line of the cluster's operator, in an empty current folder."""
    monkeypatch.setenv("EDGESWARM_HOME", str(cluster.operator_home))
    monkeypatch.chdir(tmp_path)
    return invoke


@pytest.mark.parametrize("kind", BROKEN_JOBS)
@pytest.mark.parametrize("name", ["plan", "train"])
def test_a_job_file_that_does_not_load_is_one_message(
    name: str, kind: str, cluster: ThrowawayCluster, of_the_cluster: Invoke, tmp_path: Path
) -> None:
    source, named = BROKEN_JOBS[kind]
    (tmp_path / "job.py").write_text(source)
    result = of_the_cluster(name, "job.py", "--no-mdns", "--peer", cluster.address("nano-1"))
    assert result.exit_code == ExitCode.ERROR
    assert named in result.stderr
    assert result.stderr.count("error: ") == 1
    assert result.stdout == ""
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("edgeswarm-out")] == []


@pytest.mark.parametrize("name", ["plan", "train"])
def test_within_which_time_a_device_is_lost_is_a_setting(
    name: str, of_the_cluster: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Supervision] = []

    def recorded(**given: Any) -> Supervision:
        made.append(Supervision(**given))
        return made[-1]

    monkeypatch.setattr(command, "Supervision", recorded)
    monkeypatch.setenv("EDGESWARM_LOST_SECONDS", "3.5")
    (tmp_path / "job.py").write_text("1 / 0\n")
    assert of_the_cluster(name, "job.py", "--no-mdns").exit_code != ExitCode.DONE
    assert [supervision.state.lost_seconds for supervision in made] == [3.5]


def test_what_a_job_file_prints_stays_out_of_the_data(
    cluster: ThrowawayCluster, of_the_cluster: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text("print('loading the data')\nraise ValueError('no data')\n")
    result = of_the_cluster("plan", "job.py", "--no-mdns", "--peer", cluster.address("nano-1"), "--json")
    assert json.loads(result.stdout)["error"]["code"]
    assert "loading the data" in result.stderr


def test_the_agent_is_idle_after_all_that(cluster: ThrowawayCluster, of_the_cluster: Invoke) -> None:
    result = of_the_cluster("devices", "--json", "--no-mdns", "--peer", cluster.address("nano-1"))
    assert json.loads(result.stdout)["devices"][0]["busy_with_job"] == ""


def test_an_output_folder_that_exists_is_refused_before_anything_starts(of_the_cluster: Invoke, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    (tmp_path / "out").mkdir()
    result = of_the_cluster("train", "job.py", "--output", "out", "--no-mdns")
    assert result.exit_code == ExitCode.ERROR
    assert "out exists already" in result.stderr
    assert "--output" in result.stderr


@pytest.mark.parametrize("text", ["{", '{"format": "edgeswarm-plan/1", "micro_batch": 0}'])
def test_a_bad_plan_file_is_one_message(text: str, of_the_cluster: Invoke, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    (tmp_path / "plan.json").write_text(text)
    result = of_the_cluster("train", "job.py", "--plan", "plan.json", "--no-mdns", "--json")
    assert result.exit_code == ExitCode.ERROR
    assert json.loads(result.stdout)["error"]["code"] == "plan-invalid"
