"""Which settings of a peer are tried, and which of them it trains with."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import accuracy_settings
from bench.accuracy_settings import (
    DATA_PARALLEL,
    PIPELINE,
    SINGLE,
    costs_of,
    settings_shown,
    settings_to_try,
    tuned_peer,
)
from bench.peers import settings
from bench.peers.launch import PeerRun

CORES = {"nano-1": 0.1, "nx-1": 0.3}


def costs(samples: int, channels_last: bool) -> tuple[list[float], list[int]]:
    """Four blocks that take 3, 1, 1 and 1 ms for each sample."""
    return [3e-3 * samples, *[1e-3 * samples] * 3], [0] * 4


def test_a_peer_is_tried_in_both_layouts_and_up_to_its_largest_share() -> None:
    alone = settings_to_try(SINGLE, 128, CORES, costs=costs, bytes_per_second=1e7)
    assert {(each.micro_batch, each.channels_last) for each in alone} == {
        (size, last) for size in (16, 32, 64, 128) for last in (True, False)
    }
    assert all(each.devices == ["nx-1"] and not each.options for each in alone)
    together = settings_to_try(DATA_PARALLEL, 64, CORES, costs=costs, bytes_per_second=1e7)  # 16 and 48 samples
    assert {each.micro_batch for each in together} == {16, 32, 64}
    assert {each.options["shares"] for each in together} == {"16,48"}


def test_a_pipeline_is_tried_with_more_and_fewer_micro_batches() -> None:
    tried = settings_to_try(PIPELINE, 64, CORES, costs=costs, bytes_per_second=1e7)
    assert {(each.micro_batch, each.channels_last) for each in tried} == {
        (size, last) for size in (32, 16, 8, 4) for last in (True, False)
    }
    # The nx is three times as fast as the nano: five of a sample's six milliseconds are its part.
    assert {(tuple(each.devices), each.options["cuts"]) for each in tried} == {(("nx-1", "nano-1"), "0,3,4")}


def test_a_task_is_timed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    seconds, output_bytes = costs_of("cnn", 2, True)
    assert len(seconds) == len(output_bytes) == 14
    assert output_bytes[0] == 2 * 32 * 8 * 8 * 4
    assert output_bytes[-1] == 2 * 10 * 4
    assert min(seconds) > 0


def test_a_peer_has_the_settings_of_its_quickest_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def tried(_: object, script: str, devices: list[str], *words: object, **__: object) -> PeerRun:
        assert (script, devices, words[-1]) == ("to_accuracy", ["nx-1"], "--trial")
        micro_batch = int(str(words[words.index("--micro-batch") + 1]))
        if micro_batch == 128:
            return PeerRun(problem="out of memory on nx-1")
        seconds = quick.get(micro_batch, 2.0) - 0.3 * ("--channels-last" in words)
        return PeerRun((0.0, seconds, 9.0), round_ends=(1.0, 2.0, 3.0))

    quick = {32: 1.0, 64: 1.02}  # as quick as each other, but for the noise
    monkeypatch.setattr(settings, "slowness", lambda *_: None)
    monkeypatch.setattr(accuracy_settings, "run_peer", tried)
    bed = SimpleNamespace(environment=SimpleNamespace(devices=[SimpleNamespace(name="nx-1", cores=0.3, mbps=100.0)]))
    given = (bed, SimpleNamespace(paused=nullcontext), SINGLE, "mobilenet_v2", tmp_path)
    best = tuned_peer(*given)  # type: ignore[arg-type]
    assert settings_shown(best) == "64 at once, channels last"
    monkeypatch.setattr(accuracy_settings, "run_peer", lambda *_, **__: PeerRun(problem="not done within 900 s"))
    assert tuned_peer(*given).devices == ["nx-1"], "its run will say why it fails"  # type: ignore[arg-type]
