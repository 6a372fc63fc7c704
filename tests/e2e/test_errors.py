"""Mistakes in a job and in a command: one message that names the thing and the remedy, and nothing half done.

What is found on this machine comes before anything runs; what a device finds, while it trains. After each the devices are
free, and after all of them an ordinary job runs.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeswarm.errors import ExitCode
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from .commands import EDGESWARM, RunningCommand, wait_until_idle
from .desk import ALONE, TWO_STAGES, WITH_REPLICAS, Desk, failed
from .faulty_job import FaultyJob, write_plan

pytestmark = pytest.mark.e2e

DEVICES = ("a", "b", "c")


@pytest.fixture
def desk(cluster: ThrowawayCluster, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(cluster, tmp_path)
    yield desk
    for command in desk.commands:
        command.kill()
    wait_until_idle(cluster, *DEVICES)


# --- what is found on this machine ------------------------------------------------------------------------------------

DECIDES = """
class Decides(nn.Module):
    def forward(self, values):
        return values if values.sum() > 0 else -values
"""
PARAMETERS = "[parameter for _, parameter in named]"
BY_PLACE = f"[dict(params={PARAMETERS}[:1], lr=0.3), dict(params={PARAMETERS}[1:])]"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        pytest.param(
            FaultyJob(top="sizes = [3 4]"),
            ("tiny.py, line 16: invalid syntax. Perhaps you forgot a comma?\n", "Correct the line"),
            id="syntax-error",
        ),
        pytest.param(FaultyJob(name="jop"), ("tiny.py has no `job`", "job = edgeswarm.Job"), id="no-job"),
        pytest.param(
            FaultyJob(more="bach_size=8,"),
            ("tiny.py, line", "unexpected keyword argument 'bach_size'"),
            id="no-such-field",
        ),
        pytest.param(
            FaultyJob(more="files=['sizes.txt'],"),
            ("there is no 'sizes.txt' in", "`files`"),
            marks=pytest.mark.soak,
            id="a-file-that-is-missing",
        ),
        pytest.param(
            FaultyJob(top="import no_such_module"),
            ("'no_such_module'", "this machine", "pip install"),
            id="module-missing-here",
        ),
        pytest.param(
            FaultyJob(model="raise RuntimeError('no weights')"),
            ("tiny.py, line", "RuntimeError: no weights", "building the model"),
            marks=pytest.mark.soak,
            id="model-raises",
        ),
        pytest.param(
            FaultyJob(model="return nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(5, 2)))"),
            ("cannot be multiplied (4x3 and 5x2)", "inputs float32 [4, 4]", "module 1.0 (Linear)"),
            id="model-fails-on-the-sample",
        ),
        pytest.param(
            FaultyJob(top=DECIDES, model="return nn.Sequential(nn.Linear(4, 2), Decides())"),
            ("by the values of a tensor in 1 (", "tiny.py:19: return values if values.sum() > 0", "torch.where"),
            id="model-decides-by-values",
        ),
        pytest.param(
            FaultyJob(dataset="raise FileNotFoundError('digits.npz')"),
            ("tiny.py, line", "digits.npz", "opening the dataset"),
            id="dataset-does-not-open",
        ),
        pytest.param(FaultyJob(items=0), ("The dataset is empty", "at least one sample"), id="dataset-is-empty"),
        pytest.param(
            FaultyJob(item="if index == 2: raise KeyError('label')"),
            ("tiny.py, line", "KeyError: 'label'", "item 2"),
            marks=pytest.mark.soak,
            id="an-early-item-raises",
        ),
        pytest.param(
            FaultyJob(item="if index == 3: return torch.zeros(5), torch.tensor(1)"),
            ("Items 0 and 3 of the dataset don't make one batch", "float32 [4]", "float32 [5]", "pad or crop"),
            id="items-of-different-shapes",
        ),
        pytest.param(
            FaultyJob(item="return torch.ones(4), torch.tensor(index % 3)"),
            ("Item 2 of the dataset has the label 2", "2 classes, 0 to 1", "give the model's last layer 3 outputs"),
            id="a-label-out-of-range",
        ),
        pytest.param(
            FaultyJob(loss="return functional.cross_entropy(output, targets, reduction='none')"),
            ("The loss returns a tensor of shape (4,)", "the mean over the rows"),
            marks=pytest.mark.soak,
            id="loss-is-a-vector",
        ),
        pytest.param(
            FaultyJob(loss="return (output * float('nan')).mean()"),
            ("The loss of the first 4 samples is nan", "data's range"),
            marks=pytest.mark.soak,
            id="loss-is-nan",
        ),
        pytest.param(
            FaultyJob(optimizer=f"return torch.optim.LBFGS({PARAMETERS})"),
            ("LBFGS computes the loss several times in one step", "AdamW"),
            marks=pytest.mark.soak,
            id="optimizer-of-several-steps",
        ),
        pytest.param(
            FaultyJob(optimizer=f"return torch.optim.SGD({BY_PLACE}, lr=0.1)"),
            ("The optimizer depends on which parameters", "2.bias is in group 1", "by its name alone"),
            id="a-group-by-place",
        ),
    ],
)
def test_a_job_that_does_not_hold_together_is_told_before_it_runs(
    desk: Desk, job: FaultyJob, words: tuple[str, ...]
) -> None:
    message = failed(desk, desk.train(job, groups=ALONE))
    assert [word for word in words if word not in message] == [], message
    wait_until_idle(desk.cluster, "a")


def test_a_plan_that_does_not_fit_is_told(desk: Desk) -> None:
    job = FaultyJob().write(desk.folder / "job")
    common = ("train", job, "--output", desk.output, "--no-mdns", "--plan")
    unknown = desk.start(*common, write_plan(desk.folder, ({"a": 4}, {"nobody": 4})))
    assert "The device nobody was not found" in failed(desk, unknown, code=ExitCode.NOTHING_FOUND)
    uncovered = desk.start(*common, write_plan(desk.folder, ({"a": 4},), layers=2))
    assert "The plan's stages end at layer 2, but the model has 3 layers" in failed(desk, uncovered)
    wait_until_idle(desk.cluster, *DEVICES)


def test_a_batch_too_small_for_its_micro_batches_is_told_before_anything_is_measured(desk: Desk) -> None:
    by_hand = failed(desk, desk.train(FaultyJob(), "--batch-size", "2", groups=ALONE))
    assert "The plan's round has 8 samples in 2 micro-batches of up to 4, but the batch size is 2" in by_hand
    assert "micro_batches" in by_hand.partition("remedy: ")[2]
    command = desk.train(FaultyJob(), "--micro-batch", "9", "--device", "c", "--fresh-profiles", groups=None)
    message = failed(desk, command)
    assert "A micro-batch of 9 samples is not possible: the batch size is 8" in message
    assert "from 1 to 8" in message
    assert "profile layers" not in command.end().said


def test_a_last_round_too_small_for_a_layer_is_told(desk: Desk) -> None:
    model = "return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))"
    message = failed(desk, desk.train(FaultyJob(model=model, items=41), groups=ALONE))
    assert (
        "The last round of an epoch has 1 sample (41 in batches of 8), but the layer 0 needs at least 2 at once"
        in message
    )
    assert "drop_last=True" in message


def test_a_result_that_exists_is_refused_at_once(desk: Desk) -> None:
    desk.output.mkdir()
    ended = desk.train(FaultyJob()).end()
    assert ended.code == ExitCode.ERROR
    assert f"{desk.output} exists already" in ended.message
    assert "--output" in ended.message
    assert list(desk.output.iterdir()) == []


def test_a_job_that_changes_the_current_folder_leaves_the_result_where_it_was_asked_for(desk: Desk) -> None:
    """Both here and in the data service, which begins where the command did."""
    (desk.folder / "elsewhere").mkdir()
    path = FaultyJob(top="import os\nif not ON_A_DEVICE:\n    os.chdir('elsewhere')").write(desk.folder / "job")
    plan = write_plan(desk.folder, ALONE)
    ended = desk.start("train", path, "--no-mdns", "--plan", plan, "--tensorboard", "curves").end()
    assert ended.code == ExitCode.DONE, ended.said
    assert (desk.folder / "edgeswarm-out-tiny" / "model.safetensors").is_file()
    assert [*(desk.folder / "curves").iterdir()]
    assert [*(desk.folder / "elsewhere").iterdir()] == []


def test_nobody_who_answers_is_exit_code_three(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    environment = {**desk.cluster.environment, "EDGESWARM_HOME": str(fresh_home(desk))}
    command = RunningCommand(
        [
            EDGESWARM,
            "train",
            FaultyJob().write(desk.folder / "job"),
            "--output",
            desk.output,
            "--no-mdns",
            "--peer",
            nobody,
        ],
        environment=environment,
        temporary=desk.folder / "temporary",
    )
    desk.commands.append(command)
    message = failed(desk, command, code=ExitCode.NOTHING_FOUND)
    assert f"No device was found (tried {nobody})" in message
    assert "edgeswarm-agent run" in message


def fresh_home(desk: Desk) -> Path:
    """The operator's folder without the addresses that it remembers."""
    home = desk.folder / "operator"
    (home / "state").mkdir(parents=True)
    for name in ("authority", "operator"):
        (home / "state" / name).symlink_to(desk.cluster.operator_home / "state" / name)
    return home


