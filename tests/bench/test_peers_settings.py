"""What a peer's settings are chosen by."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.peers import settings
from bench.peers.launch import PeerRun
from bench.peers.own_process import in_own_process
from bench.peers.settings import PeerSettings, PeerTuner, Trials, block_costs
from bench.scaling import nanos
from bench.testbed.bed import EmulatedLan
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT


class Seen(nn.Module):
    """A convolution that writes down whether what it gets, and its weights, lie channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.channels_last: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        parts = (x, self.convolution.weight)
        self.channels_last += [part.is_contiguous(memory_format=torch.channels_last) for part in parts]
        found: Tensor = self.convolution(x)
        return found


@pytest.mark.parametrize("channels_last", [False, True])
def test_blocks_are_timed_as_the_pipeline_lays_them_out(monkeypatch: pytest.MonkeyPatch, channels_last: bool) -> None:
    block = Seen()
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    seconds, output_bytes = block_costs([block], torch.randn(2, 3, 32, 32), channels_last=channels_last)
    assert set(block.channels_last) == {channels_last}
    assert len(seconds) == 1
    assert output_bytes == [2 * 4 * 30 * 30 * 4]


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PeerTuner:
    """Of two nanos, each as fast as the other, on a machine whose pace nobody wrote down."""
    monkeypatch.setattr(settings, "slowness", lambda *_: None)
    environment = nanos(2)
    return PeerTuner(
        EmulatedLan(environment),
        "mobilenet_v2",
        mini_batch=100,
        rates={device.name: 1.0 for device in environment.devices},
        cores={device.name: 0.5 for device in environment.devices},
        channels_last=True,
        trials=Trials(),
        folder=tmp_path,
    )


def ran(seconds: float, *cpu_seconds: float) -> PeerRun:
    return PeerRun(round_seconds=(seconds,), round_ends=(seconds,), cpu_seconds=cpu_seconds)


