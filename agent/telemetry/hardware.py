"""What this device is, as far as the speed of its computing depends on it. Never imports torch.

A profile measured under one set of these values doesn't hold under another: `Hardware.key` names the set.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from .card import chosen_card, read_card
from .files import ROOT, cgroup_folders, hidden_cgroup, read_text, read_whole, whole

# Any of these says that a GPU of NVIDIA's is there: a card's device, or a Jetson's own.
_GPU_DEVICES = ("dev/nvidia0", "dev/nvhost-gpu", "dev/nvgpu/igpu0/power")

# What stands in a PC's firmware where its maker has filled in nothing.
_NO_NAME = re.compile(
    r"default string|to be filled|o\.e\.m\.|system (manufacturer|product name)|not applicable", re.IGNORECASE
)


@dataclass(frozen=True)
class Hardware:
    """board, platform: for a person. values: everything a profile depends on, by name. cpu_cores: what the affinity and
    the quota leave, may be a fraction. threads: of torch's computing. accelerator: "cpu" or "cuda"."""

    board: str
    platform: str
    values: dict[str, str]
    cpu_cores: float
    threads: int
    torch_version: str
    accelerator: str
    slow_down: float

    @property
    def key(self) -> str:
        """sha256 over the values, hex."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()


def read_hardware(
    *,
    slow_down: float = 1.0,
    threads: int | None = None,
    accelerator: str | None = None,
    root: Path = ROOT,
) -> Hardware:
    """Looks at the device as this process may use it.

    slow_down: by how much the worker stretches its computing. threads: what a person set; else what
    OMP_NUM_THREADS says, else one for each core that the affinity and the quota leave. accelerator: what a
    worker found; else it is guessed.
    """
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    quota = cpu_quota_cores(root)
    cores = min(float(len(affinity)), quota) if quota is not None else float(len(affinity))
    thread_count = threads or _threads_of_the_environment() or max(1, int(cores))
    torch = torch_version()
    accelerator = accelerator or guess_accelerator(torch, root)
    card = read_card() if accelerator == "cuda" else None
    board = board_name(root)
    values = {
        "board": board,
        "machine": platform.machine(),
        "cpu": cpu_model(root),
        "l4t": l4t_release(root),
        "torch": torch,
        "accelerator": accelerator,
        "power_mode": power_mode(root),
        "clocks": cpu_clocks(root),
        "cpu_quota": quota_name(quota, root),
        "affinity": ",".join(str(core) for core in affinity),
        "threads": str(thread_count),
        "slow_down": f"{slow_down:g}",
        **({} if card is None else {"card": card.name}),
    }
    return Hardware(
        board=board,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        values=values,
        cpu_cores=cores,
        threads=thread_count,
        torch_version=torch,
        accelerator=accelerator,
        slow_down=slow_down,
    )


def _threads_of_the_environment() -> int | None:
    """What torch itself goes by where nobody says more; None where nothing usable stands there."""
    threads = whole(os.environ.get("OMP_NUM_THREADS"))
    return threads if threads is not None and threads > 0 else None


def torch_version() -> str:
    """Of the torch that the worker would import, from its package's metadata; empty where there is none."""
    try:
        return importlib.metadata.version("torch") or ""  # None while pip replaces it
    except importlib.metadata.PackageNotFoundError:
        return ""


def guess_accelerator(torch: str, root: Path = ROOT) -> str:
    """ "cuda" where there is a GPU, this process may use it, and torch isn't built for the CPU alone; a worker
    settles it (hardware_now.py)."""
    has_gpu = chosen_card(os.environ) is not None and any((root / device).exists() for device in _GPU_DEVICES)
    return "cuda" if has_gpu and torch and not torch.endswith("+cpu") else "cpu"


def board_name(root: Path = ROOT) -> str:
    """The board as its maker names it: device tree (ARM boards), else DMI (PCs), else the kind of processor."""
    model = read_text(root / "proc/device-tree/model") or read_text(root / "sys/firmware/devicetree/base/model")
    if model:
        return model
    names = (read_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    dmi = " ".join(name for name in names if name and not _NO_NAME.search(name))
    return dmi or cpu_model(root) or platform.machine()


def cpu_model(root: Path = ROOT) -> str:
    """As /proc/cpuinfo names it: `model name` on PCs, implementer and part on ARM."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    if "model name" in fields:
        return fields["model name"]
    if "CPU part" in fields:
        return f"ARM {fields.get('CPU implementer', '?')}/{fields['CPU part']}"
    return fields.get("Hardware", "")


def l4t_release(root: Path = ROOT) -> str:
    """Release of a Jetson's Linux, as "36.4.3"; empty elsewhere.

    The file's first line is like `# R36 (release), REVISION: 4.3, GCID: ...`.
    """
    text = read_text(root / "etc/nv_tegra_release")
    if not text:
        return ""
    first = text.splitlines()[0]
    release = first.partition("# R")[2].split(" ")[0]
    revision = first.partition("REVISION:")[2].split(",")[0].strip()
    return f"{release}.{revision}" if release and revision else first


def power_mode(root: Path = ROOT) -> str:
    """A Jetson's power mode as nvpmodel keeps it (`pmode:0002`), a PC's platform profile, or empty."""
    text = read_text(root / "var/lib/nvpmodel/status") or read_text(root / "sys/firmware/acpi/platform_profile")
    return text.splitlines()[0] if text else ""


def cpu_clocks(root: Path = ROOT) -> str:
    """The highest clock that each core may take, in kHz, with the number of cores: "1479000x4"; empty when unknown."""
    counts: dict[int, int] = {}
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"):
        clock = read_whole(folder / "scaling_max_freq")
        if clock is not None:
            counts[clock] = counts.get(clock, 0) + 1
    return ",".join(f"{clock}x{count}" for clock, count in sorted(counts.items()))


def quota_name(quota: float | None, root: Path = ROOT) -> str:
    """The quota for the key. One that can't be read goes by its group: two groups may differ, and share no profile."""
    if quota is not None:
        return f"{quota:g}"
    hidden = hidden_cgroup(root, "cpu")
    return f"hidden in {hidden}" if hidden else "none"


def cpu_quota_cores(root: Path = ROOT) -> float | None:
    """CPU seconds a second that this process's control groups allow; None without a quota."""
    return min((quota / period for quota, period in _cpu_quotas(root)), default=None)


def cpu_burst_seconds(threads: int, root: Path = ROOT) -> float:
    """By how much work is done earlier after a pause, computed on so many threads; 0 without a quota below them.

    A quota is so much of each period, and all of it can be used at once:

        |####__________|####__________|      0.3 of a core for work of 0.4 periods: 1.1 periods, not 1.33
    """
    return max((max(0.0, period - quota / threads) / 1e6 for quota, period in _cpu_quotas(root)), default=0.0)


def _cpu_quotas(root: Path) -> list[tuple[int, int]]:
    """(quota, period) in microseconds of each control group that has one."""
    quotas: list[tuple[int, int]] = []
    for version, folder in cgroup_folders(root, "cpu"):
        if version == 2:
            fields = (read_text(folder / "cpu.max") or "").split()
            if len(fields) == 2 and all(part.isdigit() for part in fields) and int(fields[1]):
                quotas.append((int(fields[0]), int(fields[1])))
        else:
            quota, period = read_whole(folder / "cpu.cfs_quota_us"), read_whole(folder / "cpu.cfs_period_us")
            if quota is not None and period and quota > 0:
                quotas.append((quota, period))
    return quotas
