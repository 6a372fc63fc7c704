from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_agent.only_one import OnlyOne, process_of_agent


def test_a_second_agent_with_the_same_folder_is_refused_by_name(tmp_path: Path) -> None:
    first = OnlyOne(tmp_path / "agent")
    with pytest.raises(EdgeswarmError, match=rf"agent \(process {os.getpid()}\)") as caught:
        OnlyOne(tmp_path / "agent")
    assert caught.value.code is ErrorCode.AGENT_RUNNING
    OnlyOne(tmp_path / "another")
    first.release()
    OnlyOne(tmp_path / "agent").release()


def test_a_process_that_dies_lets_go(tmp_path: Path) -> None:
    code = "import os, signal, sys; from pathlib import Path; from edgeswarm_agent.only_one import OnlyOne; "
    code += "held = OnlyOne(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    OnlyOne(tmp_path).release()


def test_who_has_a_folder_is_known_without_taking_it(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    assert process_of_agent(folder) is None
    held = OnlyOne(folder)
    assert process_of_agent(folder) == process_of_agent(folder) == str(os.getpid())
    held.release()
    assert process_of_agent(folder) is None


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EdgeswarmError, match=r"folder .* can't be written: Not a directory") as caught:
        OnlyOne(tmp_path / "file" / "agent")
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
