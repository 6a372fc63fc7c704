"""Scaling: what is still to run, and the table of what has."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import scaling
from bench.kept_document import in_file_names
from bench.measuring import processor
from bench.scaling import COUNTS, measure, missing, nanos, plot, report
from edgeswarm.config import Folders
from edgeswarm_coordinator.options import DiscoveryOptions
from edgeswarm_coordinator.profile_cache import FILE_NAME


def told(devices: int, planner: str, repeat: int, seconds: float, *, slowness: float = 1.0) -> dict[str, Any]:
    return {
        "devices": devices,
        "planner": planner,
        "repeat": repeat,
        "samples": 256 * devices,
        "round_seconds": [99.0, 99.0, seconds, seconds],
        "slowness": [1.0, 1.0, slowness, slowness],
    }


DOCUMENT: dict[str, Any] = {
    "model": "mobilenet_v2",
    "runs": [
        told(1, "edgeswarm", 0, 10.0),
        told(4, "edgeswarm", 0, 11.0),
        told(4, "edgeswarm", 1, 20.0, slowness=2.0),
        {"devices": 4, "planner": "pipeline", "repeat": 0, "error": "no-plan-fits: ..."},
    ],
}


def test_what_is_missing_on_one_device_and_on_more() -> None:
    assert missing(DOCUMENT, 1, repeats=1) == []
    assert missing(DOCUMENT, 1, repeats=2) == [(1, "edgeswarm")]
    assert missing(DOCUMENT, 4, repeats=1) == [(0, "data-parallel")]


def test_rates_beside_one_device() -> None:
    table = report([DOCUMENT])
    assert table.verdicts == []  # nobody knows how they compare
    assert table.data["mobilenet_v2"]["4"]["failed"] == {"pipeline": "no-plan-fits"}
    assert table.rows[0] == ("mobilenet_v2", "1", *["25.6, x 1.00"] * 3, "", "", "", *["25.6, x 1.00"] * 3)
    four = ("97.7 (93.1 to 102.4), x 3.82", "", "no-plan-fits", "10%", "", "")
    measured = ("72.1 (51.2 to 93.1), x 2.82", "", "no-plan-fits")
    assert table.rows[1] == ("mobilenet_v2", "4", *four, *measured)
    assert table.remarks == ["mobilenet_v2: measured before commit, torch and processor were written down"]


def test_beside_other_plans_with_the_noise_of_the_next_repeat() -> None:
    """At one pace edgeswarm does 93 and 102 samples a second, or 98 in the first repeat, about whose others both ran."""
    runs = [*DOCUMENT["runs"], *(told(4, "data-parallel", repeat, 20.0) for repeat in (0, 1))]
    table = report([{**DOCUMENT, "runs": runs}])
    assert table.rows[1][5:8] == ("10%", "1.95 (1.91 to 2.00)", "")
    assert table.verdicts == [("mobilenet_v2: edgeswarm's plan is never slower than another one", True)]
    runs += [told(6, "edgeswarm", repeat, 20.0) for repeat in (0, 1)]
    runs += [told(6, "pipeline", repeat, seconds) for repeat, seconds in enumerate((10.0, 10.4))]
    table = report([{**DOCUMENT, "runs": runs}])
    assert table.rows[2][5:8] == ("0%", "", "0.51 (0.50 to 0.52)")
    verdict = "mobilenet_v2: edgeswarm's plan is never slower than another one (than pipeline's on 6)"
    assert table.verdicts == [(verdict, False)]


def test_the_same_figures_make_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    for name in ("first.svg", "second.svg"):
        plot([DOCUMENT, {**DOCUMENT, "model": "efficientnet_b1"}], tmp_path / name)
    first, second = ((tmp_path / name).read_text() for name in ("first.svg", "second.svg"))
    assert first == second
    assert first.count("<!-- devices -->") == 2


class Bed:
    """Both the LAN and its cluster, without anybody."""

    def __init__(self, *_: object, folder: Path | None = None) -> None:
        self.folders = Folders.within(folder or Path())

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def discovery(self) -> DiscoveryOptions:
        return DiscoveryOptions()


def test_each_run_says_what_made_it_and_another_processors_are_laid_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def profile(cluster: Bed, options: object) -> SimpleNamespace:
        cache = cluster.folders.cache_dir / FILE_NAME
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text("{}")
        return SimpleNamespace(instance=None)

    for name in ("EmulatedLan", "BedCluster"):
        monkeypatch.setattr(scaling, name, Bed)
    monkeypatch.setattr(scaling, "profile_in_turn", profile)
    monkeypatch.setattr(scaling, "make_plan", lambda *_, **__: None)
    monkeypatch.setattr(scaling, "run", lambda *_: {"round_seconds": [1.0] * 4})
    monkeypatch.setattr(scaling, "origin", lambda: {"commit": "abc"})
    (tmp_path / "mobilenet_v2.json").write_text(json.dumps({**DOCUMENT, "processor": "another one"}))
    measure("mobilenet_v2", tmp_path, repeats=1)
    document = json.loads((tmp_path / "mobilenet_v2.json").read_text())
    assert [run["commit"] for run in document["runs"]] == ["abc"] * (1 + 3 * (len(COUNTS) - 1))
    assert document["processor"] == processor()
    assert (tmp_path / "aside" / "mobilenet_v2.another-one.json").exists()
    profiles = [path.name for path in tmp_path.glob("*.profiles.json")]
    assert profiles == [f"mobilenet_v2.{in_file_names(processor())}.profiles.json"]


def test_equal_nanos() -> None:
    environment = nanos(3)
    assert [device.name for device in environment.devices] == ["nano-1", "nano-2", "nano-3"]
    assert len({device.cores for device in environment.devices}) == 1
