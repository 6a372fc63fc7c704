"""What a training shows: the live line, the plain lines, the tables of parts and devices."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.cli.device_table import device_table, print_devices
from edgeswarm_coordinator.cli.parts import PartsOfRounds, parts_table
from edgeswarm_coordinator.cli.plan_view import show_plan_made
from edgeswarm_coordinator.cli.progress import PLAIN_LINE_EVERY_SECONDS, Progress, epochs_line, round_line
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.events import (
    BestKept,
    CheckpointWritten,
    DevicesFound,
    EvaluationDone,
    ModelReady,
    PlanMade,
    ProfileProgress,
    RoundDone,
    RoundParts,
    SharesMoved,
    StepDone,
    StepStarted,
    TrainingDone,
    TransferProgress,
    Warning,
    WorkerDoes,
)

NANO = Device("nano-1-0a4f22", "10.0.0.4:7600", board="Jetson Nano", cpu_cores=4, memory_budget_bytes=3 * 2**30)
PARTS = RoundParts(
    seconds=1.0,
    forward=0.2,
    backward=0.3,
    send=0.05,
    waiting={"activations from nano-1": 0.1, "samples": 0.05},
    all_reduce=0.1,
    step=0.15,
    other=0.05,
)


def round_done(number: int = 11, **changes: object) -> RoundDone:
    fields = {
        "round": number,
        "rounds": 184,
        "epoch": 0,
        "loss": 1.25,
        "samples": 64,
        "seconds": 0.08,
        "samples_per_second": 800.4,
        "seconds_left": 101.0,
        "stage_use": (0.83, 0.912),
        "parts": {"nano-1-0a4f22": PARTS},
        **changes,
    }
    return RoundDone(**fields)  # type: ignore[arg-type]  # the fields are of many types


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TextStream(io.StringIO):
    """Keeps what is written to it. terminal: what it says that it is."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def text_console(*, terminal: bool = False) -> tuple[Console, TextStream]:
    stream = TextStream(terminal=terminal)
    return Console(
        file=stream, force_terminal=terminal, width=200, highlight=False, markup=False, color_system=None
    ), stream


def test_the_live_line_has_round_loss_speed_time_left_and_use_of_each_stage() -> None:
    assert round_line(round_done()) == "round 12/184 | loss 1.2500 | 800 samples/s | 1:41 left | stages 83 91 % busy"
    assert "left" not in round_line(round_done(seconds_left=None))
    assert "2:00:05 left" in round_line(round_done(seconds_left=7205.0))
    assert "| 0.412 samples/s |" in round_line(round_done(samples_per_second=0.4123))


def test_moved_shares_are_a_line_with_what_changed() -> None:
    stages = (Stage(0, 1, {"nx": 12}, 3), Stage(1, 2, {"a": 6, "b": 4, "c": 2}, 1))
    before = Plan("by hand", 12, 1, stages)
    after = Plan("by hand", 12, 1, (stages[0], Stage(1, 2, {"a": 7, "b": 3, "c": 2}, 1)))
    console, stream = text_console()
    Progress(console)(SharesMoved(6, before, after, gain=0.0812))
    assert stream.getvalue() == "  after round 6 shares follow speed: a 6 -> 7, b 4 -> 3; about 8 % faster\n"


def test_without_a_terminal_there_is_a_line_every_few_seconds_and_one_for_the_last_round() -> None:
    console, stream = text_console()
    clock = Clock()
    with Progress(console, clock=clock) as progress:
        for number in range(184):
            progress(round_done(number))
            clock.now += PLAIN_LINE_EVERY_SECONDS / 10
    rounds = [line.split()[1] for line in stream.getvalue().splitlines()]
    assert rounds[:3] == ["1/184", "11/184", "21/184"]
    assert rounds[-1] == "184/184"


def test_on_a_terminal_the_line_is_alive() -> None:
    console, stream = text_console(terminal=True)
    with Progress(console) as progress:
        progress(StepStarted("export model"))
        progress(round_done())
    assert "round 12/184" in stream.getvalue()


