"""The record of a training, which those who left it to the background look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.cli.recording import Recording
from edgeswarm_coordinator.events import JobBegins
from edgeswarm_coordinator.options import TrainOptions
from edgeswarm_coordinator.run_store import RECORD_FILE, RunStore


@pytest.mark.parametrize("must_be_kept", [True, False])
def test_a_record_that_cannot_be_written_keeps_a_training_in_the_foreground(tmp_path: Path, must_be_kept: bool) -> None:
    warned: list[str] = []
    recording = Recording(
        RunStore(tmp_path / "runs"),
        TrainOptions(job_path=tmp_path / "job.py"),
        begun=lambda folder: (folder / RECORD_FILE).mkdir(),  # in its way, as a full disk would be
        warn=warned.append,
        must_be_kept=must_be_kept,
    )
    if must_be_kept:
        with pytest.raises(EdgeswarmError, match="Nobody could follow the training") as caught:
            recording(JobBegins("digits-1"))
        assert caught.value.code is ErrorCode.OUTPUT_FAILED
    else:
        recording(JobBegins("digits-1"))
        recording.end(None)
        assert len(warned) == 1
        assert "not up to date" in warned[0]
