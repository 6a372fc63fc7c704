"""What freed small blocks, kept at hand by glibc's allocator, do to the memory that a training holds.

    python -m bench.allocator_peaks [--repeats 3]

One process after the other trains the whole MobileNetV2 with large batches for a few steps: its peak beyond what it held before
the first. glibc keeps freed blocks of some hundred bytes at hand, each thread some, for the next who asks. They are not joined
with what is free beside them: where the activations of a batch lay, there are then many gaps too small for the next ones.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.measuring import Report, Spread, arguments, say
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT

_JOBS = Path(__file__).parent / "jobs"
BATCHES = (400, 847)
STEPS = 6
TRAINING = """
import sys, torch
sys.path.insert(0, {jobs!r})
from paper_models import make_job
from edgeswarm.process_memory import anonymous_bytes, peak_anonymous_bytes, reset_peak
torch.set_num_threads(1)
model = make_job("mobilenet_v2").model()
images = torch.randn({batch}, 3, 32, 32).to(memory_format=torch.channels_last)
classes = torch.randint(0, 10, ({batch},))
before = anonymous_bytes()
reset_peak()
for _ in range({steps}):
    torch.nn.functional.cross_entropy(model(images.clone()), classes).backward()
print((peak_anonymous_bytes() - before) / 2**20)
"""
KEPT, JOINED = "small blocks kept at hand", "small blocks joined at once (as workers have it)"
SETTINGS: Mapping[str, Mapping[str, str]] = {
    KEPT: {**ALLOCATOR_ENVIRONMENT, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    JOINED: ALLOCATOR_ENVIRONMENT,
}


def peak_mebibytes(environment: Mapping[str, str], *, batch: int) -> float:
    code = TRAINING.format(jobs=str(_JOBS), batch=batch, steps=STEPS)
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True).stdout)


def main() -> int:
    given = arguments(__doc__, repeats=3).parse_args()
    report = Report(
        title="What a training holds",
        how=f"MiB beyond what was held before; the whole MobileNetV2, {STEPS} steps, a process each, in turns.",
        columns=("setting", *(f"{batch} samples" for batch in BATCHES)),
    )
    found: dict[str, dict[int, list[float]]] = {name: {batch: [] for batch in BATCHES} for name in SETTINGS}
    for _ in range(given.repeats):
        for batch in BATCHES:
            for name, environment in SETTINGS.items():
                found[name][batch].append(peak_mebibytes(environment, batch=batch))
                say(f"{name}, {batch} samples: {found[name][batch][-1]:.0f}")
    for name, by_batch in found.items():
        report.rows.append((name, *(Spread.of(values).shown(0) for values in by_batch.values())))
        report.data[name] = {str(batch): Spread.of(values).to_json() for batch, values in by_batch.items()}
    for batch in BATCHES:
        medians = {name: statistics.median(by_batch[batch]) for name, by_batch in found.items()}
        report.expect(f"{batch} samples: joined at once they take less", medians[JOINED] < medians[KEPT])
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
