"""What a narrow wire saves, and what it does to the loss: two of the examples, trained with each `wire_dtype`.

    python -m bench.wire_dtype

Three agents of this machine, two stages of which the second is replicated, so that activations, their gradients and
an all-reduce cross between devices. The plan, the samples and the seeds are the same; only the wire is another.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.measuring import Report, arguments, run_as_command, say
from edgeswarm.job import Job, model_arguments
from edgeswarm.job_file import load_job
from edgeswarm.model.export import export_model
from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.controller import TrainOptions, train
from edgeswarm_coordinator.demo.cluster import LOOPBACK, AgentSpec, ThrowawayCluster
from edgeswarm_coordinator.job_checks import SAMPLE_ROWS, sample_batch

EXAMPLES = Path(__file__).parents[1] / "examples"
WIRES = (None, "bfloat16", "float16")
LAST_ROUNDS = 20
# The loss moves by this much from one seed to another in these jobs: a narrow wire shall not cost more.
MOST_LOSS = 0.05


@dataclass(frozen=True)
class Case:
    """A job file and how long it is trained."""

    file: str
    epochs: int


CASES = {"digits_cnn": Case("digits_cnn.py", 4), "char_gpt": Case("char_gpt.py", 1)}


@dataclass(frozen=True)
class Outcome:
    """loss: mean of the last rounds. evaluation: after the last. sent_bytes: of all workers, a round."""

    loss: float
    evaluation: dict[str, float]
    sent_bytes: float


def plan_of(job: Job, path: Path, cluster: ThrowawayCluster) -> Plan:
    """Half of the layers on `a`, the others on `b` and `c`; four micro-batches a round."""
    torch.manual_seed(job.seed)
    model = job.model()
    inputs, _ = sample_batch(job, job.dataset(), range(SAMPLE_ROWS), folder=path.parent)
    args, kwargs = model_arguments(inputs)
    layers = len(export_model(model, args, kwargs).layer_graph.layers)
    share = job.batch_size // 8
    a, b, c = (cluster.node_id(name) for name in "abc")
    return Plan(
        planner="hand",
        micro_batch=2 * share,
        micro_batches=4,
        stages=(
            Stage(0, layers // 2, {a: 2 * share}, 3),
            Stage(layers // 2, layers, {b: share, c: share}, 1),
        ),
    )


def outcome(metrics: dict[str, Any]) -> Outcome:
    rounds = metrics["rounds"]
    return Outcome(
        loss=statistics.fmean(done["loss"] for done in rounds[-LAST_ROUNDS:]),
        evaluation=metrics["evaluations"][-1]["metrics"],
        sent_bytes=statistics.median(sum(parts["sent_bytes"] for parts in done["parts"].values()) for done in rounds),
    )


def run(case: Case, cluster: ThrowawayCluster, folder: Path) -> dict[str, Outcome]:
    """The job with each element type, by its name."""
    path = EXAMPLES / case.file
    job = load_job(path.parent, path.name)
    plan_path = folder / "plan.json"
    plan_path.write_text(json.dumps(plan_of(job, path, cluster).to_json()))
    found = {}
    for wire in WIRES:
        options = TrainOptions(
            job_path=path,
            output=folder / f"result-{wire}",
            plan_path=plan_path,
            epochs=case.epochs,
            wire_dtype=wire,
            listen_address=LOOPBACK,
            discovery=cluster.discovery(),
        )
        found[wire or "float32"] = outcome(dict(train(options, folders=cluster.folders).metrics))
        say(f"{case.file} {wire or 'float32'}: {found[wire or 'float32']}")
    return found


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--case", choices=CASES, action="append", help="only this job; may be repeated")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    report = Report(
        title="A narrow wire: bytes and loss",
        how=(
            "Two stages on three agents of this machine, the second replicated; the same plan, samples and seeds. Loss: mean "
            f"of the last {LAST_ROUNDS} rounds. Sent: by all three workers, a round, everything that leaves them counted."
        ),
        columns=("job", "wire", "loss", "beside float32", "evaluation", "sent MiB a round", "beside float32"),
    )
    for name in given.case or CASES:
        with ThrowawayCluster(tuple(AgentSpec(agent) for agent in "abc")) as cluster:
            folder = cluster.folder / name
            folder.mkdir()
            found = run(CASES[name], cluster, folder)
        wide = found["float32"]
        for wire, made in found.items():
            evaluation = ", ".join(f"{metric} {value:.4f}" for metric, value in made.evaluation.items())
            report.rows.append((
                *(name, wire, f"{made.loss:.4f}", f"{made.loss - wide.loss:+.4f}", evaluation),
                *(f"{made.sent_bytes / 2**20:.3f}", f"{made.sent_bytes / wide.sent_bytes:.2f}"),
            ))  # fmt: skip
            report.data.setdefault(name, {})[wire] = vars(made)
            if wire != "float32":
                worse = made.evaluation["loss"] - wide.evaluation["loss"]
                report.expect(
                    f"{name} {wire}: evaluation loss at most {MOST_LOSS} above ({worse:+.4f})", worse < MOST_LOSS
                )
    return report.show(as_json=given.json)


if __name__ == "__main__":
    run_as_command(main)