@pytest.mark.parametrize(
    ("seconds_of", "further", "expected"),
    [
        (lambda count: abs(count - 32), True, (32, {16, 32, 64})),
        (lambda count: count, True, (2, {2, 4, 8, 16, 32, 64})),
        (lambda count: count, False, (16, {16, 32, 64})),
        (lambda count: 1 / count, True, (64, {16, 32, 64})),
    ],
)
def test_more_and_fewer_micro_batches_are_tried_while_the_best_is_at_an_end(
    monkeypatch: pytest.MonkeyPatch,
    tuner: PeerTuner,
    seconds_of: Callable[[int], float],
    further: bool,
    expected: tuple[int, set[int]],
) -> None:
    """Down to as many as there are stages, and up to the mini-batch of 100. expected: the best, and what is tried."""
    best, tried = expected
    tuner._trials = Trials(further=further)
    asked: list[bool] = []
    counts: set[int] = set()

    def costs(model: str, micro_batch: int, *, channels_last: bool) -> tuple[list[float], list[int]]:
        asked.append(channels_last)
        return [1.0, 1.0], [0, 0]

    def timed(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        micro_batch = int(words[words.index("--micro-batch") + 1])
        count = next(each for each in (2, 4, 8, 16, 32, 64) if 100 // each == micro_batch)
        counts.add(count)
        return ran(seconds_of(count))

    monkeypatch.setattr(settings, "costs_of_blocks", costs)
    monkeypatch.setattr(settings, "run_peer", timed)
    found = tuner.pipeline(bytes_per_second=1e9)
    assert set(asked) == {True}
    assert counts == tried
    assert (found.channels_last, len(found.devices), found.micro_batch) == (True, 2, 100 // best)


@pytest.mark.parametrize(
    ("quickest", "slower", "tried"), [(3, 1.0, [4, 3, 2]), (2, 1.0, [4, 3, 2]), (4, 1.0, [4, 3]), (4, 0.1, [4, 3, 2])]
)
def test_fewer_stages_are_tried_until_that_is_much_slower(
    monkeypatch: pytest.MonkeyPatch, tuner: PeerTuner, quickest: int, slower: float, tried: list[int]
) -> None:
    """By balance alone it would be as many stages as there are devices, or micro-batches."""
    tuner._rates = dict.fromkeys(("a", "b", "c", "d"), 1.0)
    tuner._trials = Trials(micro_batches=(25,))
    stages: list[int] = []

    def timed(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        if words[words.index("--micro-batch") + 1] != "4":
            return ran(100.0)
        stages.append(len(devices))
        return ran(1.0 + slower * abs(len(devices) - quickest))

    monkeypatch.setattr(settings, "costs_of_blocks", lambda *_, **__: ([1.0] * 12, [0] * 12))
    monkeypatch.setattr(settings, "run_peer", timed)
    assert len(tuner.pipeline(bytes_per_second=1e9).devices) == quickest
    assert stages == tried


def test_what_is_timed_has_the_allocator_that_ranks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    wanted = {**ALLOCATOR_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    # By a command, since a function of this module would have that process import torch.
    variables = in_own_process(subprocess.getoutput, "env").splitlines()
    assert {f"{name}={value}" for name, value in wanted.items()} <= set(variables)
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.thorough
def test_a_models_blocks_are_timed_in_a_process_of_their_own() -> None:
    seconds, output_bytes = settings.costs_of_blocks("mobilenet_v2", 2, channels_last=True)
    assert len(seconds) == len(output_bytes) == 19
    assert min(seconds) > 0


@pytest.mark.parametrize(("corrected_seconds", "shares"), [(0.8, "80,20"), (1.2, "50,50")])
def test_shares_are_corrected_by_how_busy_each_device_was(
    monkeypatch: pytest.MonkeyPatch, tuner: PeerTuner, corrected_seconds: float, shares: str
) -> None:
    """Alone both were as fast; together the first is done with its half in a quarter of the other's time. Kept if it helps."""

    def run(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        return ran(corrected_seconds if "80,20" in words else 1.0, 0.25, 1.0)

    monkeypatch.setattr(settings, "run_peer", run)
    found = tuner.data_parallel({"nano-1": 8, "nano-2": 16})
    assert found["DDP, shares by speed"].options["shares"] == shares
    assert found["DDP, equal shares"].options["shares"] == "50,50"
    assert found["DDP, equal shares"].options["at-once"] == "8,16"


def test_where_few_settings_are_tried_shares_are_as_devices_do_alone(
    monkeypatch: pytest.MonkeyPatch, tuner: PeerTuner
) -> None:
    tuner._trials = Trials(further=False)
    monkeypatch.setattr(settings, "run_peer", lambda *_, **__: ran(1.0, 0.25, 1.0))
    assert tuner.data_parallel({"nano-1": 8, "nano-2": 8})["DDP, shares by speed"].options["shares"] == "50,50"


def test_rounds_before_those_that_count() -> None:
    plain = PeerSettings("single_device", ["nano-1"], 8)
    words = plain.words("mobilenet_v2", 64, rounds=5, seconds=10, warm_up_seconds=4.0)
    assert words[words.index("--warm-up-seconds") + 1] == "4.0"
    words = plain.words("mobilenet_v2", 64, rounds=5, seconds=10, warm_up_seconds=4.0, is_trial=True)
    assert words[words.index("--warm-up-seconds") + 1] == "0"


def test_a_trial_of_the_whole_mini_batch_is_not_run_again(monkeypatch: pytest.MonkeyPatch, tuner: PeerTuner) -> None:
    """Micro-batches are so large that each device has one of a round."""
    buckets: list[str] = []

    def run(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        assert words[words.index("--mini-batch") + 1] == "100"
        buckets.append(words[words.index("--bucket-mib") + 1])
        return ran(1.0, 1.0, 1.0)

    monkeypatch.setattr(settings, "run_peer", run)
    tuner.data_parallel({"nano-1": 50, "nano-2": 50})
    assert buckets == ["2", "25"]


def test_devices_without_memory_for_it_compute_fewer_samples_at_once(
    monkeypatch: pytest.MonkeyPatch, tuner: PeerTuner
) -> None:
    tuner._cores["nano-2"] = 0.25

    def run(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        at_once = words[words.index("--at-once") + 1]
        if int(at_once.split(",")[1]) > 4:
            return PeerRun(problem="out of memory on nano-2", short_of_memory="nano-2")
        return ran(1.0, 1.0, 1.0)

    monkeypatch.setattr(settings, "run_peer", run)
    assert tuner.data_parallel({"nano-1": 16, "nano-2": 16})["DDP, equal shares"].options["at-once"] == "16,4"


def test_a_whole_round_that_memory_does_not_hold_is_tried_with_fewer_samples_at_once(
    monkeypatch: pytest.MonkeyPatch, tuner: PeerTuner
) -> None:
    tried: list[tuple[str, str]] = []

    def run(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        at_once, mini_batch = (words[words.index(f"--{what}") + 1] for what in ("at-once", "mini-batch"))
        tried.append((mini_batch, at_once))
        if mini_batch == "100" and int(at_once.split(",")[0]) > 8:
            return PeerRun(problem="out of memory on nano-1", short_of_memory="nano-1")
        return ran(1.0, 1.0, 1.0)

    monkeypatch.setattr(settings, "run_peer", run)
    found = tuner.data_parallel({"nano-1": 16, "nano-2": 16})
    assert found["DDP, shares by speed"].options["at-once"] == "8,8"
    assert [at_once for mini_batch, at_once in tried if mini_batch == "100"] == ["16,16", "8,8"]


def test_a_setting_that_ran_while_the_machine_was_slow_is_no_slower_for_it(
    monkeypatch: pytest.MonkeyPatch, tuner: PeerTuner
) -> None:
    """Of buckets: the first ran at half the pace."""
    monkeypatch.setattr(settings, "slowness", lambda _, begin, end: 2.0 if end > 1.0 else 1.0)

    def run(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        return ran(1.6 if words[words.index("--bucket-mib") + 1] == "2" else 0.9, 1.0, 1.0)

    monkeypatch.setattr(settings, "run_peer", run)
    found = tuner.data_parallel({"nano-1": 8, "nano-2": 8})
    assert found["DDP, equal shares"].options["bucket-mib"] == "2"
