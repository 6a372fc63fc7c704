"""Seconds until a test accuracy is reached: edgeswarm beside the fastest device alone, DistributedDataParallel, and 1F1B.

    python -m bench.time_to_accuracy --folder DIR --task cnn --task mobilenet_v2
    python -m bench.time_to_accuracy --folder DIR --report [--write]       the table; into docs/benchmarks.md

Environment C at 100 Mbit/s, in turns; profiles are there already, and workers wait for the next job, as they do when somebody
has trained the model shortly before. A peer has the settings that made a few of its rounds quickest (accuracy_settings.py). Each
training is a command of its own, whose start counts. Each repeat has a seed of its own, for all methods: epochs to an accuracy
are a matter of luck. An epoch is whole mini-batches. One JSON file a task, written after each run; what was broken off goes on
where it was, on a machine with the same processor (bench/kept_document.py). Needs root and nothing else at work.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.accuracy_process import trained
from bench.accuracy_settings import LIMIT_SECONDS, PEERS, settings_shown, tuned_peer
from bench.cell import JOBS, profile_in_turn
from bench.estimate import OURS, apart, repeats_apart
from bench.jobs.digits import TASKS
from bench.kept_document import KeptDocument
from bench.measuring import Report, Spread, folder_arguments, run_as_command, say
from bench.origin import origin, remark, remarks
from bench.pages import BENCHMARKS_PAGE, table_and_verdicts, write_into
from bench.peers.launch import run_script
from bench.peers.settings import PeerSettings
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.links import HUB_ADDRESS
from edgeswarm_coordinator.controller import TrainOptions

FORMAT = "edgeswarm-accuracy/4"
ENVIRONMENT, MBPS = "C", 100.0
METHODS = (OURS, *PEERS)
# What is told, and how an epoch's line has it.
TIMES = {"training": "trained_seconds", "in all": "seconds"}
REPEATS = 3
# Beyond the peers' runs in between: each of ours is like the next one of somebody who tries things out.
READY_WORKER_SECONDS = 3600.0


class TaskMeasurement:
    """Fills a task's document, run by run."""

    def __init__(self, task: str, folder: Path, *, repeats: int) -> None:
        self._task = task
        self._repeats = repeats
        self._kept = KeptDocument(
            folder / f"{task}.json",
            new={"format": FORMAT, "task": task, "target": TASKS[task].target, "runs": []},
            is_complete=lambda document: not self._missing_of(document),
        )
        self.document = self._kept.content
        self._kept.forget_repeats({repeat for repeat, _ in self.missing()})

    def missing(self) -> list[tuple[int, str]]:
        return self._missing_of(self.document)

    def _missing_of(self, document: Mapping[str, Any]) -> list[tuple[int, str]]:
        done = {(told["repeat"], told["method"]) for told in document["runs"]}
        return [(repeat, name) for repeat in range(self._repeats) for name in METHODS if (repeat, name) not in done]

    def run(self) -> None:
        if self.document["format"] != FORMAT:
            raise SystemExit(
                f"{self._kept.path} was measured in another way ({self.document['format']}): move it away."
            )
        if not self.missing():
            return
        folder = self._kept.path.with_suffix(".work")
        shutil.rmtree(folder, ignore_errors=True)
        with (
            EmulatedLan(load_environment(ENVIRONMENT, mbps=MBPS)) as bed,
            BedCluster(bed, folder=folder, ready_worker_seconds=READY_WORKER_SECONDS) as cluster,
        ):
            options = TrainOptions(
                job_path=JOBS / f"digits_{self._task}.py", discovery=cluster.discovery(), listen_address=HUB_ADDRESS
            )
            say(f"{self._task}: profiles")
            profile_in_turn(cluster, options)
            if "peers" not in self.document:
                tuned = {
                    name: tuned_peer(bed, cluster, name, self._task, folder / f"tuned-{place}")
                    for place, name in enumerate(PEERS)
                }
                self._kept.keep(peers={name: asdict(settings) for name, settings in tuned.items()})
            for repeat, method in self.missing():
                say(f"{self._task}: {method}, {repeat + 1} of {self._repeats}")
                number = f"run-{len(self.document['runs'])}"
                seed = repeat + 1
                if method == OURS:
                    (folder / number).mkdir(parents=True)
                    own = replace(options, seed=seed, output=folder / number / "result")
                    told = trained(own, home=cluster.operator_home)
                else:
                    settings = PeerSettings(**self.document["peers"][method])
                    told = _run_peer(bed, cluster, settings, self._task, folder / number, seed=seed)
                self.document["runs"].append({"repeat": repeat, "method": method, "seed": seed, **origin(), **told})
                self._kept.keep()


def _run_peer(
    bed: EmulatedLan, cluster: BedCluster, settings: PeerSettings, task: str, folder: Path, *, seed: int
) -> dict[str, Any]:
    words = settings.words(task, TASKS[task].batch_size, rounds=1, seconds=LIMIT_SECONDS)  # it ends by its accuracy
    started = time.time()
    with cluster.paused():
        log, problem = run_script(
            bed,
            settings.script,
            settings.devices,
            *words,
            "--seed",
            seed,
            folder=folder,
            limit_seconds=LIMIT_SECONDS,
            start_is_timed=True,
        )
    if problem:
        return {"problem": problem}
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"trained_seconds"')]
    return {
        "epochs": [
            {
                "trained_seconds": line["trained_seconds"],
                "seconds": line["when"] - started,
                "accuracy": line["accuracy"],
            }
            for line in lines
        ]
    }


