"""Free memory in every kind of control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm_agent.telemetry.memory import MEBIBYTE, Memory, hidden_limit, oom_kills, read_memory, reserve_bytes

from .trees import tree

MEMINFO = "MemTotal:        8000000 kB\nMemFree:          100000 kB\nMemAvailable:    6000000 kB\nHugePages_Total:  0\n"
DEVICE = Memory(total=8_000_000 * 1024, available=6_000_000 * 1024)


def test_without_a_control_group_it_is_the_devices(tmp_path: Path) -> None:
    assert read_memory(tree(tmp_path, {"proc/meminfo": MEMINFO})) == DEVICE


def test_an_old_kernel_without_mem_available(tmp_path: Path) -> None:
    meminfo = "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 300 kB\n"
    assert read_memory(tree(tmp_path, {"proc/meminfo": meminfo})).available == 400 * 1024


V2 = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "0::/system.slice/edgeswarm.service\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/system.slice/edgeswarm.service/memory.max": "max\n",
    "sys/fs/cgroup/system.slice/memory.max": str(2000 * MEBIBYTE),
    "sys/fs/cgroup/system.slice/memory.current": str(900 * MEBIBYTE),
    "sys/fs/cgroup/system.slice/memory.stat": f"anon 5\ninactive_file {400 * MEBIBYTE}\n",
}


def test_version_2_limits_of_an_outer_group_hold_and_page_cache_counts_as_free(tmp_path: Path) -> None:
    expected = Memory(total=2000 * MEBIBYTE, available=1500 * MEBIBYTE)
    assert read_memory(tree(tmp_path, V2)) == expected


def test_version_2_counts_what_slows_a_process_down_as_a_limit(tmp_path: Path) -> None:
    high = {"sys/fs/cgroup/system.slice/memory.high": str(1200 * MEBIBYTE)}
    expected = Memory(total=1200 * MEBIBYTE, available=700 * MEBIBYTE)
    assert read_memory(tree(tmp_path, {**V2, **high})) == expected


@pytest.mark.parametrize("path", ["/docker/123", "/"])
def test_version_1_in_a_container_that_sees_its_own_group_as_the_top(tmp_path: Path, path: str) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": f"4:memory:{path}\n2:cpu,cpuacct:/x\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(1000 * MEBIBYTE),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(400 * MEBIBYTE),
        "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {100 * MEBIBYTE}\n",
    }
    assert read_memory(tree(tmp_path, files)) == Memory(total=1000 * MEBIBYTE, available=700 * MEBIBYTE)


@pytest.mark.parametrize("line", ["4:memory:/box", "0::/box"])
def test_a_limit_that_a_network_namespace_hides_is_told(tmp_path: Path, line: str) -> None:
    """`ip netns exec` mounts /sys anew: the folder for the groups is empty then."""
    root = tree(tmp_path, {"proc/self/cgroup": f"9:name=systemd:/session\n2:cpu,cpuacct:/\n{line}\n"})
    (root / "sys/fs/cgroup").mkdir(parents=True)
    assert "/box" in hidden_limit(root)
    (root / "sys/fs/cgroup/memory").mkdir()
    assert hidden_limit(root) == ""


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
    }
    assert read_memory(tree(tmp_path, files)) == DEVICE


def test_a_group_that_uses_more_than_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = {**V2, "sys/fs/cgroup/system.slice/memory.current": str(4000 * MEBIBYTE)}
    assert read_memory(tree(tmp_path, files)).available == 0


def test_the_budget_leaves_a_reserve_and_keeps_to_the_limit() -> None:
    memory = Memory(total=4096 * MEBIBYTE, available=1000 * MEBIBYTE)
    assert reserve_bytes(memory.total) == 256 * MEBIBYTE
    assert memory.budget() == 744 * MEBIBYTE
    assert memory.budget(300 * MEBIBYTE) == 300 * MEBIBYTE
    assert Memory(total=4096 * MEBIBYTE, available=MEBIBYTE).budget() == 0
    assert (reserve_bytes(1), reserve_bytes(1 << 50)) == (128 * MEBIBYTE, 512 * MEBIBYTE)


def test_kills_are_counted_in_the_group_and_else_on_the_device(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    tree(tmp_path, {"proc/vmstat": "nr_free_pages 3\noom_kill 7\n"})
    assert oom_kills(tmp_path) == 7
    group = "sys/fs/cgroup/system.slice/edgeswarm.service/memory.events"
    tree(tmp_path, {**V2, group: "low 0\noom 2\noom_kill 2\n"})
    assert oom_kills(tmp_path) == 2


def test_this_machine_has_memory() -> None:
    memory = read_memory()
    assert 0 < memory.available <= memory.total
