"""What edgeswarm's rounds used in each cell beside time: bytes, processor outside of the model, memory; and what was predicted.

By a cell's document, whose plans, instance and runs say it all. Pure.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.estimate import OURS, RUN_AGAIN
from bench.measuring import Report
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_from_json
from edgeswarm_coordinator.planner.cost_model import plan_memory_bytes
from edgeswarm_coordinator.simulator.simulate import simulate

MOST_BYTES_OFF = 0.02
MOST_OUTSIDE = 0.06  # of a worker's CPU seconds, for the cell and the class below
OUTSIDE_CELL_MODEL, OUTSIDE_CELL_MBPS, OUTSIDE_CLASS = "mobilenet_v2", "100", "nano"


@dataclass(frozen=True)
class Resources:
    """Of edgeswarm's own plan in one cell.

    predicted_seconds, measured_seconds: of a round; the latter a median over all its rounds. planned_bytes, sent_bytes: by all
    devices in a round; left_out_bytes: zeros that were to be sent and weren't; None where it was not told, or the plan reckons
    with some. outside: by device, which part of its CPU seconds was not the model's own operations. outside_seconds_per_sample:
    CPU seconds of all devices. peak_bytes: by device. memory_off: by device, of each run; 0.01 where a hundredth more was
    predicted, for the shares that it had, than its peak. peer_cpu_seconds_per_sample: by peer, all its CPU seconds;
    our_cpu_seconds_per_sample: ours, all. between_rounds_seconds: by method (ours and the peers), from one round's end to the
    next one's begin, which no round has in it; where ends were told. peer_sent_bytes: by peer, of all its devices in a round,
    headers and all; card_sent_bytes: likewise, ours; None where it was not told. peer_peak_bytes: of the device that held most;
    neither where it was not told. joules_per_sample: of the machine, by method (ours and the peers), where it has a sensor.
    """

    cell: str
    predicted_seconds: float
    measured_seconds: float
    planned_bytes: float
    sent_bytes: float
    left_out_bytes: float | None
    outside: Mapping[str, float]
    outside_seconds_per_sample: float
    our_cpu_seconds_per_sample: float
    peer_cpu_seconds_per_sample: Mapping[str, float]
    between_rounds_seconds: Mapping[str, float]
    peer_sent_bytes: Mapping[str, float]
    card_sent_bytes: float | None
    peer_peak_bytes: Mapping[str, int]
    peak_bytes: Mapping[str, int]
    memory_off: Mapping[str, Sequence[float]]
    joules_per_sample: Mapping[str, float]

    @property
    def bytes_off(self) -> float:
        """0.01: a hundredth more than the plan says was sent."""
        return self.sent_bytes / self.planned_bytes - 1 if self.planned_bytes else 0.0

    @property
    def bytes_as_planned(self) -> bool:
        """Within MOST_BYTES_OFF, or with the zeros that were left out, of which a plan can't know."""
        with_zeros = self.bytes_off_with_zeros
        return abs(self.bytes_off) <= MOST_BYTES_OFF or (with_zeros is not None and abs(with_zeros) <= MOST_BYTES_OFF)

    @property
    def bytes_off_with_zeros(self) -> float | None:
        """As `bytes_off`, had those been sent, too; None where it was not told, or nothing must move."""
        if self.left_out_bytes is None or not self.planned_bytes:
            return None
        return self.bytes_off + self.left_out_bytes / self.planned_bytes

    @property
    def card_bytes_off(self) -> float | None:
        """Likewise, of what left the cards; None where it was not told, or nothing must move."""
        if self.card_sent_bytes is None or not self.planned_bytes:
            return None
        return self.card_sent_bytes / self.planned_bytes - 1


