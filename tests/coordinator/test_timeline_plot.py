"""The picture of a timeline: real pictures of a real simulation, and words for what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.plan import Plan, Stage
from edgeswarm_coordinator.simulator.simulate import simulate
from edgeswarm_coordinator.simulator.simulation import Simulation
from edgeswarm_coordinator.timeline_plot import check_plot, draw_timeline

from .planner.instances import make_instance


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    plan = Plan(
        planner="by hand",
        micro_batch=4,
        micro_batches=4,
        stages=(Stage(0, 2, {"a": 4}, 3), Stage(2, 4, {"b": 3, "c": 1}, 1)),
    )
    return simulate(make_instance(slower=(1.0, 1.0, 2.0), bandwidth=50.0), plan, timeline=True)


def test_an_svg_names_devices_tracks_and_kinds(simulation: Simulation, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").rcParams["svg.fonttype"] = "none"
    path = tmp_path / "timeline.svg"
    draw_timeline(simulation, path, title="a title of its own")
    text = path.read_text()
    for word in ("a title of its own", "a  compute", "b  compute", "c  ingress", "a  egress", "forward", "backward"):
        assert word in text, word


def test_a_png_is_a_picture(simulation: Simulation, tmp_path: Path) -> None:
    draw_timeline(simulation, tmp_path / "timeline.png", title="")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_plot(tmp_path / "timeline.png")
    with pytest.raises(EdgeswarmError, match="no kind of picture") as caught:
        check_plot(tmp_path / "timeline.txt")
    assert caught.value.code is ErrorCode.CONFIG
    with pytest.raises(EdgeswarmError, match="there is no such folder") as caught:
        check_plot(tmp_path / "nowhere" / "timeline.png")
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EdgeswarmError, match="needs the package matplotlib") as caught:
        check_plot(tmp_path / "timeline.png")
    assert caught.value.code is ErrorCode.MISSING_EXTRA