# --- what a device finds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "words"),
    [
        pytest.param(
            FaultyJob(item="if index == 1234: raise OSError('unreadable')", items=2000),
            ("Item 1234 of the dataset", "OSError: unreadable"),
            marks=pytest.mark.soak,
            id="a-late-item-raises",
        ),
        pytest.param(
            FaultyJob(item="if index == 37: return torch.zeros(5), torch.tensor(1)"),
            ("37 of the dataset", "don't make one batch", "float32 [5]", "pad or crop"),
            marks=pytest.mark.soak,
            id="a-late-item-of-another-shape",
        ),
        pytest.param(
            FaultyJob(item="if index == 37: return torch.ones(4), torch.tensor(5)"),
            ("Item 37 of the dataset has the label 5", "2 classes, 0 to 1", "{b}", "6 outputs"),
            id="a-late-label-out-of-range",
        ),
        pytest.param(
            FaultyJob(loss="if ON_A_DEVICE and output.grad_fn: raise ValueError('too late')"),
            ("tiny.py, line", "ValueError: too late", "{b}"),
            id="the-loss-raises-on-a-device",
        ),
        pytest.param(
            FaultyJob(loss="if ON_A_DEVICE: return output.sum(1)"),
            ("The loss returned a tensor of shape (4,)", "{b}", "the mean over its rows"),
            marks=pytest.mark.soak,
            id="the-loss-is-a-vector-on-a-device",
        ),
        pytest.param(
            FaultyJob(transform="if ON_A_DEVICE: raise ValueError('no colours')"),
            ("tiny.py, line", "ValueError: no colours", "Correct the"),
            marks=pytest.mark.soak,
            id="the-transform-raises-on-a-device",
        ),
    ],
)
def test_a_job_that_fails_on_a_device_names_the_thing(desk: Desk, job: FaultyJob, words: tuple[str, ...]) -> None:
    message = failed(desk, desk.train(job, groups=TWO_STAGES))
    places = {name: desk.cluster.node_id(name) for name in DEVICES}
    assert [word for word in words if word.format(**places) not in message] == [], message
    wait_until_idle(desk.cluster, "a", "b")