def read_resources(document: Mapping[str, Any]) -> Resources | None:
    """None where our plan has not run yet."""
    runs = [run for run in document["runs"] if run["method"] in (OURS, OURS + RUN_AGAIN) and "round_seconds" in run]
    if not runs:
        return None
    plan = Plan.from_json(document["plans"][OURS])
    assert plan.predicted is not None
    instance = instance_from_json(document["profilings"][0]["instance"])
    planned = simulate(instance, plan).sent_bytes
    held = [_held_bytes(instance, plan, run) for run in runs]
    mini_batch = document["mini_batch"]

    def mean(device: str, what: str) -> float:
        return statistics.mean(float(run["devices"][device][what]) for run in runs)

    cpu = {device: mean(device, "cpu_seconds") for device in plan.devices}
    outside = {device: cpu[device] - mean(device, "model_cpu_seconds") for device in plan.devices}
    peers: dict[str, list[float]] = {}
    sent: dict[str, list[float]] = {}
    peaks: dict[str, list[int]] = {}
    joules: dict[str, list[float]] = {}
    for run in document["runs"]:
        method = run["method"].removesuffix(RUN_AGAIN)
        if method in (OURS, *document["peers"]) and run.get("joules") is not None:
            joules.setdefault(method, []).append(run["joules"] / (mini_batch * len(run["round_seconds"])))
    for run in document["runs"]:
        if run["method"] in document["peers"] and "round_seconds" in run:
            devices = list(run["devices"].values())
            used = sum(device["cpu_seconds"] for device in devices)
            peers.setdefault(run["method"], []).append(used / mini_batch)
            # Earlier runs have `peak_bytes` here, which began at the peak of the command that started them, and no bytes.
            if all("own_peak_bytes" in device for device in devices):
                sent.setdefault(run["method"], []).append(sum(device["sent_bytes"] for device in devices))
                peaks.setdefault(run["method"], []).append(max(device["own_peak_bytes"] for device in devices))
    return Resources(
        cell=document["cell"],
        predicted_seconds=plan.predicted.round_seconds,
        measured_seconds=statistics.median(seconds for run in runs for seconds in run["round_seconds"]),
        planned_bytes=sum(planned.values()),
        sent_bytes=sum(mean(device, "sent_bytes") for device in plan.devices),
        left_out_bytes=None if _reckons_with_zeros(instance) else _left_out_bytes(document, runs),
        outside={device: outside[device] / cpu[device] for device in plan.devices},
        outside_seconds_per_sample=sum(outside.values()) / mini_batch,
        our_cpu_seconds_per_sample=sum(cpu.values()) / mini_batch,
        peer_cpu_seconds_per_sample={peer: statistics.median(found) for peer, found in peers.items()},
        between_rounds_seconds=_between_rounds(document),
        peer_sent_bytes={peer: statistics.median(found) for peer, found in sent.items()},
        card_sent_bytes=_over_the_cards(runs),
        peer_peak_bytes={peer: max(found) for peer, found in peaks.items()},
        peak_bytes={device: max(run["devices"][device]["peak_bytes"] for run in runs) for device in plan.devices},
        memory_off={
            device: [
                of_run[device] / run["devices"][device]["peak_bytes"] - 1
                for of_run, run in zip(held, runs, strict=True)
            ]
            for device in plan.devices
        },
        joules_per_sample={method: statistics.median(found) for method, found in joules.items()},
    )


def _reckons_with_zeros(instance: PlanningInstance) -> bool:
    """Whether a plan has some gradient as its few rows that a round meets: of a table of words, say."""
    return any(layer.met_gradient_bytes for layer in instance.model.layers)


