"""Which threads of a worker use its processor, and what they are at: the plan of a cell of bench.matrix, trained once more.

    python -m bench.worker_threads bench/results/matrix/C-100-mobilenet_v2.json
    python -m bench.worker_threads bench/results/matrix/C-100-mobilenet_v2.json --functions nano-1
    python -m bench.worker_threads bench/results/matrix/A-100-mobilenet_v2.json --served     a first epoch: samples are fetched

    rounds  | first ones | counted: the kernel's nanoseconds of each thread | sampled: what one worker's threads are at |
                         ^ read                                             ^ read

The kernel tells the time of threads, and py-spy (in the extra `dev`) whose they are; it samples one device's worker behind what
was counted. Needs root and nothing else at work on the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.cell import NEVER, Cell, train_from_full_speed, written_job
from bench.estimate import OURS
from bench.measuring import Report, run_as_command, say
from bench.testbed import links
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.groups_here import groups
from bench.testbed.links import HUB, HUB_ADDRESS
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.feed_ahead import FEED_AHEAD
from edgeswarm.job import LOCAL, SERVED
from edgeswarm.plan import Plan
from edgeswarm_coordinator.controller import TrainOptions
from edgeswarm_coordinator.events import Event, RoundDone
from edgeswarm_coordinator.plan_by_hand import with_node_ids

FIRST_ROUNDS, COUNTED_ROUNDS = 4, 20
SAMPLED_SECONDS, SAMPLES_A_SECOND = 60, 200
# Names of threads as the report has them, by how a thread's own name begins; the rest are the kernel's and gRPC's.
KINDS = {
    "MainThread": "compute",
    "sample-feed": "samples",
    "to-": "sending",
    "stream": "receiving",
    "accept-streams": "receiving",
    "all-reduce": "all-reduce",
    "progress": "reports",
    "commands": "reports",
}
OTHER = "other"
COLUMNS = ("samples", "sending", "receiving", "all-reduce", "reports", OTHER)
_WORKER = b"edgeswarm_agent.worker"
# A frame of a sampled stack: "function (path/file.py:12)".
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^:()]+)(:\d+)?\)$")


def kind_of(thread: str) -> str:
    """What a thread of this name is for."""
    return next((kind for begin, kind in KINDS.items() if thread.startswith(begin)), OTHER)


def seconds_by_kind(
    before: Mapping[int, float], after: Mapping[int, float], names: Mapping[int, str]
) -> dict[str, float]:
    """CPU seconds between two looks, by what threads are for. All by the kernel's thread ids."""
    found: dict[str, float] = defaultdict(float)
    for thread, seconds in after.items():
        found[kind_of(names.get(thread, ""))] += seconds - before.get(thread, 0.0)
    return dict(found)


def functions_of(stacks: Iterable[str], *, most: int) -> list[tuple[str, str, float]]:
    """(kind of thread, function, part of all samples) of those seen most often, most often first.

    stacks: as py-spy's raw format has them, `thread;frame;...;frame COUNT`. A sample counts for the innermost function of
    edgeswarm's own, with all that this one calls elsewhere.
    """
    found: Counter[tuple[str, str]] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        found[_kind_of_stack(thread), _innermost(frames)] += int(count)
    total = sum(found.values())
    return [(kind, function, count / total) for (kind, function), count in found.most_common(most)]


def _kind_of_stack(thread: str) -> str:
    """py-spy writes `thread (0x7F..): NAME`."""
    return kind_of(thread.rpartition(": ")[2].strip('"'))


def _innermost(frames: Sequence[str]) -> str:
    matches = [match for frame in frames if (match := _FRAME.match(frame)) is not None]
    own = [match for match in matches if re.match(r"(.*/)?(edgeswarm|edgeswarm_agent|agent)/", match["file"])]
    chosen = (own or matches)[-1:]
    return f"{chosen[0]['function']} ({Path(chosen[0]['file']).name})" if chosen else "?"


# --- looking at processes -----------------------------------------------------------------------------------------------


def worker_of(node: str) -> int:
    """The id of the process that computes on a device of the testbed."""
    for process_id in groups().processes(node):
        if _WORKER in Path(f"/proc/{process_id}/cmdline").read_bytes():
            return process_id
    raise EdgeswarmError(ErrorCode.WORKER_FAILED, f"{node} has no worker.", "Look into its log.")


def seconds_of_threads(process_id: int) -> dict[int, float]:
    """CPU seconds of each thread since it began."""
    return {
        int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9
        for task in Path(f"/proc/{process_id}/task").iterdir()
    }