def reached(run_told: Mapping[str, Any], target: float) -> dict[str, float] | None:
    """The first epoch after which the accuracy was there; None where it never was."""
    return next((epoch for epoch in run_told.get("epochs", ()) if epoch["accuracy"] >= target), None)


def report(documents: Sequence[Mapping[str, Any]]) -> Report:
    table = Report(
        title="Seconds to a test accuracy",
        how=(
            f"Environment {ENVIRONMENT} at {MBPS:.0f} Mbit/s; medians over repeats (least to most). Training: the epochs, "
            "without the tests behind them. In all: from the command to the test that reached it, with starting processes. "
            "Settings of peers: the quickest in some rounds."
        ),
        columns=(
            "task",
            "accuracy",
            "method",
            "training, s",
            "in all, s",
            "epochs",
            "first epoch, s",
            "later epochs, s",
        ),
    )
    for document in documents:
        if document["format"] != FORMAT:
            table.remarks.append(f"{document['task']}: measured in another way ({document['format']}), and left out")
            continue
        taken: dict[str, dict[str, dict[int, float]]] = {what: {} for what in TIMES}
        for method in METHODS:
            runs = [told for told in document["runs"] if told["method"] == method]
            ends = [(told, end) for told in runs if (end := reached(told, document["target"])) is not None]
            head = (document["task"], f"{document['target']:.0%}", ", ".join((method, *_settings(document, method))))
            if not ends:
                told = next(
                    (str(told["problem"]) for told in runs if "problem" in told), "not reached" if runs else "not yet"
                )
                table.rows.append((*head, told, *[""] * (len(table.columns) - len(head) - 1)))
                continue
            trained = Spread.of([end["trained_seconds"] for _, end in ends])
            whole = Spread.of([end["seconds"] for _, end in ends])
            epochs = Spread.of([told["epochs"].index(end) + 1 for told, end in ends])
            for what, key in TIMES.items():
                # A run that never reached it took longer than any other.
                taken[what][method] = {
                    told["repeat"]: math.inf if end is None else end[key]
                    for told, end in ((told, reached(told, document["target"])) for told in runs)
                }
            not_all = f" ({len(ends)} of {len(runs)} runs)" if len(ends) < len(runs) else ""
            first, later = epoch_seconds([told for told, _ in ends])
            table.rows.append((
                *(*head, f"{trained.shown(1)}{not_all}", whole.shown(1), epochs.shown(0)),
                *(Spread.of(first).shown(), Spread.of(later).shown() if later else ""),
            ))  # fmt: skip
        own_never = all(OURS not in of_methods for of_methods in taken.values())
        if own_never and any(told["method"] == OURS for told in document["runs"]):
            table.expect(f"{document['task']}: edgeswarm reaches it", False)
        for what, of_methods in taken.items():
            if OURS in of_methods and len(of_methods) > 1:
                table.expect(*_beside_the_best(f"{document['task']}, {what}", of_methods))
        table.data[document["task"]] = {
            what: {method: statistics.median(found.values()) for method, found in of_methods.items()}
            for what, of_methods in taken.items()
        }
    table.remarks += remarks({document["task"]: remark(document["runs"]) for document in documents})
    return table


def _beside_the_best(what: str, taken: Mapping[str, Mapping[int, float]]) -> tuple[str, bool]:
    """How much faster than the fastest peer, and whether by more than the repeats' ratios are apart. taken: seconds by method and
    repeat; in a repeat all have one seed.
    """
    ours = taken[OURS]
    peer = min((name for name in taken if name != OURS), key=lambda name: statistics.median(taken[name].values()))
    both = [repeat for repeat in ours if repeat in taken[peer]]
    if not both or any(math.isinf(times[repeat]) for times in (ours, taken[peer]) for repeat in both):
        mine, theirs = (statistics.median(times.values()) for times in (ours, taken[peer]))
        return f"{what}: {mine:.1f} s beside {theirs:.1f} of {peer}, not reached in each run", mine < theirs
    ratio = Spread.of([taken[peer][repeat] / ours[repeat] for repeat in both])
    if len(both) < 2:
        return f"{what}: {ratio.shown()} times as fast as {peer}, by one repeat, beside which no noise is known", False
    is_equal = apart(ratio.median) <= repeats_apart(ratio)
    return (
        f"{what}: {'equal, ' if is_equal else ''}{ratio.shown()} times as fast as {peer}",
        ratio.median > 1 and not is_equal,
    )


def epoch_seconds(runs: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """What training took in the first epoch of each run, and in all later ones."""
    ends = [[0.0, *(epoch["trained_seconds"] for epoch in told["epochs"])] for told in runs]
    taken = [[end - begin for begin, end in itertools.pairwise(each)] for each in ends]
    return [each[0] for each in taken], [seconds for each in taken for seconds in each[1:]]


def _settings(document: Mapping[str, Any], method: str) -> tuple[str, ...]:
    """Those of a peer; none where it was never tuned."""
    settings = document.get("peers", {}).get(method)
    return () if settings is None else (settings_shown(PeerSettings(**settings)),)


def main() -> int:
    parser = folder_arguments(__doc__, repeats=REPEATS)
    parser.add_argument("--task", action="append", default=[], choices=sorted(TASKS))
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        for task in given.task:
            TaskMeasurement(task, given.folder, repeats=given.repeats).run()
    paths = [given.folder / f"{task}.json" for task in TASKS]
    table = report([json.loads(path.read_text()) for path in paths if path.exists()])
    if given.write:
        write_into(BENCHMARKS_PAGE, "time to accuracy", table_and_verdicts(table))
    return table.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
