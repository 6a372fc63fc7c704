"""`edgeswarm plan --instance`: from a file to a plan, without any device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode
from edgeswarm.plan import Plan
from edgeswarm_coordinator.planner import alternatives, planners

from .conftest import Invoke

INSTANCES = Path(__file__).parents[4] / "shared" / "data" / "instances"


def small_instance(*, memory_bytes: int = 10**9) -> dict[str, Any]:
    """Four equal layers, two devices of which one is half as fast, a network that costs little."""
    layer = {"param_bytes": 1000, "output_bytes": 100, "saved_bytes": 200, "flops_forward": 1e6, "flops_backward": 2e6}
    sizes = [1, 2, 4, 8]

    def profile(seconds: float) -> dict[str, Any]:
        return {
            "batch_sizes": sizes,
            "forward_seconds": [[seconds * size] * 4 for size in sizes],
            "backward_seconds": [[2 * seconds * size] * 4 for size in sizes],
        }

    return {
        "format": "edgeswarm-planning-instance/1",
        "model": {"input_bytes": 64, "layers": [{"name": f"layer{index}", **layer} for index in range(4)]},
        "profiles": {"fast": profile(0.001), "slow": profile(0.002)},
        "devices": [
            {"name": "quick", "profile": "fast", "memory_bytes": memory_bytes},
            {"name": "steady", "profile": "slow", "memory_bytes": memory_bytes},
        ],
        "network": {"latency_seconds": 0.0001, "bandwidth_bytes_per_second": 1e8},
        "training": {"mini_batch": 8, "optimizer_state_bytes_per_parameter_byte": 1.0},
    }


@pytest.fixture
def instance_file(tmp_path: Path) -> Path:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(small_instance()))
    return path


def test_json_is_one_plan_document(instance_file: Path, invoke: Invoke) -> None:
    result = invoke("plan", "--instance", str(instance_file), "--json")
    assert result.exit_code == ExitCode.DONE
    document = json.loads(result.stdout)
    assert document["format"] == "edgeswarm-plan/1"
    plan = Plan.from_json(document)
    assert plan.mini_batch == 8
    assert plan.predicted is not None
    assert result.stderr == ""


def test_what_it_planned_by_can_be_kept(instance_file: Path, invoke: Invoke, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    first = invoke("plan", "--instance", str(instance_file), "--write-instance", str(kept), "--json")
    assert first.exit_code == ExitCode.DONE
    again = invoke("plan", "--instance", str(kept), "--json")
    assert json.loads(again.stdout) == json.loads(first.stdout)
    failed = invoke("plan", "--instance", str(instance_file), "--write-instance", str(tmp_path / "no/such/folder.json"))
    assert failed.exit_code == ExitCode.ERROR
    assert "there is no such folder" in failed.stderr
    assert "can't be written" in failed.stderr


def test_a_person_sees_layers_devices_memory_and_what_limits_the_round(instance_file: Path, invoke: Invoke) -> None:
    result = invoke("plan", "--instance", str(instance_file))
    assert result.exit_code == ExitCode.DONE
    for word in (
        "layer0",
        "layer3",
        "quick",
        "steady",
        "samples/s",
        "limits the round",
        "of 953.7 MiB",
        "nothing is kept yet: of",
    ):
        assert word in result.stdout, word


def test_beside_the_plan_stand_the_bound_and_other_planners(instance_file: Path, invoke: Invoke) -> None:
    """Per sample 4 layers take 12 ms on quick and 24 ms on steady: 8 samples take 64 ms at least."""
    text = " ".join(invoke("plan", "--instance", str(instance_file)).stdout.split())
    assert "No plan can be faster than 64.0 ms a round (125.0 samples/s)" in text
    document = json.loads(invoke("plan", "--instance", str(instance_file), "--json").stdout)
    assert document["bound_seconds"] == pytest.approx(0.064)
    single = next(other for other in document["comparison"] if other["name"] == "single")
    assert single["plan"]["predicted"]["round_seconds"] == pytest.approx(0.096)
    assert document["what_if"] == []


def test_the_plan_is_printed_before_the_other_planners_are_asked(
    instance_file: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_arguments: object, **_options: object) -> NoReturn:
        raise EdgeswarmError(ErrorCode.NO_DEVICES, "asked now")

    monkeypatch.setattr(alternatives, "of_planners", asked)
    result = invoke("plan", "--instance", str(instance_file), "--planner", "single")
    assert "asked now" in result.stderr
    assert "limits the round" in result.stdout
    assert "No plan can be faster" in result.stdout


def test_planners_that_would_take_too_long_are_left_out(
    instance_file: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planners, "MOST_WORK", 0)
    text = " ".join(invoke("plan", "--instance", str(instance_file)).stdout.split())
    assert "left out" in text
    assert "asteroid: planning for 2 devices and 4 layers would take it too long" in text
    document = json.loads(invoke("plan", "--instance", str(instance_file), "--json").stdout)
    left_out = [other["name"] for other in document["comparison"] if other.get("left_out")]
    assert left_out == ["asteroid", "pipeline", "pipedream", "dapple"]
    assert all("plan" in other for other in document["comparison"] if other["name"] not in left_out)


def test_how_sure_the_prediction_is(tmp_path: Path, invoke: Invoke) -> None:
    document = small_instance()
    for profile in document["profiles"].values():
        profile["sums_error"] = 0.05
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(document))
    said = json.loads(invoke("plan", "--instance", str(path), "--planner", "single", "--json").stdout)["predicted"]
    assert said["relative_error"] == pytest.approx(0.05, rel=0.01)
    text = " ".join(invoke("plan", "--instance", str(path), "--planner", "single").stdout.split())
    assert "Expected: 96.0 ms a round (+-5 %), 83.3 samples/s." in text


def test_what_if(instance_file: Path, invoke: Invoke) -> None:
    changes = ["--what-if", "-steady", "--what-if", "+quick,quick.memory=1KiB"]
    arguments = ["plan", "--instance", str(instance_file), "--planner", "data-parallel", *changes]
    result = invoke(*arguments)
    assert result.exit_code == ExitCode.DONE
    assert "-steady" in result.stdout
    document = json.loads(invoke(*arguments, "--json").stdout)
    assert [set(stage["shares"]) for stage in document["stages"]] == [{"quick", "steady"}]
    gone, more = document["what_if"]
    assert [gone["name"], more["name"]] == ["-steady", "+quick,quick.memory=1KiB"]
    assert [list(stage["shares"]) for stage in gone["plan"]["stages"]] == [["quick"]]


def test_changes_are_tried_and_what_was_measured_is_kept_where_no_plan_fits(tmp_path: Path, invoke: Invoke) -> None:
    path, kept = tmp_path / "instance.json", tmp_path / "kept.json"
    path.write_text(json.dumps(small_instance(memory_bytes=100)))
    more = "quick.memory=1GiB,steady.memory=1GiB"
    changes = ["--what-if", more, "--what-if", "-steady"]
    arguments = ["plan", "--instance", str(path), "--planner", "data-parallel", "--write-instance", str(kept), *changes]
    result = invoke(*arguments)
    assert result.exit_code == ExitCode.CANNOT_BE_PLACED
    path.write_text(json.dumps(small_instance(memory_bytes=2**30)))
    roomy = json.loads(invoke("plan", "--instance", str(path), "--planner", "data-parallel", "--json").stdout)
    rows = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines()]
    speeds = {row[1]: row[2:5] for row in rows if len(row) > 5}
    assert speeds[more][1:] == [f"{roomy['predicted']['samples_per_second']:.1f}", "2"]
    assert speeds["-steady"] == ["no plan", "", ""]
    assert "-steady: No plan of the planner 'data-parallel' fits" in result.stdout
    path.write_text(json.dumps(small_instance(memory_bytes=100)))
    assert result.stderr.count("error: ") == 1
    assert json.loads(kept.read_text())["devices"][0]["memory_bytes"] == 100
    asked = invoke(*arguments, "--json")
    assert asked.exit_code == ExitCode.CANNOT_BE_PLACED
    assert list(json.loads(asked.stdout)) == ["error"]


def test_what_a_change_assumes_is_said(tmp_path: Path, invoke: Invoke) -> None:
    document = small_instance()
    document["devices"] = [{**document["devices"][0], "board": "Jetson Nano"}]
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(document))
    arguments = ["plan", "--instance", str(path), "--planner", "single", "--what-if", "+Jetson"]
    text = " ".join(invoke(*arguments).stdout.split())
    assert "+Jetson: One more like quick: its links" in text
    assert "+Jetson: No link between two devices was measured: 1000 Mbit/s" in text
    assert len(json.loads(invoke(*arguments, "--json").stdout)["what_if"][0]["assumptions"]) == 2


def test_a_size_that_is_none_is_refused_before_the_job_is_looked_at(tmp_path: Path, invoke: Invoke) -> None:
    job = tmp_path / "job.py"
    job.write_text("raise SystemExit('looked at')")
    result = invoke("plan", str(job), "--what-if", "nano.memory=abc")
    assert result.exit_code == ExitCode.USAGE
    assert "nano.memory: 'abc' is not a size" in result.stderr
    assert result.stderr.count("error: ") == 1


def test_a_plot_of_the_timeline(instance_file: Path, tmp_path: Path, invoke: Invoke) -> None:
    picture = tmp_path / "timeline.png"
    assert invoke("plan", "--instance", str(instance_file), "--plot", str(picture)).exit_code == ExitCode.DONE
    assert picture.stat().st_size > 1000
    result = invoke("plan", "--instance", str(instance_file), "--plot", str(tmp_path / "timeline.doc"))
    assert result.exit_code == ExitCode.USAGE
    assert ".png, .svg, .pdf" in result.stderr


@pytest.mark.parametrize(("change", "named"), [("steady", "none of"), ("-idle", "'idle': there is no such device")])
def test_a_change_that_cannot_be_is_a_usage_error(change: str, named: str, instance_file: Path, invoke: Invoke) -> None:
    result = invoke("plan", "--instance", str(instance_file), "--planner", "single", "--what-if", change)
    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == ""
    assert named in result.stderr
    assert result.stderr.count("error: ") == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--batch-size", "64", "--seed", "1"), "--batch-size, --seed"),
        (("--wire-dtype", "float16"), "--wire-dtype"),
        (("--device", "nano-1"), "--device"),
        (("--no-mdns",), "--no-mdns"),
        (("--fresh-profiles",), "--fresh-profiles"),
    ],
)
def test_what_an_instance_says_itself_cannot_be_given(
    given: tuple[str, ...], named: str, instance_file: Path, invoke: Invoke
) -> None:
    for command in ("plan", "simulate"):
        result = invoke(command, "--instance", str(instance_file), *given)
        assert result.exit_code == ExitCode.USAGE
        assert f"{named} can't be given beside --instance: the file has its own devices" in result.stderr


def test_a_folder_that_is_not_there_is_told_before_anything_is_planned(tmp_path: Path, invoke: Invoke) -> None:
    job = tmp_path / "job.py"
    job.write_text("1 / 0\n")  # what reads it fails
    for command in (("plan", "--write-instance"), ("simulate", "--trace")):
        result = invoke(command[0], str(job), command[1], str(tmp_path / "none" / "kept.json"))
        assert result.exit_code == ExitCode.ERROR
        assert f"{command[1]} {tmp_path}/none/kept.json can't be written: there is no such folder" in result.stderr


def test_no_colour_where_nobody_looks(instance_file: Path, invoke: Invoke) -> None:
    assert "\x1b[" not in invoke("plan", "--instance", str(instance_file)).output


@pytest.mark.parametrize("planner", ["data-parallel", "pipeline", "single"])
def test_the_planner_and_the_micro_batch_are_the_callers(planner: str, instance_file: Path, invoke: Invoke) -> None:
    result = invoke("plan", "--instance", str(instance_file), "--json", "--planner", planner, "--micro-batch", "4")
    plan = Plan.from_json(json.loads(result.stdout))
    assert (plan.planner, plan.micro_batch, plan.micro_batches) == (planner, 4, 2)


def test_what_fits_no_device_is_exit_code_4(tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(small_instance(memory_bytes=1000)))
    result = invoke("plan", "--instance", str(path))
    assert result.exit_code == ExitCode.CANNOT_BE_PLACED
    assert "error: " in result.stderr
    assert "remedy: " in result.stderr
    document = invoke("plan", "--instance", str(path), "--json")
    assert json.loads(document.stdout)["error"]["code"] == "no-plan-fits"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("not json", "is not a JSON file"),
        ("[]", "instance"),
        (json.dumps({**small_instance(), "devices": "none"}), "devices"),
        (json.dumps({**small_instance(), "format": "something-else/3"}), "format"),
    ],
)
def test_a_bad_instance_file_is_one_message(text: str, named: str, tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "instance.json"
    path.write_text(text)
    result = invoke("plan", "--instance", str(path))
    assert result.exit_code == ExitCode.ERROR
    assert named in result.stderr
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.parametrize("name", ["vgg16-A-100", "resnet18-D-100", "alexnet-C-100"])
def test_public_instances(name: str, invoke: Invoke) -> None:
    path = INSTANCES / f"{name}.json"
    if not path.exists():
        pytest.skip("the folder of public profiles is not beside the checkout")
    result = invoke("plan", "--instance", str(path), "--json")
    assert result.exit_code == ExitCode.DONE
    instance = json.loads(path.read_text())
    plan = Plan.from_json(json.loads(result.stdout))
    assert plan.layer_count == len(instance["model"]["layers"])
    assert plan.mini_batch == instance["training"]["mini_batch"]
    budget = {device["name"]: device["memory_bytes"] for device in instance["devices"]}
    assert plan.predicted is not None
    assert all(used <= budget[device] for device, used in plan.predicted.memory_bytes.items())
