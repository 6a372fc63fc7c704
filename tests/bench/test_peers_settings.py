"""What a peer's settings are chosen by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.peers import settings
from bench.peers.launch import PeerRun
from bench.peers.settings import PeerTuner, Trials, block_costs
from bench.scaling import nanos
from bench.testbed.bed import EmulatedLan


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
    ("seconds_of", "best", "tried"),
    [
        (lambda count: abs(count - 32), 32, {16, 32, 64}),
        (lambda count: count, 2, {2, 4, 8, 16, 32, 64}),
        (lambda count: 1 / count, 64, {16, 32, 64}),
    ],
)
def test_more_and_fewer_micro_batches_are_tried_while_the_best_is_at_an_end(
    monkeypatch: pytest.MonkeyPatch, tuner: PeerTuner, seconds_of: Callable[[int], float], best: int, tried: set[int]
) -> None:
    """Down to as many as there are stages, and up to the mini-batch of 100."""
    asked: list[bool] = []
    counts: set[int] = set()

    def costs(blocks: object, inputs: Tensor, *, channels_last: bool) -> tuple[list[float], list[int]]:
        asked.append(channels_last)
        return [1.0, 1.0], [0, 0]

    def timed(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        micro_batch = int(words[words.index("--micro-batch") + 1])
        count = next(each for each in (2, 4, 8, 16, 32, 64) if 100 // each == micro_batch)
        counts.add(count)
        return ran(seconds_of(count))

    monkeypatch.setattr(settings, "block_costs", costs)
    monkeypatch.setattr(settings, "blocks_of", lambda model: [])
    monkeypatch.setattr(settings, "samples", lambda model, count: (torch.empty(0), torch.empty(0)))
    monkeypatch.setattr(settings, "run_peer", timed)
    found = tuner.pipeline(bytes_per_second=1e9)
    assert set(asked) == {True}
    assert counts == tried
    assert (found.channels_last, len(found.devices), found.micro_batch) == (True, 2, 100 // best)


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