def names_of_threads(process_id: int) -> dict[int, str]:
    """Of those that Python started."""
    dump = subprocess.run(
        [_py_spy(), "dump", "--json", "--nonblocking", "--pid", str(process_id)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {each["os_thread_id"]: each["thread_name"] or "" for each in json.loads(dump.stdout)}


def sampled(process_id: int, path: Path) -> subprocess.Popen[bytes]:
    """A sampling of a worker, which writes its stacks into `path`."""
    words = ["--pid", str(process_id), "--format", "raw", "--threads", "--nonblocking", "--output", str(path)]
    return subprocess.Popen(
        [_py_spy(), "record", *words, "--rate", str(SAMPLES_A_SECOND), "--duration", str(SAMPLED_SECONDS)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _py_spy() -> str:
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise EdgeswarmError(ErrorCode.CONFIG, "There is no py-spy here.", "pip install py-spy")
    return found


# --- a training -----------------------------------------------------------------------------------------------------------


@dataclass
class Looks:
    """Hears of a training's rounds, and looks at its workers. used: CPU seconds between the looks, by device and kind.

    in_all, model: CPU seconds of each round that counts, by node id. sampling: of `sampled_device`'s worker.
    """

    devices: Sequence[str]
    sampled_device: str | None
    stacks: Path
    used: dict[str, dict[str, float]] = field(default_factory=dict)
    in_all: dict[str, list[float]] = field(default_factory=dict)
    model: dict[str, list[float]] = field(default_factory=dict)
    sampling: subprocess.Popen[bytes] | None = None
    _workers: dict[str, int] = field(default_factory=dict)
    _before: dict[str, dict[int, float]] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        if not isinstance(event, RoundDone):
            return
        done = event.round + 1
        if done == FIRST_ROUNDS:
            self._workers = {name: worker_of(name) for name in self.devices}
            self._before = {name: seconds_of_threads(process_id) for name, process_id in self._workers.items()}
        if FIRST_ROUNDS < done <= FIRST_ROUNDS + COUNTED_ROUNDS:
            for node_id, parts in event.parts.items():
                self.in_all.setdefault(node_id, []).append(parts.cpu_seconds)
                self.model.setdefault(node_id, []).append(parts.model_cpu_seconds)
        if done == FIRST_ROUNDS + COUNTED_ROUNDS:
            after = {name: seconds_of_threads(process_id) for name, process_id in self._workers.items()}
            for name, process_id in self._workers.items():
                self.used[name] = seconds_by_kind(self._before[name], after[name], names_of_threads(process_id))
            if self.sampled_device is not None:
                self.sampling = sampled(self._workers[self.sampled_device], self.stacks)


def measure(
    document: Mapping[str, Any], folder: Path, *, sampled_device: str | None, data: str = LOCAL
) -> tuple[Report, Path]:
    """Trains the cell's own plan; the report, and where the sampled stacks are. Served, the hub is no faster than a device."""
    cell = Cell.named(document["cell"])
    plan = Plan.from_json(document["plans"][OURS])
    assert plan.predicted is not None
    if sampled_device is not None and sampled_device not in plan.devices:
        raise EdgeswarmError(
            ErrorCode.CONFIG, f"{sampled_device} is not in this plan.", f"Take one of {', '.join(plan.devices)}."
        )
    # The thread that makes samples ready is through before the last rounds: what it took is to be seen in those that count.
    rounds = FIRST_ROUNDS + COUNTED_ROUNDS + math.ceil(FEED_AHEAD / plan.micro_batches) + 1
    if sampled_device is not None:
        rounds += round(1.5 * SAMPLED_SECONDS / plan.predicted.round_seconds) + 2
    with (
        EmulatedLan(load_environment(cell.environment, mbps=cell.mbps)) as bed,
        BedCluster(bed, folder=folder) as cluster,
    ):
        node_ids = {name: cluster.node_id(name) for name in cluster.names}
        path = folder / "plan.json"
        path.write_text(json.dumps(with_node_ids(plan, node_ids).to_json()))
        job = written_job(folder / "job", cell.model, rounds=rounds, batch_size=document["mini_batch"], data=data)
        options = TrainOptions(job_path=job, discovery=cluster.discovery(), listen_address=HUB_ADDRESS)
        options = replace(options, plan_path=path, output=folder / "result", checkpoint_every=NEVER)
        looks = Looks(tuple(plan.devices), sampled_device, folder / "stacks.txt")
        links.limit(HUB, cell.mbps if data == SERVED else None)
        try:
            train_from_full_speed(cluster, options, looks.hear)
        finally:
            links.limit(HUB, None)
        if looks.sampling is not None:
            looks.sampling.wait()
    return report_of(cell.name, looks, {node_id: name for name, node_id in node_ids.items()}), looks.stacks


def report_of(cell: str, looks: Looks, names: Mapping[str, str]) -> Report:
    """A row a device. names: of the devices, by node id."""
    report = Report(
        title=f"Which threads of a worker use its processor: {cell}",
        how=(
            f"CPU milliseconds of a round, mean of {COUNTED_ROUNDS}: the kernel's, by thread; what the thread that computes does "
            "beside the model is its own time but for the model's, which the worker tells."
        ),
        columns=("device", "model", "beside it", *COLUMNS, "together", "of its CPU"),
    )
    for node_id, in_all in looks.in_all.items():
        name, model = names[node_id], statistics.fmean(looks.model[node_id])
        by_kind = {kind: seconds / COUNTED_ROUNDS for kind, seconds in looks.used[name].items()}
        beside = by_kind.get("compute", 0.0) - model
        outside = beside + sum(by_kind.get(kind, 0.0) for kind in COLUMNS)
        values = (model, beside, *(by_kind.get(kind, 0.0) for kind in COLUMNS), outside)
        report.rows.append(
            (name, *(f"{1e3 * value:.1f}" for value in values), f"{outside / statistics.fmean(in_all):.1%}")
        )
        report.data[name] = {"model": model, "beside": beside, **by_kind, "in all": statistics.fmean(in_all)}
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", type=Path, metavar="FILE", help="a cell's file of bench.matrix, with its plan")
    parser.add_argument("--functions", metavar="DEVICE", help="sample what this device's worker is at, as nano-1")
    parser.add_argument("--most", type=int, default=30, help="functions that are shown  [default: 30]")
    parser.add_argument("--served", action="store_true", help="every sample comes from the data service")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    _py_spy()
    with tempfile.TemporaryDirectory() as folder:
        report, stacks = measure(
            json.loads(given.cell.read_text()),
            Path(folder),
            sampled_device=given.functions,
            data=SERVED if given.served else LOCAL,
        )
        if given.functions is not None:
            shown = functions_of(stacks.read_text().splitlines(), most=given.most)
            report.data["functions"] = [list(each) for each in shown]
            for kind, function, part in shown:
                say(f"{part:7.2%}  {kind:<10}  {function}")
    return report.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
