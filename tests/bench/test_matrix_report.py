"""What the matrix's report makes of a cell's document."""

from __future__ import annotations

import json
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


def slowed(told: dict[str, Any], *, by: dict[str, float]) -> dict[str, Any]:
    """The document with the machine's slowness in each run: by method, 1.2 in all others."""
    for each in told["runs"]:
        slowness = by.get(each["method"], 1.2)
        each["slowness"] = [slowness, None, slowness]
    return told


def against(seconds: tuple[float, ...]) -> dict[str, Any]:
    """A cell in which our rounds take 2 s each time, and those of the only peer this long, by repeat."""
    same = [run(method, repeat, 2.0) for method in ("edgeswarm", "edgeswarm, again") for repeat in range(len(seconds))]
    peers = [run("DDP", repeat, each) for repeat, each in enumerate(seconds)]
    return {**document(), "peers": {"DDP": {}}, "plans": {"edgeswarm": {}}, "runs": [*same, *peers]}


def test_the_worst_round_is_that_of_both_runs_of_ours() -> None:
    told = document()
    told["runs"][3]["round_seconds"] = [2.0, 2.0, 8.0]
    assert read_cell(told).worst_rounds["edgeswarm"] == pytest.approx(4.0)


def test_worst_rounds_are_those_at_one_pace_beside_the_peers() -> None:
    """The slow round was one of the machine's, but for a half."""
    told = against((4.0,))
    for each in told["runs"]:
        each["slowness"] = [1.0, 1.0, 1.0 if each["method"] == "DDP" else 1.5]
    cell = read_cell(told)
    assert cell.worst_rounds == {"edgeswarm": pytest.approx(2 / 1.5), "DDP": pytest.approx(2.0)}
    assert peers_table([cell]).rows[0][5] == "1.33 (2.00 to 2.00)"


def test_rates_and_ratios_are_medians_over_the_repeats() -> None:
    cell = read_cell(document())
    assert cell.rate("edgeswarm") == pytest.approx(100 / (2.0 * 2.1) ** 0.5), "of both runs in each repeat"
    assert cell.ideal == 100.0
    ratio = cell.counting.speed_up("DDP")
    assert ratio is not None
    assert (ratio.median, ratio.least, ratio.most) == pytest.approx((2.0, 2.0, 4.4 / (2.0 * 2.1) ** 0.5))
    assert cell.counting.speed_up("1F1B") is None
    assert cell.counting.noise == pytest.approx(0.05)
    assert cell.best_peer == "single"
    assert cell.worst_rounds["edgeswarm"] == pytest.approx(2.0)


def test_what_is_within_the_noise_reads_equal() -> None:
    table = peers_table([read_cell(document())])
    assert table.rows == [
        (
            "C-100-x",
            "48.8",
            "0.49",
            "0.61",
            "5%",
            "2.00 (2.00 to 2.00)",
            "2.00 (2.00 to 2.15)",
            "equal (1.00, 0.98 to 1.02)",
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
            "2.00 (2.00 to 2.00)",
            "1.60",
            "0.82",
            "out of memory on nano-1",
            "as measured",
            "",
        ),
    ]
    assert table.verdicts == [("C-100-x: 1.00 (0.98 to 1.02) times single, beside a noise of 5%", False)]


def test_runs_that_failed_are_told_and_ours_must_not() -> None:
    told = document()
    told["runs"] += [
        {"method": "DDP", "repeat": 3, "problem": "out of memory on nano-1"},
        {"method": "edgeswarm, again", "repeat": 3, "problem": "worker-died: x"},
    ]
    table = peers_table([read_cell(told)])
    assert ("C-100-x: edgeswarm, again runs (worker-died: x)", False) in table.verdicts
    assert table.remarks[-1] == "C-100-x: DDP failed in 1 of its runs (out of memory on nano-1)"


def test_where_no_noise_is_known_nothing_is_faster() -> None:
    told = document()
    told["runs"] = [run("edgeswarm", 0, 1.0), run("DDP", 0, 4.0), run("edgeswarm, first epoch served", 0, 1.0)]
    table = peers_table([read_cell(told)])
    assert table.rows[0][6] == "equal (4.00)"
    assert table.verdicts == [("C-100-x: 4.00 times DDP, no noise is known", False)]


def test_a_device_without_memory_beside_others_leaves_that_column_empty() -> None:
    told = document()
    told["alone"]["0.12"]["beside_others"] = None
    assert read_cell(told).ideal_beside is None
    assert peers_table([read_cell(told)]).rows[0][3] == ""


