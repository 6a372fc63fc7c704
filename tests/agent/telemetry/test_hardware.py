"""What a device is: boards' own files, and the key that profiles hold for."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from edgeswarm_agent.telemetry.hardware import (
    board_name,
    cpu_burst_seconds,
    cpu_clocks,
    cpu_model,
    cpu_quota_cores,
    guess_accelerator,
    l4t_release,
    power_mode,
    read_hardware,
    torch_version,
)

from .trees import tree

JETSON = {
    "proc/device-tree/model": "NVIDIA Jetson Nano Developer Kit\0",
    "proc/cpuinfo": "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd07\n",
    "etc/nv_tegra_release": "# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref\n# KERNEL\n",
    "var/lib/nvpmodel/status": "pmode:0000\nfmode:cool\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "1479000\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_max_freq": "1479000\n",
    "sys/devices/system/cpu/cpu2/cpufreq/scaling_max_freq": "918000\n",
    "dev/nvhost-gpu": "",
}


def test_a_jetson(tmp_path: Path) -> None:
    root = tree(tmp_path, JETSON)
    assert board_name(root) == "NVIDIA Jetson Nano Developer Kit"
    assert cpu_model(root) == "ARM 0x41/0xd07"
    assert l4t_release(root) == "32.7.1"
    assert power_mode(root) == "pmode:0000"
    assert cpu_clocks(root) == "918000x1,1479000x2"
    assert guess_accelerator("2.4.0a0+07cecf4168.nv24.05", root) == "cuda"
    assert guess_accelerator("2.4.0+cpu", root) == "cpu"
    assert guess_accelerator("", root) == "cpu"


def test_a_pc(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/class/dmi/id/sys_vendor": "Intel(R) Client Systems\n",
            "sys/class/dmi/id/product_name": "NUC8i5BEK\n",
            "proc/cpuinfo": "processor : 0\nmodel name : Intel(R) Core(TM) i5-8259U\n",
        },
    )
    assert board_name(root) == "Intel(R) Client Systems NUC8i5BEK"
    assert cpu_model(root) == "Intel(R) Core(TM) i5-8259U"
    assert (l4t_release(root), power_mode(root), cpu_clocks(root)) == ("", "", "")
    assert guess_accelerator("2.9.0", root) == "cpu"


@pytest.mark.parametrize(
    ("vendor", "product", "board"),
    [
        ("Default string", "Default string", "Intel(R) N100"),
        ("To Be Filled By O.E.M.", "To Be Filled By O.E.M.", "Intel(R) N100"),
        ("System manufacturer", "System Product Name", "Intel(R) N100"),
        ("AZW", "Default string", "AZW"),
    ],
)
def test_what_a_maker_has_not_filled_in_is_no_name(tmp_path: Path, vendor: str, product: str, board: str) -> None:
    files = {
        "sys/class/dmi/id/sys_vendor": f"{vendor}\n",
        "sys/class/dmi/id/product_name": f"{product}\n",
        "proc/cpuinfo": "processor : 0\nmodel name : Intel(R) N100\n",
    }
    assert board_name(tree(tmp_path, files)) == board


def test_a_machine_that_says_nothing_is_named_after_its_processor(tmp_path: Path) -> None:
    assert board_name(tmp_path) == platform.machine()


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"proc/self/cgroup": "2:cpu,cpuacct:/\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}, None),
        (
            {
                "proc/self/cgroup": "2:cpu,cpuacct:/box\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/cgroup.controllers": "cpu\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            },
            1.5,
        ),
    ],
)
def test_cpu_quotas(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    assert cpu_quota_cores(tree(tmp_path, files)) == cores


@pytest.mark.parametrize(("quota", "threads", "seconds"), [(20_000, 1, 0.08), (20_000, 2, 0.09), (150_000, 1, 0.0)])
def test_what_a_quota_gives_at_once_after_a_pause(tmp_path: Path, quota: int, threads: int, seconds: float) -> None:
    files = {
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu\n",
        "sys/fs/cgroup/a/cpu.max": f"{quota} 100000\n",
    }
    assert cpu_burst_seconds(threads, tree(tmp_path, files)) == pytest.approx(seconds)
    assert cpu_burst_seconds(threads, tmp_path / "nothing") == 0.0


def test_the_key_names_everything_that_a_profile_depends_on(tmp_path: Path) -> None:
    root = tree(tmp_path, JETSON)
    first = read_hardware(threads=2, root=root)
    assert read_hardware(threads=2, root=root).key == first.key
    others = [
        read_hardware(threads=1, root=root),
        read_hardware(threads=2, slow_down=2.0, root=root),
        read_hardware(threads=2, root=tree(root, {"var/lib/nvpmodel/status": "pmode:0001"})),
        read_hardware(threads=2, root=tree(root, {"sys/devices/system/cpu/cpu2/cpufreq/scaling_max_freq": "1"})),
    ]
    assert len({first.key, *(other.key for other in others)}) == 5
    assert first.values["torch"] == torch_version()


@pytest.mark.parametrize(("variable", "threads"), [("7", 7), ("0", 1), ("-2", 1), ("4,2", 1), ("", 1)])
def test_threads_are_those_of_the_environment_before_those_of_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    quota = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "12000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    root = tree(tmp_path, {"proc/self/cgroup": "1:cpu:/\n", **quota})
    assert read_hardware(root=root).threads == threads
    assert read_hardware(threads=3, root=root).threads == 3


def test_a_quota_that_nobody_can_read_keeps_two_devices_apart(tmp_path: Path) -> None:
    """`ip netns exec` mounts /sys anew: the folder for the control groups is empty then."""
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    one, other, none = (
        read_hardware(root=tree(tmp_path, {"proc/self/cgroup": f"4:memory:/\n1:cpu:{path}\n0::/\n"}))
        for path in ("/boxes/one", "/boxes/other", "/")
    )
    assert one.values["cpu_quota"] == "hidden in /boxes/one"
    assert len({one.key, other.key, none.key}) == 3
    assert none.values["cpu_quota"] == "none"


def test_this_machine() -> None:
    hardware = read_hardware()
    assert hardware.board
    assert hardware.cpu_cores > 0
    assert hardware.threads >= 1
