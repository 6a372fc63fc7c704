"""What the settings of glibc's allocator do for the speed of a training step, and how much it differs from process to process.

    python -m bench.allocator [--repeats 6]

One process after the other, each with a block of MobileNetV2 forward and backward on 32 samples: steps per CPU second. On small
pages the speed depends on which addresses a process happens to get, and stays so for its life.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping

from bench.measuring import Report, Spread, arguments, say
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT

STEP = """
import time, torch
torch.set_num_threads(1)
block = torch.nn.Sequential(
    torch.nn.Conv2d(32, 192, 1), torch.nn.BatchNorm2d(192), torch.nn.ReLU6(),
    torch.nn.Conv2d(192, 192, 3, padding=1, groups=192), torch.nn.BatchNorm2d(192), torch.nn.ReLU6(),
    torch.nn.Conv2d(192, 32, 1),
)
images = torch.randn(32, 32, 14, 14, requires_grad=True)
for _ in range(5):
    block(images).sum().backward()
begin, steps = time.process_time(), 0
while time.process_time() - begin < 2.5:
    block(images).sum().backward()
    steps += 1
print(steps / (time.process_time() - begin))
"""
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as glibc has it": {},
    "pages kept": {name: value for name, value in ALLOCATOR_ENVIRONMENT.items() if name != "GLIBC_TUNABLES"},
    "pages kept, huge ones (as workers have it)": ALLOCATOR_ENVIRONMENT,
}


def steps_per_second(environment: Mapping[str, str]) -> float:
    plain = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_ENVIRONMENT}
    command = [sys.executable, "-c", STEP]
    return float(subprocess.run(command, env={**plain, **environment}, capture_output=True, check=True).stdout)


def main() -> int:
    given = arguments(__doc__, repeats=6).parse_args()
    report = Report(
        title="The allocator's settings",
        how="Steps per CPU second of a block of MobileNetV2, 32 samples; a process each, in turns.",
        columns=("setting", "steps per CPU second", "largest by smallest"),
    )
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(given.repeats):
        for name, environment in SETTINGS.items():
            found[name].append(steps_per_second(environment))
            say(f"{name}: {found[name][-1]:.1f}")
    for name, values in found.items():
        report.rows.append((name, Spread.of(values).shown(1), f"{max(values) / min(values):.2f}"))
        report.data[name] = Spread.of(values).to_json()
    medians = [statistics.median(found[name]) for name in SETTINGS]
    report.expect("workers have the fastest of these settings", medians[-1] == max(medians))
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