def _left_out_bytes(document: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Of the runs that count, else of those few rounds that were run for it (bench/left_out.py)."""
    if not all("left_out_bytes" in used for run in runs for used in run["devices"].values()):
        if "left_out" not in document:
            return None
        runs = [document["left_out"]]
    return statistics.mean(sum(float(used["left_out_bytes"]) for used in run["devices"].values()) for run in runs)


def _over_the_cards(runs: Sequence[Mapping[str, Any]]) -> float | None:
    told = [list(run["devices"].values()) for run in runs]
    if not all("card_sent_bytes" in device for devices in told for device in devices):
        return None
    return statistics.mean(sum(float(device["card_sent_bytes"]) for device in devices) for devices in told)


def _between_rounds(document: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for run in document["runs"]:
        method = run["method"].removesuffix(RUN_AGAIN)
        if method in (OURS, *document["peers"]) and "round_ends" in run:
            apart = (after - before for before, after in itertools.pairwise(run["round_ends"]))
            between = (wall - took for wall, took in zip(apart, run["round_seconds"][1:], strict=True))
            found.setdefault(method, []).extend(between)
    return {method: statistics.median(each) for method, each in found.items() if each}


def _held_bytes(instance: PlanningInstance, plan: Plan, run: Mapping[str, Any]) -> dict[str, float]:
    """By device, what is predicted of a run for the shares with which it holds most.

    What moved shares add is reckoned as it is now; the plan's own prediction is of the day when it was made.
    """
    assert plan.predicted is not None
    planned = plan.predicted.memory_bytes
    held: dict[str, float] = dict(planned)
    now = plan_memory_bytes(instance, plan)
    followed = [plan]
    for move in run.get("share_moves") or ():
        changed = replace(plan, stages=tuple(_with_shares(stage, move["shares"]) for stage in plan.stages))
        moved = plan_memory_bytes(instance, changed, earlier=followed)
        followed.append(changed)
        held = {device: max(most, planned[device] + moved[device] - now[device]) for device, most in held.items()}
    return held


def _with_shares(stage: Stage, shares: Mapping[str, int]) -> Stage:
    """No more samples in one pass than before: moves don't say in how many passes a share was computed."""
    passes = {device: -(-shares[device] // stage.at_once(device)) for device in stage.passes}
    return replace(stage, shares={device: shares[device] for device in stage.devices}, passes=passes)


def resources_table(found: Sequence[Resources]) -> Report:
    """A row a cell; devices of one class are shown by the one that is worst."""
    report = Report(
        title="What edgeswarm's rounds used",
        how=(
            "Of edgeswarm's own plan. Bytes: sent by all devices in a round, beside what the plan says must move; where it was "
            "less, also with the zeros that were left out. Outside of "
            "the model: CPU seconds of a worker that are not its layers' and its optimizer's, as a part of all, and CPU "
            "milliseconds a sample over all devices. CPU: milliseconds a sample over all devices. Between rounds: milliseconds "
            "from one's end to the next one's begin, the median. Memory: the largest peak, and "
            "how the prediction, for the largest share that each device had in a run, stood to its peak there. Over the "
            "cards: all that left the devices, headers and acknowledgements among it, beside the plan's bytes. In brackets the "
            "peers' bytes over the cards, CPU and peaks; nothing where that was not told; edgeswarm's CPU and peaks are those of "
            "the workers, without their agents. "
            "Joules: of the whole machine, a sample, where it has a sensor; emulated devices keep its processors busy while they "
            "wait, so that it says little more than the seconds."
        ),
        columns=(
            *(
                "cell",
                "predicted",
                "measured",
                "error",
                "MB sent",
                "beside the plan",
                "over the cards",
                "outside of the model",
            ),
            *("outside, ms", "CPU, ms", "between rounds, ms", "peak", "memory predicted", "joules"),
        ),
    )
    for cell in found:
        error = cell.predicted_seconds / cell.measured_seconds - 1
        memory = [off for of_runs in cell.memory_off.values() for off in of_runs]
        worst = _worst_of_classes(cell.outside)
        report.rows.append((
            *(cell.cell, f"{cell.predicted_seconds:.2f} s", f"{cell.measured_seconds:.2f} s", f"{error:+.1%}"),
            f"{cell.sent_bytes / 1e6:.1f}{_in_brackets(cell.peer_sent_bytes, 1e-6, digits=1)}",
            _beside_the_plan(cell),
            "" if cell.card_bytes_off is None else f"{cell.card_bytes_off:+.1%}",
            ", ".join(f"{kind} {part:.0%}" for kind, part in worst.items()),
            f"{1e3 * cell.outside_seconds_per_sample:.2f}",
            f"{1e3 * cell.our_cpu_seconds_per_sample:.1f}{_in_brackets(cell.peer_cpu_seconds_per_sample, 1e3, digits=1)}",
            _in_milliseconds(cell.between_rounds_seconds),
            f"{max(cell.peak_bytes.values()) / 2**20:.0f} MiB{_in_brackets(cell.peer_peak_bytes, 2**-20, digits=0)}",
            f"{min(memory):+.0%} to {max(memory):+.0%}",
            ", ".join(f"{method} {used:.2f}" for method, used in cell.joules_per_sample.items()),
        ))  # fmt: skip
        report.expect(f"{cell.cell}: bytes {_beside_the_plan(cell)} beside the plan", cell.bytes_as_planned)
        _, mbps, model = cell.cell.split("-")
        if (model, mbps) == (OUTSIDE_CELL_MODEL, OUTSIDE_CELL_MBPS) and OUTSIDE_CLASS in worst:
            part = worst[OUTSIDE_CLASS]
            report.expect(
                f"{cell.cell}: {part:.1%} of a {OUTSIDE_CLASS}'s CPU outside of the model", part <= MOST_OUTSIDE
            )
        report.data[cell.cell] = {**asdict(cell), "error": error, "bytes_off": cell.bytes_off}
    return report


def _beside_the_plan(cell: Resources) -> str:
    with_zeros = cell.bytes_off_with_zeros
    if cell.bytes_off >= -MOST_BYTES_OFF or with_zeros is None:
        return f"{cell.bytes_off:+.2%}"
    return f"{cell.bytes_off:+.2%} ({with_zeros:+.2%} with zeros)"


def _in_brackets(of_peers: Mapping[str, float], unit: float, *, digits: int) -> str:
    """` (single device 4.4, 1F1B 5.2)` behind what is ours; nothing where nothing is known. unit: what each is multiplied by."""
    told = ", ".join(f"{peer} {unit * value:.{digits}f}" for peer, value in of_peers.items())
    return f" ({told})" if told else ""


def _in_milliseconds(of_methods: Mapping[str, float]) -> str:
    """Ours, and the peers' in brackets; nothing where ours isn't known."""
    if OURS not in of_methods:
        return ""
    peers = {method: seconds for method, seconds in of_methods.items() if method != OURS}
    return f"{1e3 * of_methods[OURS]:.0f}{_in_brackets(peers, 1e3, digits=0)}"


def _worst_of_classes(outside: Mapping[str, float]) -> dict[str, float]:
    """By class, the name without its number: the largest part."""
    worst: dict[str, float] = {}
    for device, part in outside.items():
        kind = device.rsplit("-", 1)[0]
        worst[kind] = max(part, worst.get(kind, 0.0))
    return worst
