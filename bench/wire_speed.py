"""What a narrow wire brings in speed where links are slow, and its loss after the same rounds.

    python -m bench.wire_speed --folder DIR [--model mobilenet_v2]
    python -m bench.wire_speed --folder DIR --report [--write]      the table; into docs/benchmarks.md

Environment C at 100 Mbit/s. For each `wire_dtype` the plan that is best with it, and where that is another one float32's plan,
too, trained in turns over the same samples; one JSON file a model, written after each run; what was broken off goes on where it
was, on a machine with the same processor (bench/kept_document.py). bench.wire_dtype looks at the loss of longer trainings. Needs
root and a quiet machine.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cell import FIRST_ROUNDS, measured_seconds, paced_seconds, profile_in_turn, run, written_job
from bench.estimate import Estimate
from bench.jobs.paper_models import PAPER_MODELS
from bench.kept_document import KeptDocument
from bench.measuring import Report, Spread, folder_arguments, run_as_command, say
from bench.origin import origin, remark, remarks
from bench.pages import BENCHMARKS_PAGE, table_and_verdicts, write_into
from bench.testbed.bed import EmulatedLan
from bench.testbed.cluster import BedCluster
from bench.testbed.environment import load_environment
from bench.testbed.links import HUB_ADDRESS
from bench.testbed.speed import at_one_best
from edgeswarm.plan import Plan
from edgeswarm_coordinator.controller import TrainOptions, make_plan_for_job
from edgeswarm_coordinator.plan_by_hand import with_node_ids

FORMAT = "edgeswarm-wire-speed/1"
ENVIRONMENT, MBPS = "C", 100.0
WIRES = ("float32", "bfloat16", "float16")
ROUNDS, REPEATS = 10, 3


def measure(model: str, folder: Path, *, repeats: int) -> None:
    """Fills the model's file; needs a testbed only where a run is missing."""
    kept = KeptDocument(
        folder / f"{model}.json",
        new={"format": FORMAT, "model": model, "runs": []},
        is_complete=lambda document: not missing(document, repeats=repeats),
    )
    document = kept.content
    wanted = missing(document, repeats=repeats)
    if not wanted:
        return
    kept.forget_repeats({repeat for repeat, _ in wanted})
    work = kept.path.with_suffix(".work")
    shutil.rmtree(work, ignore_errors=True)
    with EmulatedLan(load_environment(ENVIRONMENT, mbps=MBPS)) as bed, BedCluster(bed, folder=work) as cluster:
        options = {
            wire: TrainOptions(
                job_path=written_job(work / f"job-{wire}", model, rounds=FIRST_ROUNDS + ROUNDS, wire_dtype=wire),
                discovery=cluster.discovery(),
                listen_address=HUB_ADDRESS,
            )
            for wire in WIRES
        }
        if "plans" not in document:
            say(f"{model}: profiles")
            profile_in_turn(cluster, options[WIRES[0]])
            plans = {wire: make_plan_for_job(options[wire], folders=cluster.folders)[0] for wire in WIRES}
            names = {cluster.node_id(name): name for name in cluster.names}
            kept.keep(plans={wire: with_node_ids(plan, names).to_json() for wire, plan in plans.items()})
        for repeat, setting in missing(document, repeats=repeats):
            say(f"{model}: {setting}, {repeat + 1} of {repeats}")
            wire, planned_for = settings(document)[setting]
            plan = Plan.from_json(document["plans"][planned_for])
            told = run(cluster, options[wire], plan, work / f"run-{len(document['runs'])}")
            document["runs"].append({"wire": setting, "repeat": repeat, **origin(), **told})
            kept.keep()


def settings(document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What is trained, by its name in the table: with which wire, and with the plan for which. A narrow wire whose own plan isn't
    float32's is trained with both, once there are plans: what it brings by itself is told apart from what the plans do.
    """
    found = {wire: (wire, wire) for wire in WIRES}
    plans = {wire: {**plan, "predicted": None} for wire, plan in document.get("plans", {}).items()}
    for wire in WIRES[1:]:
        if plans and plans[wire] != plans[WIRES[0]]:
            found[f"{wire}, {WIRES[0]}'s plan"] = (wire, WIRES[0])
    return found


def missing(document: Mapping[str, Any], *, repeats: int) -> list[tuple[int, str]]:
    """(repeat, setting) still to run, in their order."""
    done = {(told["repeat"], told["wire"]) for told in document["runs"]}
    return [(repeat, name) for repeat in range(repeats) for name in settings(document) if (repeat, name) not in done]


def report(documents: Sequence[Mapping[str, Any]]) -> Report:
    wide = WIRES[0]
    table = Report(
        title="Speed of a narrow wire",
        how=(
            f"Environment {ENVIRONMENT} at {MBPS:.0f} Mbit/s, each wire with its own best plan but where another is named. "
            "Seconds of a round: medians of "
            f"the repeats (least to most). Speed beside {wide}: by {wide}'s run and that of the next repeat, "
            "between which the others ran; noise: the one by the other, in the worst repeat; `equal` as in the matrix; at one "
            "pace: each round by the machine's slowness meanwhile. Loss: of the last round, after the same samples."
        ),
        columns=(
            *("model", "wire", "seconds of a round", f"speed beside {wide}", "noise"),
            *("at one pace", "noise at one pace", "loss", "stages"),
        ),
    )
    for document in documents:
        model = document["model"]
        done = [told for told in document["runs"] if "round_seconds" in told]
        measured, paced = (
            Estimate.against_the_next(runs, rate, method="wire", own_method=wide)
            for runs, rate in (
                (done, lambda told: 1 / measured_seconds(told)),
                (at_one_best(done), lambda told: 1 / paced_seconds(told)),
            )
        )
        for wire in settings(document):
            own = [told for told in done if told["wire"] == wire]
            if not own:
                failed = (str(told["error"]) for told in document["runs"] if told["wire"] == wire and "error" in told)
                table.rows.append((model, wire, next(failed, "not yet"), *[""] * (len(table.columns) - 3)))
                continue
            seconds = Spread.of([measured_seconds(told) for told in own])
            ratios = [None if wire == wide else each.speed_up(wide, of=wire) for each in (measured, paced)]
            loss = statistics.median(told["losses"][-1] for told in own)
            table.rows.append((
                *(model, wire, seconds.shown(), measured.shown(ratios[0], ratios[1]), measured.shown_noise),
                *(paced.shown(ratios[1], ratios[0]), paced.shown_noise, f"{loss:.4f}", str(len(own[-1]["document"]["stages"]))),
            ))  # fmt: skip
            table.data[f"{model} {wire}"] = {
                "seconds": seconds.to_json(),
                f"beside_{wide}": {
                    name: None if ratio is None else ratio.to_json()
                    for name, ratio in zip(("as measured", "at one pace"), ratios, strict=True)
                },
                "noise": {"as measured": measured.noise, "at one pace": paced.noise},
                "loss": loss,
            }
    table.remarks += remarks({document["model"]: remark(document["runs"]) for document in documents})
    return table


def main() -> int:
    parser = folder_arguments(__doc__, repeats=REPEATS)
    parser.add_argument("--model", action="append", default=[], choices=sorted(PAPER_MODELS))
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        for model in given.model or ["mobilenet_v2"]:
            measure(model, given.folder, repeats=given.repeats)
    paths = [given.folder / f"{model}.json" for model in sorted(PAPER_MODELS)]
    table = report([json.loads(path.read_text()) for path in paths if path.exists()])
    if given.write:
        write_into(BENCHMARKS_PAGE, "wire speed", table_and_verdicts(table))
    return table.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
