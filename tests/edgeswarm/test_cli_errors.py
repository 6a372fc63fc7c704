"""What a person and a program see of an error, through a real command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from edgeswarm.cli_errors import ErrorReportingGroup, debug_option, json_option
from edgeswarm.errors import EdgeswarmError, ErrorCode


def group(log_folder: Path) -> ErrorReportingGroup:
    @click.group(cls=ErrorReportingGroup, log_folder=lambda: log_folder)
    def command() -> None:
        pass

    @command.command()
    @click.argument("what")
    @json_option()
    @debug_option
    def fail(what: str, as_json: bool) -> None:
        if what == "busy":
            raise EdgeswarmError(ErrorCode.DEVICE_BUSY, "nano-1 is busy", "wait", detail="a line of detail")
        if what == "plan":
            raise EdgeswarmError(ErrorCode.NO_PLAN_FITS, "no plan fits")
        if what == "interrupt":
            raise KeyboardInterrupt
        if what == "mistake":
            raise RuntimeError("first line\nsecond line")
        click.echo("fine")

    return command


@pytest.mark.parametrize(
    ("what", "code", "expected"),
    [
        ("plan", 4, "error: no plan fits\n"),
        ("interrupt", 130, "error: interrupted\n"),
    ],
)
def test_one_message_on_stderr_and_the_exit_code(tmp_path: Path, what: str, code: int, expected: str) -> None:
    result = CliRunner().invoke(group(tmp_path), ["fail", what])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", expected)


def test_details_go_to_a_file_that_the_message_names(tmp_path: Path) -> None:
    result = CliRunner().invoke(group(tmp_path / "logs"), ["fail", "busy"])
    (log,) = (tmp_path / "logs").iterdir()
    assert result.stderr == f"error: nano-1 is busy\nremedy: wait\ndetails: {log}\n"
    assert log.read_text() == "a line of detail"


def test_with_json_the_error_is_one_document_on_stdout(tmp_path: Path) -> None:
    result = CliRunner().invoke(group(tmp_path), ["fail", "busy", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "error": {"code": "device-busy", "message": "nano-1 is busy", "remedy": "wait", "detail": "a line of detail"}
    }
    assert result.stderr == ""


def test_a_mistake_of_our_own_names_the_log_file_with_the_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(group(tmp_path / "logs"), ["fail", "mistake"])
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    (log,) = (tmp_path / "logs").iterdir()
    assert str(log) in result.stderr
    assert "second line" in log.read_text()


def test_a_log_folder_that_cannot_be_written_is_replaced(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    result = CliRunner().invoke(group(in_the_way), ["fail", "mistake"])
    assert result.exit_code == 1
    path = Path(result.stderr.split("traceback in ")[1].strip())
    assert "second line" in path.read_text()
    path.unlink()


def test_of_logs_the_newest_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    for second in range(60):
        (tmp_path / f"error-20260101-0000{second:02}-7.log").touch()
    (tmp_path / "worker.log").touch()
    result = CliRunner().invoke(group(tmp_path), ["fail", "mistake"])
    newest = Path(result.stderr.split("traceback in ")[1].strip())
    logs = sorted(tmp_path.glob("error-*.log"))
    assert len(logs) == 50
    assert logs[0].name == "error-20260101-000011-7.log"
    assert logs[-1] == newest
    assert (tmp_path / "worker.log").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = CliRunner().invoke(group(tmp_path), ["fail", "busy", "--debug"])
    assert "error: nano-1 is busy\nremedy: wait\na line of detail\n" in result.stderr
    assert "Traceback" in result.stderr


def test_usage_errors_keep_clicks_message_and_code_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(group(tmp_path), ["fail"])
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr


def test_usage_errors_are_json_with_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(group(tmp_path), ["fail", "--json"])
    assert result.exit_code == 2
    assert "what" in json.loads(result.stdout)["error"]["message"].lower()


def test_an_option_that_there_is_not_is_told_as_json_with_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(group(tmp_path), ["fail", "busy", "--bogus", "--json"])
    assert (result.exit_code, result.stderr) == (2, "")
    assert "--bogus" in json.loads(result.stdout)["error"]["message"]


def test_success_and_help_are_exit_code_0(tmp_path: Path) -> None:
    assert CliRunner().invoke(group(tmp_path), ["fail", "nothing"]).exit_code == 0
    assert CliRunner().invoke(group(tmp_path), ["--help"]).exit_code == 0


SAYS = """
import click
from edgeswarm.cli_errors import ErrorReportingGroup, json_option

@click.group(cls=ErrorReportingGroup)
def command():
    pass

@command.command()
@json_option()
def say(as_json):
    print("fine")

command()
"""


@pytest.mark.parametrize("words", [["say"], ["say", "--json"]])
def test_what_finds_no_room_is_told_on_standard_error(words: list[str]) -> None:
    ran = _run_with("> /dev/full", *words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (
        1,
        "",
        "error: What this command prints or keeps can't be written: No space left on device.\n"
        "remedy: Make room, or name another place.\n",
    )


def test_nobody_needs_the_standard_streams() -> None:
    without_output, without_error = _run_with(">&-", "say"), _run_with("2>&-", "say")
    assert (without_output.returncode, without_output.stderr) == (0, "")
    assert (without_error.returncode, without_error.stdout) == (0, "fine\n")


def test_details_may_name_files_whose_names_are_no_text(tmp_path: Path) -> None:
    @click.group(cls=ErrorReportingGroup, log_folder=lambda: tmp_path)
    def command() -> None:
        raise EdgeswarmError(ErrorCode.JOB_FILE, "no images", detail="in M\udcfcller")

    command.command("look")(lambda: None)
    assert CliRunner().invoke(command, ["look"]).exit_code == 1
    (log,) = tmp_path.iterdir()
    assert log.read_text() == "in M\\udcfcller"


def _run_with(redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    shell = ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh"]
    return subprocess.run(
        [*shell, sys.executable, "-c", SAYS, *words], capture_output=True, text=True, check=False, timeout=60
    )
