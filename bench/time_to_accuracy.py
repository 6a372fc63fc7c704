"""Seconds until a test accuracy is reached: edgeswarm beside the fastest device alone and DistributedDataParallel.

    python -m bench.time_to_accuracy --folder DIR --task cnn --task mobilenet_v2
    python -m bench.time_to_accuracy --folder DIR --report

Environment C at 100 Mbit/s, in turns; profiles are there already, and workers wait for the next job, as they do when somebody has
trained the model shortly before. A peer computes as many samples at once, in that layout of images, as made a few of its rounds
quickest. Each training is a command of its own, whose start counts. Each repeat has a seed of its own, for all methods: epochs
to an accuracy are a matter of luck. An epoch is whole mini-batches. One JSON file a task, written after each run; what was broken
off goes on where it was, on a machine with the same processor (bench/kept_document.py).
Needs root and nothing else at work.
"""

from __future__ import annotations

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
from bench.cell import JOBS, profile_in_turn
from bench.kept_document import KeptDocument
from bench.matrix_report import apart, repeats_apart
from bench.measuring import Report, Spread, folder_arguments, run_as_command, say
from bench.origin import origin, remark, remarks
from bench.peers.balance import shares_by_speed
from bench.peers.launch import run_peer, run_script
from bench.peers.settings import PeerSettings, best_of, seconds_of
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.links import HUB_ADDRESS
from edgeswarm_coordinator.controller import TrainOptions

FORMAT = "edgeswarm-accuracy/3"
# The target of each task, and samples of a mini-batch; as bench/jobs/digits.py has them.
TASKS = {"cnn": (0.97, 64), "mobilenet_v2": (0.95, 128)}
ENVIRONMENT, MBPS = "C", 100.0
METHODS = ("edgeswarm", "single device", "DDP, shares by speed")
# What is told, and how an epoch's line has it.
TIMES = {"training": "trained_seconds", "in all": "seconds"}
MICRO_BATCHES = (16, 32, 64, 128)
TRIAL_ROUNDS = 5
REPEATS = 3
_LIMIT_SECONDS = 900.0
# Beyond the peers' runs in between: each of ours is like the next one of somebody who tries things out.
READY_WORKER_SECONDS = 3600.0


class TaskMeasurement:
    """Fills a task's document, run by run."""

    def __init__(self, task: str, folder: Path, *, repeats: int) -> None:
        self._task = task
        self._repeats = repeats
        self._kept = KeptDocument(
            folder / f"{task}.json",
            new={"format": FORMAT, "task": task, "target": TASKS[task][0], "runs": []},
            is_complete=lambda document: not self._missing_of(document),
        )
        self.document = self._kept.content

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
                    for place, name in enumerate(METHODS[1:])
                }
                self._kept.keep(peers={name: asdict(settings) for name, settings in tuned.items()})
            for repeat, method in self.missing():
                say(f"{self._task}: {method}, {repeat + 1} of {self._repeats}")
                number = f"run-{len(self.document['runs'])}"
                seed = repeat + 1
                if method == METHODS[0]:
                    (folder / number).mkdir(parents=True)
                    own = replace(options, seed=seed, output=folder / number / "result")
                    told = trained(own, home=cluster.operator_home)
                else:
                    settings = PeerSettings(**self.document["peers"][method])
                    told = _run_peer(bed, cluster, settings, self._task, folder / number, seed=seed)
                self.document["runs"].append({"repeat": repeat, "method": method, "seed": seed, **origin(), **told})
                self._kept.keep()


def tuned_peer(bed: EmulatedLan, cluster: BedCluster, method: str, task: str, folder: Path) -> PeerSettings:
    """The settings that are quickest in a few rounds. Raises RuntimeError where none runs."""
    tried: dict[tuple[int, str], float] = {}
    choices = {
        (settings.micro_batch, "channels last" if settings.channels_last else "channel by channel"): settings
        for settings in settings_to_try(method, task, {device.name: device.cores for device in bed.environment.devices})
    }
    for number, (choice, settings) in enumerate(choices.items()):
        words = settings.words(task, TASKS[task][1], rounds=TRIAL_ROUNDS, seconds=_LIMIT_SECONDS, is_trial=True)
        with cluster.paused():
            done = run_peer(
                bed,
                settings.script,
                settings.devices,
                *words,
                "--trial",
                folder=folder / str(number),
                limit_seconds=_LIMIT_SECONDS,
            )
        tried[choice] = seconds_of(done)
        say(f"{task}: {method}, {choice[0]} at once, {choice[1]}: {done.problem or f'{tried[choice]:.3f} s'}")
    return choices[best_of(tried)]


