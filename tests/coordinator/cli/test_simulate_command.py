"""`edgeswarm simulate --instance`: a round with a plan, without any device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeswarm.errors import ExitCode

from .conftest import Invoke
from .test_plan_command import small_instance


def by_hand() -> dict[str, Any]:
    stages = [
        {"first_layer": 0, "end_layer": 3, "shares": {"quick": 2}, "in_flight": 3},
        {"first_layer": 3, "end_layer": 4, "shares": {"steady": 2}, "in_flight": 1},
    ]
    return {"format": "edgeswarm-plan/1", "micro_batch": 2, "micro_batches": 4, "stages": stages}


@pytest.fixture
def instance_file(tmp_path: Path) -> Path:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(small_instance()))
    return path


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(by_hand()))
    return path


def test_json_is_one_document(instance_file: Path, plan_file: Path, invoke: Invoke) -> None:
    result = invoke("simulate", "--instance", str(instance_file), "--plan", str(plan_file), "--json")
    assert result.exit_code == ExitCode.DONE
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document["format"] == "edgeswarm-simulation/1"
    assert document["plan"]["micro_batches"] == 4
    # 3 layers of 1 + 2 ms a sample: 4 x 18 ms at the least.
    assert 0.072 < document["round_seconds"] < 0.095
    assert document["samples_per_second"] == pytest.approx(8 / document["round_seconds"])
    assert set(document["devices"]) == {"quick", "steady"}
    forward = [e for e in document["events"] if (e["device"], e["track"], e["kind"]) == ("quick", "compute", "forward")]
    assert [event["micro_batch"] for event in forward] == [0, 1, 2, 3]
    assert document["limits"][0]["text"] == "computing in stage 0"
    assert sum(limit["fraction"] for limit in document["limits"]) == pytest.approx(1.0)


def test_beside_a_plan_nothing_is_planned(instance_file: Path, plan_file: Path, invoke: Invoke) -> None:
    result = invoke(
        "simulate",
        "--instance",
        str(instance_file),
        "--plan",
        str(plan_file),
        "--planner",
        "single",
        "--micro-batch",
        "8",
    )
    assert result.exit_code == ExitCode.USAGE
    assert "--micro-batch, --planner can't be given beside --plan: the plan is there" in result.stderr
    other_devices = invoke("simulate", "job.py", "--plan", str(plan_file), "--device", "nano-1")
    assert other_devices.exit_code == ExitCode.USAGE


def test_a_person_sees_devices_memory_and_the_round_drawn(instance_file: Path, plan_file: Path, invoke: Invoke) -> None:
    result = invoke("simulate", "--instance", str(instance_file), "--plan", str(plan_file))
    assert result.exit_code == ExitCode.DONE
    for words in ("8 samples in 4 micro-batches of 2", "samples/s", "computing in stage 0", "of 953.7 MiB", "|F0"):
        assert words in result.stdout, words
    assert all(len(line) <= 160 for line in result.stdout.splitlines())
    assert "\x1b[" not in result.output


def test_an_instance_of_real_devices_takes_their_short_names(
    instance_file: Path, plan_file: Path, invoke: Invoke
) -> None:
    instance_file.write_text(instance_file.read_text().replace('"quick"', '"quick-0a4f22"'))
    result = invoke("simulate", "--instance", str(instance_file), "--plan", str(plan_file), "--json")
    assert list(json.loads(result.stdout)["devices"]) == ["quick-0a4f22", "steady"]


def test_a_plan_with_both_names_of_one_device(instance_file: Path, plan_file: Path, invoke: Invoke) -> None:
    instance_file.write_text(instance_file.read_text().replace('"quick"', '"quick-0a4f22"'))
    plan_file.write_text(plan_file.read_text().replace('"steady"', '"quick-0a4f22"'))
    result = invoke("simulate", "--instance", str(instance_file), "--plan", str(plan_file))
    assert result.exit_code == ExitCode.ERROR
    assert "The plan has quick and quick-0a4f22, which are one device." in result.stderr


def test_a_smaller_last_micro_batch_is_told(instance_file: Path, plan_file: Path, invoke: Invoke) -> None:
    plan = {**by_hand(), "micro_batch": 3, "micro_batches": 3, "last_micro_batch": 2}
    for stage in plan["stages"]:
        stage["shares"] = dict.fromkeys(stage["shares"], 3)
    plan_file.write_text(json.dumps(plan))
    result = invoke("simulate", "--instance", str(instance_file), "--plan", str(plan_file))
    assert "8 samples in 3 micro-batches of 3, the last one of 2, takes" in result.stdout


def test_a_person_sees_the_memory_that_is_tried_before_the_first_round(
    instance_file: Path, plan_file: Path, invoke: Invoke
) -> None:
    """A stage behind slower ones never has as many in flight as it may, but tries that."""

    def told() -> dict[str, Any]:
        result = invoke("simulate", "--instance", str(instance_file), "--plan", str(plan_file), "--json")
        steady: dict[str, Any] = json.loads(result.stdout)["devices"]["steady"]
        return steady

    one = told()
    plan = by_hand()
    plan["stages"][1]["in_flight"] = 4
    plan_file.write_text(json.dumps(plan))
    four = told()
    assert four["peak_memory_bytes"] - one["peak_memory_bytes"] == 3 * 2 * 200
    assert four["memory_over_time"] == one["memory_over_time"]


def test_without_a_plan_the_planner_makes_one(instance_file: Path, invoke: Invoke) -> None:
    result = invoke("simulate", "--instance", str(instance_file), "--planner", "pipeline", "--json")
    assert json.loads(result.stdout)["plan"]["planner"] == "pipeline"


def test_a_trace_file(instance_file: Path, plan_file: Path, tmp_path: Path, invoke: Invoke) -> None:
    trace = tmp_path / "round.json"
    command = ("simulate", "--instance", str(instance_file), "--plan", str(plan_file), "--trace")
    assert invoke(*command, str(trace)).exit_code == ExitCode.DONE
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"forward 0", "backward 3", "process_name", "memory"} <= names
    failed = invoke(*command, str(tmp_path / "absent" / "round.json"))
    assert failed.exit_code == ExitCode.ERROR
    assert "can't be written" in failed.stderr
    assert "remedy: " in failed.stderr


def test_a_plot(instance_file: Path, plan_file: Path, tmp_path: Path, invoke: Invoke) -> None:
    picture = tmp_path / "round.svg"
    command = ("simulate", "--instance", str(instance_file), "--plan", str(plan_file), "--plot")
    assert invoke(*command, str(picture)).exit_code == ExitCode.DONE
    assert "<svg" in picture.read_text()
    assert invoke(*command, str(tmp_path / "absent" / "round.svg")).exit_code == ExitCode.ERROR


def test_a_plan_for_other_devices_is_one_message(
    instance_file: Path, tmp_path: Path, plan_file: Path, invoke: Invoke
) -> None:
    plan = by_hand()
    plan["stages"][1]["shares"] = {"absent": 2}
    plan_file.write_text(json.dumps(plan))
    result = invoke("simulate", "--instance", str(instance_file), "--plan", str(plan_file))
    assert result.exit_code == ExitCode.ERROR
    assert result.stderr.startswith("error: The plan uses absent")
    other = tmp_path / "other.json"
    other.write_text("{")
    assert "not JSON" in invoke("simulate", "--instance", str(instance_file), "--plan", str(other)).stderr


def test_a_job_or_an_instance_but_not_both(instance_file: Path, invoke: Invoke) -> None:
    assert invoke("simulate").exit_code == ExitCode.USAGE
    assert invoke("simulate", str(instance_file), "--instance", str(instance_file)).exit_code == ExitCode.USAGE
