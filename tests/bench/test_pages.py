"""What of a report is put into a page."""

from __future__ import annotations

from bench.measuring import Report
from bench.pages import table_and_verdicts


def test_a_table_with_its_verdicts_and_remarks() -> None:
    report = Report(title="t", how="h", columns=("a", "b"), rows=[("x", "1")])
    table = "| a | b |\n| --- | ---: |\n| x | 1 |"
    assert table_and_verdicts(report) == table
    report.expect("one", True)
    report.expect("two", False)
    report.remarks.append("x: measured long ago")
    below = "- holds: one\n- **does not hold**: two\n- remark: x: measured long ago"
    assert table_and_verdicts(report) == f"{table}\n\n{below}"
    assert report.to_json()["remarks"] == ["x: measured long ago"]
