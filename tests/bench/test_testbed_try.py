"""`python -m bench.testbed try`: a command of this machine with the testbed's devices for its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.testbed import bed as beds
from bench.testbed import links

pytestmark = [
    pytest.mark.root,
    pytest.mark.soak,
    pytest.mark.skipif(bool(beds.why_not()), reason=f"no testbed here: it {beds.why_not()}"),
]


def test_a_command_has_devices_that_have_joined(tmp_path: Path) -> None:
    home = tmp_path / "home.toml"
    home.write_text("[classes]\nbox = { cores = 0.5, memory_mib = 1024 }\n[devices]\nbox = 2\n")
    edgeswarm = Path(sys.executable).with_name("edgeswarm")
    words = ["try", "--mbps", "200", str(home), "--", str(edgeswarm), "devices"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.testbed", *words], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "box-1-" in done.stdout
    assert "box-2-" in done.stdout
    assert not links.exists()
