"""What a peer's settings are chosen by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.peers import settings
from bench.peers.launch import PeerRun
from bench.peers.settings import PeerTuner, block_costs
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
    monkeypatch.setattr(settings, "blocks_of", lambda model: [block])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    seconds, output_bytes = block_costs("mobilenet_v2", 2, channels_last=channels_last)
    assert set(block.channels_last) == {channels_last}
    assert len(seconds) == 1
    assert output_bytes == [2 * 4 * 30 * 30 * 4]


def test_stages_are_balanced_by_blocks_of_the_layout_that_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[bool] = []

    def costs(model: str, micro_batch: int, *, channels_last: bool) -> tuple[list[float], list[int]]:
        asked.append(channels_last)
        return [1.0, 1.0], [0, 0]

    monkeypatch.setattr(settings, "block_costs", costs)
    monkeypatch.setattr(settings, "run_peer", lambda *_, **__: PeerRun(round_seconds=(1.0,)))
    environment = nanos(2)
    tuner = PeerTuner(
        EmulatedLan(environment),
        "mobilenet_v2",
        mini_batch=64,
        rates={device.name: 1.0 for device in environment.devices},
        cores={device.name: device.cores for device in environment.devices},
        channels_last=True,
        folder=tmp_path,
    )
    found = tuner.pipeline(bytes_per_second=1e9)
    assert set(asked) == {True}
    assert (found.channels_last, len(found.devices)) == (True, 2)


@pytest.mark.parametrize(("corrected_seconds", "shares"), [(0.8, "80,20"), (1.2, "50,50")])
def test_shares_are_corrected_by_how_busy_each_device_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, corrected_seconds: float, shares: str
) -> None:
    """Alone both were as fast; together the first is done with its half in a quarter of the other's time. Kept if it helps."""

    def run(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        is_corrected = "80,20" in words
        return PeerRun(round_seconds=(corrected_seconds if is_corrected else 1.0,), cpu_seconds=(0.25, 1.0))

    monkeypatch.setattr(settings, "run_peer", run)
    environment = nanos(2)
    names = [device.name for device in environment.devices]
    tuner = PeerTuner(
        EmulatedLan(environment),
        "mobilenet_v2",
        mini_batch=100,
        rates=dict.fromkeys(names, 1.0),
        cores=dict.fromkeys(names, 0.5),
        channels_last=False,
        folder=tmp_path,
    )
    found = tuner.data_parallel(8)
    assert found["DDP, shares by speed"].options["shares"] == shares
    assert found["DDP, equal shares"].options["shares"] == "50,50"
