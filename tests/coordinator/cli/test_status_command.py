"""`edgeswarm status`: what runs, what ended and how, for a person and for a program."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from edgeswarm.config import Folders
from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode
from edgeswarm_coordinator.cli.run_view import runs_view
from edgeswarm_coordinator.cli.watching import show_again_and_again
from edgeswarm_coordinator.run_store import RECORD_FILE, RunStore

from .conftest import Invoke
from .runs import GONE, LONG_AGO_SECONDS, leave_run
from .test_progress import text_console

LOST = EdgeswarmError(ErrorCode.DEVICE_LOST, "The device nano-1 was lost.", "Look after it.")


def test_nothing_to_list_is_told_and_no_error(invoke: Invoke, home: Path) -> None:
    result = invoke("status")
    assert result.exit_code == ExitCode.DONE
    assert result.stdout == ""
    assert "No training runs" in result.stderr
    assert json.loads(invoke("status", "--json").stdout) == {"runs": []}
    assert not home.exists(), "looking makes no folders"


def test_those_that_run_and_those_of_the_last_day_are_listed(invoke: Invoke, home: Path) -> None:
    leave_run(home, "digits-1")
    leave_run(home, "words-2", over=True)
    leave_run(home, "flowers-3", error=LOST)
    leave_run(home, "birds-4", process=GONE)
    leave_run(home, "old-5", over=True, age_seconds=LONG_AGO_SECONDS)
    leave_run(home, "endless-6", age_seconds=LONG_AGO_SECONDS)
    rows = [line for line in invoke("status").stdout.splitlines() if line.startswith("│")]
    states = {row.split("│")[1].strip(): row.split("│")[2].strip() for row in rows}
    assert states == {
        "digits-1": "running",
        "words-2": "done",
        "flowers-3": "failed",
        "birds-4": "lost",
        "endless-6": "running",
    }
    digits = next(row for row in rows if "digits-1" in row)
    for text in ("round 12/184, epoch 3", "0.5000", "845", "1:41", " s ago", "nano-1-0a4f22, nano-2-bbbbbb"):
        assert text in digits, text
    everything = json.loads(invoke("status", "--all", "--json").stdout)["runs"]
    assert len(everything) == 6
    assert {run["job_id"]: run["state"] for run in everything}["old-5"] == "done"


def test_a_loss_that_is_no_number_is_told(invoke: Invoke, home: Path) -> None:
    leave_run(home, "digits-1", loss=None)
    (row,) = (line for line in invoke("status").stdout.splitlines() if "digits-1" in line)
    assert "│ nan │" in " ".join(row.split())
    assert "nan" in invoke("status", "digits-1").stdout


def test_one_training_in_detail(invoke: Invoke, home: Path) -> None:
    folder = leave_run(home, "digits-1")
    lines = invoke("status", "digits").stdout.splitlines()
    told = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert told["state"].startswith("running (process ")
    assert told["progress"] == "round 12/184, epoch 3"
    assert told["evaluation"] == "after epoch 2: loss 0.6000, accuracy 0.9100 (best so far)"
    assert told["checkpoint"] == "after round 10"
    assert told["devices"] == "nano-1-0a4f22, nano-2-bbbbbb"
    assert told["log"] == str(folder / "log.txt")
    assert told["started"].endswith(" s ago")


def test_a_slow_training_has_a_speed(invoke: Invoke, home: Path) -> None:
    record = leave_run(home, "digits-1") / RECORD_FILE
    record.write_text(json.dumps({**json.loads(record.read_text()), "samples_per_second": 0.4123}))
    assert "0.412 samples/s" in invoke("status", "digits-1").stdout
    assert " 0.412 " in invoke("status").stdout


def test_one_that_failed_says_why_and_what_to_do(invoke: Invoke, home: Path) -> None:
    leave_run(home, "digits-1", error=LOST)
    shown = invoke("status", "digits-1").stdout
    for text in ("failed", "exit code   1", "The device nano-1 was lost.", "Look after it."):
        assert text in shown, text
    assert json.loads(invoke("status", "digits-1", "--json").stdout)["error"]["code"] == "device-lost"


def test_one_that_died_without_a_word_is_told_as_such(invoke: Invoke, home: Path) -> None:
    leave_run(home, "digits-1", process=GONE)
    shown = invoke("status", "digits-1").stdout
    assert "it ended without a word" in shown
    assert "edgeswarm train /home/me/digits.py --resume --output /" in shown
    assert json.loads(invoke("status", "digits-1", "--json").stdout)["state"] == "lost"


def test_one_that_is_not_there_is_exit_code_3(invoke: Invoke, home: Path) -> None:
    leave_run(home, "digits-1")
    result = invoke("status", "words")
    assert result.exit_code == ExitCode.NOTHING_FOUND
    assert "'words'" in result.stderr
    assert json.loads(invoke("status", "words", "--json").stdout)["error"]["code"] == "no-such-job"


def test_a_name_of_several_is_a_usage_error_that_lists_them(invoke: Invoke, home: Path) -> None:
    leave_run(home, "digits-1", over=True)
    leave_run(home, "digits-2", over=True)
    result = invoke("status", "digits")
    assert result.exit_code == ExitCode.USAGE
    assert "digits-1" in result.stderr
    assert "digits-2" in result.stderr


def test_a_damaged_record_is_a_warning(invoke: Invoke, home: Path) -> None:
    leave_run(home, "digits-1")
    broken = leave_run(home, "words-2")
    (broken / RECORD_FILE).write_text('{"format": "edgeswarm-run/2"}')
    result = invoke("status")
    assert result.exit_code == ExitCode.DONE
    assert "digits-1" in result.stdout
    assert "warning: " in result.stderr
    assert "words-2" in result.stderr


@pytest.mark.parametrize("width", [60, 200])
def test_nothing_is_cut_in_a_narrow_terminal(home: Path, width: int) -> None:
    leave_run(home, "digits-20260105T101500Z-1f3a")
    runs = RunStore.of(Folders.within(home)).all()
    console, stream = text_console()
    console.width = width
    console.print(runs_view(console, runs, now=time.time()))
    for text in ("digits-20260105T101500Z-1f3a", "running", "round 12/184", "loss", "nano-1-0a4f22, nano-2-bbbbbb"):
        assert text in stream.getvalue(), text
    assert max(len(line) for line in stream.getvalue().splitlines()) <= width
    assert ("┃" in stream.getvalue()) == (width == 200)


def test_watch_and_json_are_not_for_the_same_reader(invoke: Invoke) -> None:
    for command in ("status", "devices"):
        result = invoke(command, "--watch", "--json")
        assert result.exit_code == ExitCode.USAGE
        assert "--watch" in json.loads(result.stdout)["error"]["message"]


@pytest.mark.parametrize(("terminal", "kind"), [(False, "xterm"), (True, "xterm"), (True, "dumb")])
def test_watching_shows_each_table_until_ctrl_c(terminal: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", kind)
    console, stream = text_console(terminal=terminal)
    made = iter(["first", "second"])

    def make() -> Text:
        text = next(made, None)
        if text is None:
            raise KeyboardInterrupt
        return Text(text)

    show_again_and_again(console, make, every_seconds=0.0)
    shown = stream.getvalue()
    assert shown.index("first") < shown.index("second")
    assert (shown == "first\nsecond\n") == (not terminal or kind == "dumb")


def test_watching_ends_with_the_error_that_ctrl_c_is_and_with_no_other() -> None:
    def interrupted() -> Text:
        raise EdgeswarmError(ErrorCode.INTERRUPTED, "interrupted")

    def failed() -> Text:
        raise LOST

    show_again_and_again(Console(), interrupted, every_seconds=0.0)
    with pytest.raises(EdgeswarmError):
        show_again_and_again(Console(), failed, every_seconds=0.0)
