"""Control groups of version 2, on folders that look like the kernel's: machines where tests run may have version 1 alone. (Where
they have version 2, test_testbed.py runs on it.)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.testbed.groups import APP, LOAD
from bench.testbed.groups_version_2 import Version2, mount_point, why_not


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    return tmp_path


@pytest.fixture
def made(tree: Path) -> Version2:
    found = Version2(tree)
    found.create("nano-1", cores=0.12, memory_bytes=64 * 2**20)
    node = tree / "edgeswarm-bed/nano-1"
    (node / "memory.stat").write_text("anon 1000\nactive_file 300\ninactive_file 200\n")
    (node / "memory.current").write_text("1700\n")
    (node / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    for part in (APP, LOAD):
        (node / part / "cgroup.procs").write_text("")
    return found


def test_the_tree_is_where_it_is_mounted(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n")
    assert mount_point(mounts) == Path("/sys/fs/cgroup")
    mounts.write_text("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n")
    assert mount_point(mounts) is None


def test_why_a_tree_is_of_no_use(tree: Path) -> None:
    assert why_not(None) == "no tree of them is mounted"
    assert why_not(tree) == ""
    (tree / "cgroup.type").write_text("domain\n")
    (tree / "cgroup.procs").write_text("17\n")
    assert why_not(tree) == ""
    (tree / "cgroup.subtree_control").write_text("\n")
    assert why_not(tree) == f"{tree} is a group with processes, as in a container"
    (tree / "cgroup.controllers").write_text("io memory\n")
    assert why_not(tree) == f"cpu not among what {tree} controls"


def test_a_device_has_a_quota_and_memory_and_its_parts_share_them(tree: Path, made: Version2) -> None:
    node = tree / "edgeswarm-bed/nano-1"
    assert made.nodes() == ["nano-1"]
    assert (node / "cpu.max").read_text() == "2400 20000"
    assert made.cores_of("nano-1") == pytest.approx(0.12)
    assert made.memory_limit("nano-1") == 64 * 2**20
    assert [(folder / "cgroup.subtree_control").read_text() for folder in (tree, node.parent, node)] == [
        "+cpu +memory",
        "+cpu +memory",
        "+cpu",
    ]
    assert made.entries("nano-1") == [node / "app/cgroup.procs"]
    assert made.entries("nano-1", LOAD) == [node / "load/cgroup.procs"]
    assert (node / "load/cpu.weight").read_text() == "10000"
    made.set_cores("nano-1", 0.06, part=LOAD)
    assert (node / "load/cpu.max").read_text() == "1200 20000"
    made.set_cores("nano-1", 0)
    assert made.cores_of("nano-1") is None


def test_the_hub_has_no_limits(tree: Path) -> None:
    made = Version2(tree)
    made.create("hub", cores=None, memory_bytes=None)
    (tree / "edgeswarm-bed/hub/memory.max").write_text("max\n")  # as the kernel has it from the beginning
    assert made.cores_of("hub") is None
    assert made.memory_limit("hub") is None


def test_all_that_runs_there_is_told(tree: Path, made: Version2) -> None:
    node = tree / "edgeswarm-bed/nano-1"
    (node / "app/cgroup.procs").write_text("11\n12\n")
    (node / "load/cgroup.procs").write_text("13\n")
    assert made.processes("nano-1") == [11, 12, 13]
    assert made.processes_of("nano-1", LOAD) == [13]


def test_memory_is_not_limited_below_what_is_held(made: Version2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.testbed.groups.time.sleep", lambda seconds: None)
    with pytest.raises(OSError, match="holds 1200 bytes, more than a limit of 1199"):
        made.limit_memory("nano-1", 1199)
    made.limit_memory("nano-1", 1200)
    assert made.memory_limit("nano-1") == 1200
    assert made.anonymous_bytes("nano-1") == 1000


def test_a_device_that_is_only_half_made_can_go(tree: Path) -> None:
    made = Version2(tree)
    node = tree / "edgeswarm-bed/nano-1"
    node.mkdir(parents=True)
    (node / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert made.nodes() == ["nano-1"]
    made.kill_all("nano-1")
    assert made.processes("nano-1") == []


@pytest.mark.parametrize(
    ("asked", "events", "freezing"),
    [
        (True, "populated 1\nfrozen 0\n", True),
        (True, "populated 1\nfrozen 1\n", False),
        (True, "populated 0\nfrozen 0\n", False),
        (False, "populated 1\nfrozen 0\n", False),
        (False, "populated 1\nfrozen 1\n", False),
    ],
)
def test_what_was_asked_to_stop_stops_in_a_while(made: Version2, asked: bool, events: str, freezing: bool) -> None:
    node = made.root / "nano-1"
    made.ask_to_freeze("nano-1", frozen=asked)
    assert (node / "cgroup.freeze").read_text() == str(int(asked))
    (node / "cgroup.events").write_text(events)
    assert made.is_freezing("nano-1") == freezing
    assert made.is_frozen("nano-1") == asked


def test_what_a_device_used(tree: Path, made: Version2) -> None:
    node = tree / "edgeswarm-bed/nano-1"
    (node / "cpu.stat").write_text("usage_usec 9000000\nnr_throttled 3\nthrottled_usec 250000\n")
    (node / "app/cpu.stat").write_text("usage_usec 2500000\n")
    (node / "memory.events").write_text("low 0\nmax 7\noom 2\noom_kill 1\n")
    used = made.usage("nano-1")
    assert (used.cpu_seconds, used.throttled_seconds, used.oom_kills) == (2.5, 0.25, 1)
    assert used.peak_bytes is None
    (node / "memory.peak").write_text("4096\n")
    assert made.usage("nano-1").peak_bytes == 4096