@pytest.mark.parametrize(
    ("seconds", "shown", "verdict", "holds"),
    [
        ((2.1, 2.4, 2.6), "1.20 (1.05 to 1.30)", "1.20 (1.05 to 1.30) times DDP, beside a noise of 14%", True),
        ((1.98, 2.4, 2.6), "equal (1.20, 0.99 to 1.30)", "1.20 (0.99 to 1.30) times DDP, beside a noise of 21%", False),
        ((2.3, 2.4, 3.0), "equal (1.20, 1.15 to 1.50)", "1.20 (1.15 to 1.50) times DDP, beside a noise of 25%", False),
        ((1.5, 1.6, 1.7), "0.80 (0.75 to 0.85)", "0.80 (0.75 to 0.85) times DDP, beside a noise of 7%", False),
    ],
)
def test_a_ratio_must_exceed_the_spread_of_its_own_repeats(
    seconds: tuple[float, ...], shown: str, verdict: str, holds: bool
) -> None:
    """However near our own setting comes to itself."""
    table = peers_table([read_cell(against(seconds))])
    assert (table.rows[0][4], table.rows[0][6]) == ("0%", shown)
    assert table.verdicts == [(f"C-100-x: {verdict}", holds)]


def test_rates_at_one_pace_count_wherever_they_are_known_noisier_or_not() -> None:
    told = slowed(document(), by={"single": 1.5, "edgeswarm, again": 1.44})
    cell = read_cell(told)
    assert cell.is_at_one_pace
    assert cell.counting.noise == pytest.approx(0.2)
    assert cell.other.noise == pytest.approx(0.05)
    table = peers_table([cell])
    # Ours ran twice in each repeat, once at 1.2 and once at 1.44: as 1.31 is to 1.5.
    assert (table.rows[0][4], table.rows[0][7]) == ("20%", "equal (0.88, 0.86 to 0.89)")
    assert table.rows[0][-2:] == ("at one pace", "1.00 (0.98 to 1.02), noise 5%")
    assert table.verdicts == [("C-100-x: 0.88 (0.86 to 0.89) times single, beside a noise of 20%", False)]
    told["runs"][0]["slowness"] = [None] * 3
    cell = read_cell(told)
    assert not cell.is_at_one_pace, "of one run nobody knows it"
    assert peers_table([cell]).rows[0][-2:] == ("as measured", "0.87 (0.86 to 0.88), noise 20%")
    for each in told["runs"]:
        each["slowness"] = []
    assert read_cell(told).other.speed_up("single") is None


def test_slowness_is_told_by_the_best_that_any_run_of_the_machines_start_knows() -> None:
    """The first run of ours began on a log without a good moment: its 1.2 is 1.5 by what the others knew."""
    told = slowed(against((2.0,)), by={})
    for each, best in zip(told["runs"], (1.25, 1.0, 1.0), strict=True):
        each.update(boot="one", best_pace={"cpu0": best, "cpu1": best})
    cell = read_cell(told)
    assert cell.paced.rates["edgeswarm"][0] == pytest.approx(100 * 1.5 / 3.0)
    assert cell.paced.rates["DDP"][0] == pytest.approx(100 * 1.2 / 3.0)
    told["runs"][0]["boot"] = "another"
    assert read_cell(told).paced.rates["edgeswarm"][0] == pytest.approx(100 * 1.2 / 3.0)


def test_what_devices_do_alone_is_told_by_that_best_too() -> None:
    """The nanos were measured before the machine had a good moment: their slowness of 1 is 1.25."""
    told = slowed(against((2.0,)), by={})
    for each in told["runs"]:
        each.update(boot="one", best_pace={"cpu0": 1.0})
    alone = {
        "0.6": {**told["alone"]["0.6"], "at_best_pace": 60.0, "best_pace": {"cpu0": 1.0}},
        "0.12": {**told["alone"]["0.12"], "at_best_pace": 20.0, "best_pace": {"cpu0": 1.25}},
    }
    cell = read_cell({**told, "alone": alone, "boot": "one"})
    assert cell.paced_ideal == pytest.approx(60.0 + 2 * 1.25 * 20.0)
    assert read_cell({**told, "alone": alone, "boot": "another"}).paced_ideal == pytest.approx(60.0 + 2 * 25.0)
    nano = {**alone["0.12"], "best_pace": {}}
    assert read_cell({**told, "alone": {**alone, "0.12": nano}, "boot": "one"}).paced_ideal == pytest.approx(100.0)


def test_a_cell_that_never_ran_holds_nothing() -> None:
    told = document()
    out = {"repeat": 0, "problem": "out of memory on nano-1"}
    told["runs"] = [{"method": "edgeswarm", **out}, run("DDP", 0, 4.0)]
    assert peers_table([read_cell(told)]).verdicts == [("C-100-x: edgeswarm runs (out of memory on nano-1)", False)]
    told["runs"] = [run("edgeswarm", 0, 2.0), *({"method": peer, **out} for peer in told["peers"])]
    assert peers_table([read_cell(told)]).verdicts == [("C-100-x: one of the peers runs", False)]
    told["runs"] = [run("edgeswarm", 0, 2.0)]
    assert peers_table([read_cell(told)]).verdicts == [], "not yet"