@pytest.mark.parametrize(("variable", "value", "terminal"), [("TERM", "dumb", True), ("FORCE_COLOR", "1", False)])
def test_where_no_line_can_be_alive_there_are_plain_ones(
    variable: str, value: str, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    stream = TextStream(terminal=terminal)
    with Progress(Console(file=stream, width=200, highlight=False, markup=False)) as progress:
        progress(StepStarted("train"))
        progress(round_done())
    assert stream.getvalue() == f"  {round_line(round_done())}\n"


def test_a_narrow_terminal_gets_one_line_all_the_same() -> None:
    stream = TextStream(terminal=True)
    console = Console(file=stream, force_terminal=True, width=40, highlight=False, markup=False, color_system=None)
    with Progress(console) as progress:
        progress(round_done())
    assert "round 12/184 | loss 1.2500" in stream.getvalue()
    assert "left" not in stream.getvalue()


def test_the_live_line_names_the_steps_that_still_run() -> None:
    console, stream = text_console(terminal=True)
    with Progress(console) as progress:
        progress(StepStarted("find devices"))
        progress(StepStarted("load job"))
        progress(StepDone("find devices", 0.2))
    last_frames = stream.getvalue().rpartition("200.0 ms")[2]
    assert "load job" in last_frames
    assert "find devices" not in last_frames


def test_every_kind_of_event_is_shown() -> None:
    console, stream = text_console()
    plans: list[PlanMade] = []
    plan = Plan("by hand", 4, 2, (Stage(0, 2, {"nano-1-0a4f22": 4}, 1),))
    with Progress(console, show_plan=plans.append) as progress:
        progress(StepDone("find devices", 1.234, "three answered"))
        progress(Warning("the clock of nano-1 is 9 s ahead"))
        progress(DevicesFound((NANO,), "mdns"))
        progress(ModelReady(("stem", "head"), 4 * 2**20, "float32"))
        progress(ProfileProgress(3, 12, "stem on nano-1"))
        progress(PlanMade(plan, None, ("stem", "head")))
        evaluation = EvaluationDone(184, 2, {"loss": 0.5, "accuracy": 0.97}, samples=10, seconds=1.0, best=True)
        progress(evaluation)
        progress(BestKept(184, 2**20, 0.5))
        progress(CheckpointWritten(184, Path("out.unfinished"), 4 * 2**20, 0.25))
        progress(TrainingDone(Path("out"), 184, 0.0123, 17.0, 25.0, stopped_early=True, best=evaluation))
    shown = stream.getvalue()
    for text in (
        "find devices",
        "1.2 s  three answered",
        "warning: the clock of nano-1 is 9 s ahead",
        "1 device (found by mDNS): nano-1-0a4f22",
        "2 layers, 4.0 MiB of parameters, float32",
        "measuring 3/12 stem on nano-1",
        "evaluation after epoch 3 | loss 0.5000 | accuracy 0.9700 | best so far",
        "layers of the best so far kept: 1.0 MiB in 500.0 ms",
        "checkpoint after round 184: 4.0 MiB in 250.0 ms",
        "184 rounds in 17.0 s, last loss 0.0123; this command took 25.0 s",
        "stopped early",
        "best evaluation: epoch 3, loss 0.5000, accuracy 0.9700",
    ):
        assert text in shown, text
    assert [event.plan for event in plans] == [plan]


def test_what_takes_long_says_how_long_it_will_take() -> None:
    console, stream = text_console()
    clock = Clock()
    with Progress(console, clock=clock) as progress:
        for step, event in (
            ("profile layers", ProfileProgress(4, 12, "stem on nano-1")),
            ("measure links", ProfileProgress(2, 6, "nano-1 to nano-2")),
            ("send job files", TransferProgress("job files", "nano-1", 2 * 2**20, 6 * 2**20)),
        ):
            progress(StepStarted(step))
            clock.now += 10.0
            progress(event)
            progress(StepDone(step, 10.0))
    for text in (
        "measuring 4/12 stem on nano-1, 0:20 left",
        "measuring 2/6 nano-1 to nano-2, 0:20 left",
        "nano-1 2.0 MiB of 6.0 MiB, 204.8 KiB/s, 0:20 left",
    ):
        assert text in stream.getvalue(), text


def test_the_first_rounds_line_comes_at_once() -> None:
    console, stream = text_console()
    with Progress(console, clock=Clock()) as progress:
        progress(StepStarted("measure links"))
        progress(ProfileProgress(2, 6, "nano-1 to nano-2"))
        progress(StepStarted("train"))
        progress(round_done(0))
    assert "round 1/184" in stream.getvalue()


def test_on_a_terminal_what_the_workers_do_is_seen() -> None:
    console, stream = text_console(terminal=True)
    with Progress(console) as progress:
        progress(StepStarted("prepare workers"))
        progress(WorkerDoes("nano-1", "fetch layers"))
    assert "prepare workers (nano-1: fetch layers)" in stream.getvalue()


def test_the_first_epoch_and_the_later_ones_are_told_apart() -> None:
    first, later = {"samples": 50, "samples_per_second": 812.4}, {"samples": 100, "samples_per_second": 1403.0}
    totals = {"first_epoch": first, "later_epochs": later}
    assert epochs_line({"totals": totals}) == "first epoch 812 samples/s, later ones 1403 samples/s"
    assert epochs_line({"totals": {**totals, "later_epochs": {"samples": 0, "samples_per_second": 0.0}}}) is None
    assert epochs_line({"totals": {}}) is None
    slow = {"samples": 5, "samples_per_second": 0.4123}
    assert epochs_line({"totals": {"first_epoch": slow, "later_epochs": slow}}) == (
        "first epoch 0.412 samples/s, later ones 0.412 samples/s"
    )


def test_a_plan_by_hand_is_shown_with_its_layers() -> None:
    console, stream = text_console()
    plan = Plan("by hand", 4, 2, (Stage(0, 1, {"a": 3, "b": 1}, 1), Stage(1, 2, {"c": 4}, 1)))
    show_plan_made(console, PlanMade(plan, None, ("stem", "head")))
    assert "8 samples a round in 2 micro-batches of 4" in stream.getvalue()
    for text in ("0-0 (stem", "1-1 (head", " a ", " b ", " c "):
        assert text in stream.getvalue(), text


def test_the_parts_of_a_mean_round_add_up_to_it() -> None:
    sums = PartsOfRounds()
    for scale in (0.5, 1.0, 3.0):
        scaled = RoundParts(
            seconds=PARTS.seconds * scale,
            forward=PARTS.forward * scale,
            backward=PARTS.backward * scale,
            send=PARTS.send * scale,
            waiting={what: seconds * scale for what, seconds in PARTS.waiting.items()},
            all_reduce=PARTS.all_reduce * scale,
            step=PARTS.step * scale,
            other=PARTS.other * scale,
        )
        sums(round_done(parts={"nano-1": scaled}))
    mean = sums.means()["nano-1"]
    assert mean["round"] == pytest.approx(1.5)
    assert sum(seconds for part, seconds in mean.items() if part != "round") == pytest.approx(mean["round"])
    assert mean["computing"] == pytest.approx(0.75)
    assert mean["waiting for samples"] == pytest.approx(0.075)


def test_the_table_of_parts_has_a_column_for_each_worker() -> None:
    sums = PartsOfRounds()
    sums(round_done(parts={"nano-1": PARTS, "nano-2": RoundParts(seconds=0.5, forward=0.5)}))
    console, stream = text_console()
    console.print(parts_table(sums.means()))
    lines = stream.getvalue().splitlines()
    rows = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert rows == [
        "computing",
        "sending",
        "waiting for activations from nano-1",
        "waiting for samples",
        "all-reduce",
        "step",
        "other",
        "round",
    ]
    waiting = next(line for line in lines if "waiting for samples" in line)
    assert [cell.strip() for cell in waiting.split("│")[2:4]] == ["50.0    5 %", ""]


def test_the_table_of_devices_says_who_is_busy_and_who_is_slowed_down() -> None:
    busy = Device("nano-2-bbbbbb", "10.0.0.5:7600", busy_with_job="digits-1", busy_since="10:04", slow_down=1.5)
    console, stream = text_console()
    console.print(device_table([NANO, busy]))
    for text in ("nano-1-0a4f22", "Jetson Nano", "3.0 GiB", "idle", "busy with digits-1 since 10:04", "1.5 x slower"):
        assert text in stream.getvalue(), text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_devices_are_whole_in_a_terminal_of_any_width(width: int) -> None:
    far = Device("living-room-nano-bbbbbb", "192.168.100.105:7600", board="NVIDIA Jetson Nano", torch_version="2.4.0")
    stream = io.StringIO()
    print_devices(Console(file=stream, width=width), [NANO, far])
    for text in ("living-room-nano-bbbbbb", "192.168.100.105:7600", "NVIDIA Jetson Nano", "2.4.0", "idle"):
        assert text in stream.getvalue(), text
    assert ("┃" in stream.getvalue()) == (width == 200)


def test_names_of_devices_are_whole_in_the_plan_of_a_narrow_terminal() -> None:
    stream = io.StringIO()
    plan = Plan("by hand", 4, 1, (Stage(0, 3, {"living-room-nano-bbbbbb": 4}, 1),))
    show_plan_made(Console(file=stream, width=60), PlanMade(plan, instance=None, layer_names=("stem", "body", "head")))
    assert "living-room-nano-bbbbbb" in stream.getvalue()
    assert "…" not in stream.getvalue()
