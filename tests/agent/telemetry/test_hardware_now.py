from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm_agent.telemetry import hardware, hardware_now
from edgeswarm_agent.telemetry.hardware_now import HardwareNow

from .trees import tree

MODE, CLOCKS = "var/lib/nvpmodel/status", "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq"
QUOTA = {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/cgroup.controllers": "cpu\n"}


def test_a_power_mode_and_a_quota_that_change_are_seen(tmp_path: Path) -> None:
    root = tree(tmp_path, {MODE: "pmode:0000", **QUOTA})
    now = HardwareNow(root=root)
    first = now.read()
    assert now.read() == first
    tree(root, {MODE: "pmode:0001"})
    second = now.read()
    assert second.key != first.key
    assert second.values["power_mode"] == "pmode:0001"
    tree(root, {"sys/fs/cgroup/a/cpu.max": "50000 100000\n"})
    third = now.read()
    assert third.cpu_cores == 0.5
    assert third.key != second.key


def test_clocks_are_those_that_the_power_mode_had_first(tmp_path: Path) -> None:
    root = tree(tmp_path, {MODE: "pmode:0000", CLOCKS: "1479000\n"})
    now = HardwareNow(root=root)
    cool = now.read()
    assert cool.values["clocks"] == "1479000x1"
    tree(root, {CLOCKS: "918000\n"})  # it is hot
    assert now.read().key == cool.key
    tree(root, {MODE: "pmode:0001"})
    assert now.read().values["clocks"] == "918000x1"
    tree(root, {MODE: "pmode:0000"})
    assert now.read().key == cool.key


def test_what_a_worker_computes_on_counts_until_there_is_another_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(version: str) -> None:
        for module in (hardware, hardware_now):
            monkeypatch.setattr(module, "torch_version", lambda: version)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    root = tree(tmp_path, {"dev/nvidia0": ""})
    now = HardwareNow(root=root)
    install("2.9.0")
    guessed = now.read()
    assert guessed.accelerator == "cuda"
    now.settle("2.9.0", "cpu")
    found = now.read()
    assert (found.accelerator, found.values["accelerator"]) == ("cpu", "cpu")
    assert found.key != guessed.key
    install("2.9.1")
    assert now.read().accelerator == "cuda"
