"""What the matrix's report makes of a cell's document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.matrix_page import write_page
from bench.matrix_report import peers_table, plans_table, read_cell


def run(method: str, repeat: int, seconds: float) -> dict[str, Any]:
    return {"method": method, "repeat": repeat, "round_seconds": [seconds, seconds, 2 * seconds]}


def document() -> dict[str, Any]:
    return {
        "cell": "C-100-x",
        "mini_batch": 100,
        "device_classes": ["0.6", "0.12", "0.12"],
        "alone": {
            "0.6": {"samples_per_second": 60.0, "beside_others": 40.0},
            "0.12": {"samples_per_second": 20.0, "beside_others": 20.0},
        },
        "plans": {"edgeswarm": {}, "asteroid": {}, "gpipe": {}},
        "same_plan_as": {"dapple": "edgeswarm"},
        "peers": {"DDP": {}, "single": {}, "1F1B": {}},
        "runs": [
            *(run("edgeswarm", repeat, seconds) for repeat, seconds in enumerate((2.0, 2.5, 2.0))),
            *(run("edgeswarm, again", repeat, seconds) for repeat, seconds in enumerate((2.0, 2.5, 2.1))),
            *(run("DDP", repeat, seconds) for repeat, seconds in enumerate((4.0, 5.0, 4.4))),
            *(run("single", repeat, seconds) for repeat, seconds in enumerate((2.04, 2.5, 2.0))),
            {"method": "1F1B", "repeat": 0, "problem": "out of memory on nano-1"},
            run("asteroid", 0, 3.0),
            run("gpipe", 0, 1.6),
            run("edgeswarm, first epoch served", 0, 2.5),
        ],
    }


def test_rates_and_ratios_are_medians_over_the_repeats() -> None:
    cell = read_cell(document())
    assert cell.rate("edgeswarm") == pytest.approx(50.0)
    assert cell.ideal == 100.0
    assert cell.speed_up("DDP") == pytest.approx(2.0)
    assert cell.noise == pytest.approx(0.05)
    assert cell.best_peer == "single"
    assert cell.worst_rounds["edgeswarm"] == pytest.approx(2.0)


def test_what_is_within_the_noise_reads_equal() -> None:
    table = peers_table([read_cell(document())])
    assert table.rows == [
        (
            "C-100-x",
            "50.0",
            "0.50",
            "0.62",
            "5%",
            "2.00",
            "2.00",
            "equal (1.00)",
            "out of memory on nano-1",
            "as measured",
            "",
        ),
        (
            "C-100-x, first epoch served",
            "40.0",
            "0.40",
            "0.50",
            "5%",
            "2.00",
            "1.60",
            "0.82",
            "out of memory on nano-1",
            "as measured",
            "",
        ),
    ]
    assert table.verdicts == [("C-100-x: 1.00 times single", False)]


def test_the_less_noisy_of_two_estimates_counts() -> None:
    """What the machine did to one and not to the other is left out where that leaves less noise."""
    told = document()
    for each in told["runs"]:
        each["slowness"] = [1.5, None, 1.5] if each["method"] == "single" else [1.2, 1.2, 1.3]
    cell = read_cell(told)
    assert not cell.is_at_one_pace
    assert cell.speed_up("single") == pytest.approx(1.0)
    assert cell.other_speed_up("single") == pytest.approx(1.2 / 1.5)
    assert cell.other_noise == pytest.approx(cell.noise)
    assert peers_table([cell]).rows[0][-2:] == ("as measured", "0.80, noise 5%")
    for each in told["runs"]:
        if (each["method"], each["repeat"]) == ("edgeswarm, again", 2):
            each["slowness"] = [1.25, 1.25, 1.25]
    paced = read_cell(told)
    assert paced.is_at_one_pace
    assert paced.noise == pytest.approx(1.2 / 2.0 * 2.1 / 1.25 - 1)
    assert paced.speed_up("single") == pytest.approx(1.2 / 1.5)
    assert peers_table([paced]).rows[0][-2:] == ("at one pace", "1.00, noise 5%")
    for each in told["runs"]:
        each["slowness"] = []
    assert read_cell(told).other_noise is None


def test_plans_of_other_planners() -> None:
    table = plans_table([read_cell(document())])
    assert table.columns == ("cell", "asteroid", "gpipe", "dapple")
    assert table.rows[0] == ("C-100-x", "1.50", "0.80", "same")
    assert [holds for _, holds in table.verdicts] == [True, False, True]
    assert table.data["geometric_mean"]["asteroid"] == pytest.approx(1.5)


def test_a_cell_without_our_runs_is_not_yet_there() -> None:
    empty = {**document(), "runs": []}
    assert peers_table([read_cell(empty)]).rows[0][:2] == ("C-100-x", "not yet")


def test_a_page_with_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = [read_cell(document())]
    page = write_page(cells, [peers_table(cells)], tmp_path).read_text()
    assert "| C-100-x | 50.0 | 0.50 |" in page
    assert "**does not hold**: C-100-x: 1.00 times single" in page
    assert (tmp_path / "matrix.png").read_bytes()[1:4] == b"PNG"
