"""What the settings of glibc's allocator do for the speed of a training step, and how much it differs from process to process.

    python -m bench.allocator [--repeats 6]

One process after the other, each with a block of MobileNetV2 forward and backward in a thread of its own, as in a worker: steps
per CPU second. On small pages the speed depends on which addresses a process happens to get, and stays so for its life. With
a second heap a thread may get that one, whose pieces are of 64 MiB: larger blocks come from the system each time.
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
import threading, time, torch
torch.set_num_threads(1)
block = torch.nn.Sequential(
    torch.nn.Conv2d(16, 96, 1), torch.nn.BatchNorm2d(96), torch.nn.ReLU6(),
    torch.nn.Conv2d(96, 96, 3, padding=1, groups=96), torch.nn.BatchNorm2d(96), torch.nn.ReLU6(),
    torch.nn.Conv2d(96, 24, 1),
).to(memory_format=torch.channels_last)
images = torch.randn({samples}, 16, 32, 32).to(memory_format=torch.channels_last).requires_grad_()

def train():
    for _ in range(5):
        block(images).sum().backward()
    begin, steps = time.process_time(), 0
    while time.process_time() - begin < 2.5:
        block(images).sum().backward()
        steps += 1
    print(steps / (time.process_time() - begin))

thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
SAMPLES = (16, 256)
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as glibc has it": {},
    "pages kept": {name: value for name, value in ALLOCATOR_ENVIRONMENT.items() if name != "GLIBC_TUNABLES"},
    "pages kept, huge ones, two heaps": {**ALLOCATOR_ENVIRONMENT, "MALLOC_ARENA_MAX": "2"},
    "pages kept, huge ones, one heap, small blocks joined (as workers have it)": ALLOCATOR_ENVIRONMENT,
}


def steps_per_second(environment: Mapping[str, str], *, samples: int) -> float:
    plain = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_ENVIRONMENT}
    command = [sys.executable, "-c", STEP.format(samples=samples)]
    return float(subprocess.run(command, env={**plain, **environment}, capture_output=True, check=True).stdout)


def main() -> int:
    given = arguments(__doc__, repeats=6).parse_args()
    report = Report(
        title="The allocator's settings",
        how="Steps per CPU second of a block of MobileNetV2; a process each, in turns.",
        columns=("setting", *(f"{samples} samples" for samples in SAMPLES), "largest by smallest"),
    )
    found: dict[str, dict[int, list[float]]] = {name: {samples: [] for samples in SAMPLES} for name in SETTINGS}
    for _ in range(given.repeats):
        for samples in SAMPLES:
            for name, environment in SETTINGS.items():
                found[name][samples].append(steps_per_second(environment, samples=samples))
                say(f"{name}, {samples} samples: {found[name][samples][-1]:.1f}")
    for name, by_samples in found.items():
        report.rows.append((
            name,
            *(Spread.of(values).shown(1) for values in by_samples.values()),
            *(", ".join(f"{max(values) / min(values):.2f}" for values in by_samples.values()),),
        ))  # fmt: skip
        report.data[name] = {str(samples): Spread.of(values).to_json() for samples, values in by_samples.items()}
    for samples in SAMPLES:
        medians = [statistics.median(found[name][samples]) for name in SETTINGS]
        report.expect(
            f"{samples} samples: workers have the fastest of these settings, or one within a tenth of it",
            medians[-1] >= 0.9 * max(medians),
        )
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
