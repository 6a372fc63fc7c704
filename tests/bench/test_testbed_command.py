"""`python -m bench.testbed` where there can be none; tests/bench/test_testbed.py has it where there can."""

from __future__ import annotations

import os
import sys

import pytest

from bench.testbed.__main__ import main


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["bench.testbed", "list"])
    assert main() == 1
    said = capsys.readouterr()
    assert said.err == "error: no testbed here: it needs root on Linux, for network namespaces and control groups\n"
    assert said.out == ""