def test_a_module_that_only_the_coordinator_has_is_named_with_the_device(desk: Desk) -> None:
    libraries = desk.folder / "libraries"
    libraries.mkdir()
    (libraries / "only_here.py").write_text("")
    path = os.pathsep.join(filter(None, (str(libraries), os.environ.get("PYTHONPATH", ""))))
    message = failed(desk, desk.train(FaultyJob(top="import only_here"), groups=ALONE, PYTHONPATH=path))
    assert "'only_here'" in message
    assert desk.cluster.node_id("a") in message
    wait_until_idle(desk.cluster, *DEVICES)


def test_a_loss_that_is_no_number_is_told_once_and_stands_in_the_result(desk: Desk) -> None:
    job = FaultyJob(loss="if ON_A_DEVICE and float(output.abs().sum()) > 0: return (output * float('nan')).mean()")
    ended = desk.train(job, groups=TWO_STAGES).end()
    assert ended.code == ExitCode.DONE, ended.said
    warnings = [line for line in ended.said.splitlines() if line.startswith("warning: ")]
    (warning,) = warnings
    assert warning.startswith(
        "warning: The loss of round 1 is nan. Try a smaller learning rate, or clip_gradient_norm."
    )
    metrics = json.loads((desk.output / "metrics.json").read_text())
    assert [done["loss"] for done in metrics["rounds"]] == [None] * 10
    assert metrics["totals"]["rounds_without_a_loss"] == 10


def test_items_that_differ_each_time_are_a_warning(desk: Desk) -> None:
    ended = desk.train(FaultyJob(item="return torch.rand(4), torch.tensor(index % 2)"), groups=ALONE).end()
    assert ended.code == ExitCode.DONE, ended.said
    assert "warning: Item 0 of the dataset differs each time it is read" in ended.said


def test_after_all_of_this_a_job_runs_to_its_end(desk: Desk) -> None:
    command = desk.train(FaultyJob(), groups=WITH_REPLICAS)
    ended = command.end()
    assert ended.code == ExitCode.DONE, ended.said
    assert (desk.output / "model.safetensors").is_file()
    assert list(command.temporary.glob("edgeswarm*")) == []
