"""What is said to the user while a model is being exported."""

from __future__ import annotations

import sys
import threading

import click
import pytest

from edgeswarm.model.export import quiet


def test_only_the_exporting_thread_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    def say() -> None:
        click.echo("stopping", err=True)
        print("and", "more", file=sys.stderr)

    with quiet():
        print("a whole graph", file=sys.stderr)
        other = threading.Thread(target=say)
        other.start()
        other.join()
    print("afterwards", file=sys.stderr)
    assert capsys.readouterr().err == "stopping\nand more\nafterwards\n"
