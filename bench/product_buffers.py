"""What MKL keeps in memory behind products of matrices, and what giving it back costs.

    python -m bench.product_buffers [--repeats 5]

One process after the other, in turns, multiplies matrices of growing size as linear layers do, and looks behind each size at what
it holds when all free memory has gone back to the system. MKL copies parts of both factors into buffers of its own, and keeps
them for the next product; with MKL_DISABLE_FAST_MM, as workers have it, it asks the heap for them each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from bench.measuring import Report, Spread, arguments, ratios, say
from edgeswarm_agent.supervisor import ALLOCATOR_ENVIRONMENT

# Rows, what each has, and what the layer makes of it: of MobileNetV2 and BERT-small, among others.
PRODUCTS = ((16, 64, 64), (64, 320, 960), (256, 320, 1280), (1024, 512, 512), (4096, 512, 2048))
PRODUCT = """
import json, time, torch
from edgeswarm.process_memory import anonymous_bytes, give_back_free_memory
torch.set_num_threads(1)
(torch.rand(64, 64) @ torch.rand(64, 64)).sum()
give_back_free_memory()
before = anonymous_bytes()
told = []
for rows, of_row, made in {products}:
    values, weight = torch.rand(rows, of_row), torch.rand(made, of_row)
    torch.nn.functional.linear(values, weight)
    repeats = max(3, 1_000_000_000 // (rows * of_row * made))
    started = time.process_time()
    for _ in range(repeats):
        torch.nn.functional.linear(values, weight)
    seconds = (time.process_time() - started) / repeats
    del values, weight
    give_back_free_memory()
    told.append(((anonymous_bytes() - before) / 2**20, seconds * 1e6))
print(json.dumps(told))
"""
KEPT, GIVEN_BACK = "kept", "given back (as workers have it)"
SETTINGS: Mapping[str, Mapping[str, str]] = {
    KEPT: {name: value for name, value in ALLOCATOR_ENVIRONMENT.items() if name != "MKL_DISABLE_FAST_MM"},
    GIVEN_BACK: ALLOCATOR_ENVIRONMENT,
}
# By how much longer a product may take.
MOST_TIMES_AS_LONG = 1.05


def held_and_seconds(environment: Mapping[str, str]) -> list[tuple[float, float]]:
    """By product: MiB that are held behind it beyond what was held before all of them, and microseconds that it takes."""
    plain = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_ENVIRONMENT}
    command = [sys.executable, "-c", PRODUCT.format(products=PRODUCTS)]
    told = subprocess.run(command, env={**plain, **environment}, capture_output=True, check=True).stdout
    return [(held, microseconds) for held, microseconds in json.loads(told)]


def main() -> int:
    given = arguments(__doc__, repeats=5).parse_args()
    report = Report(
        title="Buffers for products of matrices",
        how="MiB that a process holds behind products of growing size, and CPU microseconds of one; a process each, in turns.",
        columns=("product", "MiB, kept", "MiB, given back", "us, kept", "us, given back", "times as long"),
    )
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in SETTINGS}
    for _ in range(given.repeats):
        for name, environment in SETTINGS.items():
            found[name].append(held_and_seconds(environment))
            say(f"{name}: {found[name][-1][-1][0]:.1f} MiB in the end")
    longest = []
    for place, (rows, of_row, made) in enumerate(PRODUCTS):
        held = {name: Spread.of([run[place][0] for run in runs]) for name, runs in found.items()}
        seconds = {name: [run[place][1] for run in runs] for name, runs in found.items()}
        times = Spread.of(ratios(seconds[GIVEN_BACK], seconds[KEPT]))
        longest.append(times.median)
        name = f"{rows} x {of_row} x {made}"
        report.rows.append((
            name,
            *(held[setting].shown(1) for setting in SETTINGS),
            *(Spread.of(seconds[setting]).shown(0) for setting in SETTINGS),
            times.shown(),
        ))  # fmt: skip
        report.data[name] = {setting: held[setting].to_json() for setting in SETTINGS} | {"times": times.to_json()}
    last = {name: min(run[-1][0] for run in runs) for name, runs in found.items()}
    report.expect("given back they are held no more", last[GIVEN_BACK] <= max(1.0, 0.5 * last[KEPT]))
    report.expect(f"which takes at most {MOST_TIMES_AS_LONG} times as long", max(longest) <= MOST_TIMES_AS_LONG)
    return report.show(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