def test_without_a_noise_a_slower_plan_is_not_within_it() -> None:
    told = document()
    told["runs"] = [run("edgeswarm", 0, 2.0), run("gpipe", 0, 1.0), run("asteroid", 0, 2.5)]
    verdicts = plans_table([read_cell(told)]).verdicts
    assert ("C-100-x: not slower than gpipe's plan, but no noise is known", False) in verdicts
    assert ("C-100-x: not slower than asteroid's plan, but no noise is known", True) in verdicts


def test_cells_of_unlike_runs_are_remarked() -> None:
    told = document()
    before = "measured before commit, torch and processor were written down"
    assert peers_table([read_cell(told), read_cell({**told, "cell": "B"})]).remarks == [f"C-100-x, B: {before}"]
    for each in told["runs"]:
        each.update({"commit": "abc", "torch": "2.13", "processor": "EPYC"})
    assert peers_table([read_cell(told)]).remarks == []
    told["runs"][-1]["torch"] = "2.14"
    assert peers_table([read_cell(told)]).remarks == ["C-100-x: runs differ in torch: 2.13, 2.14"]
    told["format"] = "edgeswarm-matrix/2"
    assert peers_table([read_cell(told)]).remarks == [
        "C-100-x: measured by other rules (edgeswarm-matrix/2); runs differ in torch: 2.13, 2.14"
    ]


def test_a_ratio_must_exceed_what_the_machines_pace_makes_of_it() -> None:
    told = slowed(against((2.4, 2.4, 2.4)), by={"DDP": 1.5})  # 1.2 as measured, 0.96 at one pace
    cell = read_cell(told)
    compared = cell.speed_up("DDP")
    assert compared is not None
    assert compared.ratio.median == pytest.approx(0.96)
    assert compared.must_exceed == pytest.approx(0.25)
    assert compared.shown == "equal (0.96, 0.96 to 0.96)"
    for each in told["runs"][:1]:
        del each["slowness"]
    measured = read_cell(told).speed_up("DDP")
    assert measured is not None
    assert measured.ratio.median == pytest.approx(1.2)
    assert measured.otherwise is None


def test_what_is_compared_is_told_in_numbers_too() -> None:
    told = peers_table([read_cell(document())]).data["C-100-x"]
    assert told["samples_per_second"]["DDP"] == pytest.approx(100 / 4.4)
    assert told["of_ideal"]["edgeswarm"]["median"] == pytest.approx(told["samples_per_second"]["edgeswarm"] / 100)
    assert told["times"]["DDP"]["median"] == pytest.approx(2.0, rel=0.1)
    assert (told["times"]["DDP"]["is_equal"], told["times"]["single"]["is_equal"]) == (False, True)
    assert "1F1B" not in told["times"]
    assert json.dumps(told)


def test_plans_of_other_planners() -> None:
    told = document()
    table = plans_table([read_cell(told)])
    assert table.columns == ("cell", "noise", "asteroid", "gpipe", "dapple")
    assert (table.rows[0][0], *table.rows[0][2:]) == ("C-100-x", "1.50", "0.80", "same")
    assert table.rows[0][1] == peers_table([read_cell(told)]).rows[0][4]
    assert table.verdicts == [
        ("C-100-x: not slower than asteroid's plan", True),
        ("C-100-x: not slower than gpipe's plan", False),
        ("C-100-x: not slower than dapple's plan, which is the same", True),
    ]
    assert table.data["geometric_mean"]["asteroid"] == pytest.approx(1.5)
    next(each for each in told["runs"] if each["method"] == "gpipe")["round_seconds"] = [1.94]
    table = plans_table([read_cell(told)])
    assert table.rows[0][2:] == ("1.50", "equal (0.97)", "same")
    assert table.verdicts[1] == ("C-100-x: not slower than gpipe's plan, within the noise", True)


def test_a_cell_without_our_runs_is_not_yet_there() -> None:
    empty = {**document(), "runs": []}
    assert peers_table([read_cell(empty)]).rows[0][:2] == ("C-100-x", "not yet")


def test_a_page_with_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = [read_cell(document())]
    page = write_page(cells, [peers_table(cells)], tmp_path).read_text()
    assert "| C-100-x | 48.8 | 0.49 |" in page
    assert "**does not hold**: C-100-x: 1.00 (0.98 to 1.02) times single" in page
    picture = (tmp_path / "matrix.svg").read_text()
    assert "</svg>" in picture
    write_page(cells, [], tmp_path)
    assert (tmp_path / "matrix.svg").read_text() == picture
