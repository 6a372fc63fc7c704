"""With which micro-batch a device is best by itself, and by what its rate is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.peers import alone, settings
from bench.peers.alone import Alone
from bench.peers.launch import PeerRun
from bench.peers.settings import Trials
from bench.scaling import nanos
from bench.testbed.bed import EmulatedLan

Rate = Callable[[int, bool], float]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was run, in its order."""
    for module in (alone, settings):
        monkeypatch.setattr(module, "slowness", lambda *_: None)
    monkeypatch.setattr(alone, "best_pace", lambda _: {"cpu0": 0.5})
    return []


def device(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], rate: Rate, *, most: int = 4096, mini_batch: int = 2048
) -> Alone:
    """rate: samples per second by micro-batch and layout. most: what its memory holds at once."""

    folders: set[object] = set()

    def run(bed: object, script: str, devices: list[str], *words: str, **more: object) -> PeerRun:
        options: Mapping[str, str] = dict(itertools.pairwise(words))
        at_once, step = int(options["--micro-batch"]), int(options["--mini-batch"])
        assert more["folder"] not in folders, "nothing is tried twice"
        folders.add(more["folder"])
        runs.append({"at_once": at_once, "step": step, "channels_last": "--channels-last" in words})
        if at_once > most:
            return PeerRun(problem="out of memory on nano-1", short_of_memory="nano-1")
        seconds = step / rate(at_once, "--channels-last" in words)
        return PeerRun(round_seconds=(seconds,), round_ends=(seconds,))

    monkeypatch.setattr(alone, "run_peer", run)
    return Alone(EmulatedLan(nanos(1)), "nano-1", "mobilenet_v2", mini_batch, 8.0)


def test_larger_micro_batches_are_tried_while_they_are_faster(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    nano = device(monkeypatch, runs, lambda size, last: (20 if last else 10) * min(size, 512) ** 0.1)
    told = nano.best(tmp_path)
    assert (told["micro_batch"], told["channels_last"]) == (512, 1.0)
    assert told["plain_samples_per_second"] == pytest.approx(10 * 256**0.1)
    tried = [each["at_once"] for each in runs if each["channels_last"]]
    assert tried == [128, 256, 512, 1024, 512]


def test_where_few_are_tried_it_goes_on_from_the_largest_alike(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    nano = replace(device(monkeypatch, runs, lambda size, last: float(min(size, 128))), trials=Trials(at_once=(32, 64)))
    assert nano.best(tmp_path)["micro_batch"] == 128
    assert [each["at_once"] for each in runs] == [32, 64, 32, 64, 128, 256, 128]


def test_a_plain_rate_is_told_at_the_pace_at_which_the_rate_was_measured(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The machine is slow by 1.05 all the time: trials are brought to its best pace."""
    nano = device(monkeypatch, runs, lambda size, last: 20.0 if last else 10.0)
    for module in (alone, settings):
        monkeypatch.setattr(module, "slowness", lambda *_: 1.05)
    told = nano.best(tmp_path)
    assert (told["samples_per_second"], told["plain_samples_per_second"]) == pytest.approx((20.0, 10.0))


def test_of_few_settings_the_best_says_the_rate(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    few = Trials(at_once=(64, 256), further=False)
    fast = replace(device(monkeypatch, runs, lambda size, last: float(size + 5 * last)), trials=few)
    told = fast.best(tmp_path / "fast")
    assert (told["micro_batch"], told["samples_per_second"], told["plain_samples_per_second"]) == (256, 261.0, 256.0)
    assert [each["at_once"] for each in runs] == [64, 256, 256]
    runs.clear()
    like = replace(device(monkeypatch, runs, lambda size, last: float(size)), trials=few).best(tmp_path, like=told)
    assert (like["micro_batch"], like["samples_per_second"]) == (256, 256.0)
    assert [(each["at_once"], each["channels_last"]) for each in runs] == [(256, True), (256, False)]


def test_a_slower_device_begins_where_the_faster_one_ended(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    fast = {"micro_batch": 512, "channels_last": 1.0, "plain_micro_batch": 64}
    nano = device(monkeypatch, runs, lambda size, last: (20 if last else 10) / (1 + abs(size - 128)), most=256)
    told = nano.best(tmp_path, like=fast)
    assert (told["micro_batch"], told["channels_last"], told["samples_per_second"]) == (128, 1.0, 20.0)
    assert told["plain_micro_batch"] == 64
    assert told["plain_samples_per_second"] == pytest.approx(10 / 65)
    # 512 is too much at once, 64 is slower than 128 again, and so is 512 than 256.
    assert [each["at_once"] for each in runs] == [512, 256, 128, 64, 64, 128]
    assert [each["channels_last"] for each in runs] == [True, True, True, True, False, True]


def test_where_nothing_asks_for_another_layout_one_rate_is_both(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    nano = device(monkeypatch, runs, lambda size, last: float(min(size, 32)))
    told = nano.best(tmp_path, like={"micro_batch": 16, "channels_last": 0.0, "plain_micro_batch": 16})
    assert told["samples_per_second"] == told["plain_samples_per_second"] == 32.0
    assert [each["at_once"] for each in runs] == [16, 8, 32, 64, 32]


def test_a_rate_is_told_by_whole_steps(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Of as many micro-batches as eight seconds have."""
    nano = device(monkeypatch, runs, lambda size, last: 30.0 if size == 16 else 20.0)
    told = nano.best(tmp_path)
    assert (told["micro_batch"], told["channels_last"], told["samples_per_second"]) == (16, 0.0, 30.0)
    assert told["plain_samples_per_second"] == 30.0
    assert runs[-1] == {"at_once": 16, "step": 16 * 15, "channels_last": False}


def test_what_memory_does_not_hold_is_left_out(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    nano = device(monkeypatch, runs, lambda size, last: float(size), most=64)
    assert nano.best(tmp_path)["micro_batch"] == 64
    with pytest.raises(RuntimeError, match="nano-1 can't train mobilenet_v2 by itself"):
        device(monkeypatch, runs, lambda size, last: 1.0, most=4).best(tmp_path)


def test_a_rate_is_measured_again_while_the_machine_is_busy_and_the_fastest_counts(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    rates = iter((10.0, 14.0, 12.0))
    nano = device(monkeypatch, runs, lambda size, last: next(rates))
    monkeypatch.setattr(alone, "slowness", lambda *_: 1.3)
    told = nano.rate(8, tmp_path, channels_last=False, expected=10.0)
    assert told is not None
    assert told["samples_per_second"] == pytest.approx(14.0)