def settings_to_try(method: str, task: str, cores: Mapping[str, float]) -> list[PeerSettings]:
    """Both layouts, and all micro-batches up to one that holds the largest share. cores: of each device."""
    mini_batch = TASKS[task][1]
    if method == METHODS[1]:
        devices, shares = [max(cores, key=lambda name: cores[name])], [mini_batch]
    else:
        devices, shares = list(cores), shares_by_speed(mini_batch, list(cores.values()))
    options = {"shares": ",".join(map(str, shares))} if len(devices) > 1 else {}
    return [
        PeerSettings("to_accuracy", devices, micro_batch, options, channels_last)
        for channels_last in (True, False)
        for micro_batch in MICRO_BATCHES
        if micro_batch < 2 * max(shares)
    ]


def _run_peer(
    bed: EmulatedLan, cluster: BedCluster, settings: PeerSettings, task: str, folder: Path, *, seed: int
) -> dict[str, Any]:
    words = settings.words(task, TASKS[task][1], rounds=1, seconds=_LIMIT_SECONDS)  # it ends by its accuracy
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
            limit_seconds=_LIMIT_SECONDS,
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
            f"Environment {ENVIRONMENT} at {MBPS:.0f} Mbit/s; medians over repeats (least to most). Training: the rounds alone. "
            "In all: from the command to the test that reached it, with starting processes and the tests after each epoch."
        ),
        columns=("task", "accuracy", "method", "training", "in all", "epochs"),
    )
    for document in documents:
        if document["format"] != FORMAT:
            table.remarks.append(f"{document['task']}: measured in another way ({document['format']}), and left out")
            continue
        taken: dict[str, dict[str, dict[int, float]]] = {what: {} for what in TIMES}
        for method in METHODS:
            runs = [told for told in document["runs"] if told["method"] == method]
            ends = [(told, end) for told in runs if (end := reached(told, document["target"])) is not None]
            head = (document["task"], f"{document['target']:.0%}", method + _settings(document, method))
            if not ends:
                told = next(
                    (str(told["problem"]) for told in runs if "problem" in told), "not reached" if runs else "not yet"
                )
                table.rows.append((*head, told, "", ""))
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
            table.rows.append((*head, f"{trained.shown(1)} s{not_all}", f"{whole.shown(1)} s", epochs.shown(0)))
        for what, of_methods in taken.items():
            if METHODS[0] in of_methods and len(of_methods) > 1:
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
    ours = taken[METHODS[0]]
    peer = min((name for name in taken if name != METHODS[0]), key=lambda name: statistics.median(taken[name].values()))
    both = [repeat for repeat in ours if repeat in taken[peer]]
    if not both or any(math.isinf(times[repeat]) for times in (ours, taken[peer]) for repeat in both):
        mine, theirs = (statistics.median(times.values()) for times in (ours, taken[peer]))
        return f"{what}: {mine:.1f} s beside {theirs:.1f} of {peer}, not reached in each run", mine < theirs
    ratio = Spread.of([taken[peer][repeat] / ours[repeat] for repeat in both])
    is_equal = apart(ratio.median) <= repeats_apart(ratio)
    return (
        f"{what}: {'equal, ' if is_equal else ''}{ratio.shown()} times as fast as {peer}",
        ratio.median > 1 and not is_equal,
    )


def _settings(document: Mapping[str, Any], method: str) -> str:
    """`, 64 at once, channels last`, where a peer's were tried."""
    settings = document.get("peers", {}).get(method)
    if settings is None:
        return ""
    return f", {settings['micro_batch']} at once{', channels last' if settings['channels_last'] else ''}"


def main() -> int:
    parser = folder_arguments(__doc__, repeats=REPEATS)
    parser.add_argument("--task", action="append", default=[], choices=sorted(TASKS))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        for task in given.task:
            TaskMeasurement(task, given.folder, repeats=given.repeats).run()
    paths = [given.folder / f"{task}.json" for task in TASKS]
    return report([json.loads(path.read_text()) for path in paths if path.exists()]).show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
