"""The simulator against plans that others ran for real, where their data lie beside the checkout."""

from __future__ import annotations

import pytest

from bench.sailor import COPIED, FOLDER, MOST_ERROR, SailorData, make_report, mean_absolute_error, rank_correlation

pytestmark = pytest.mark.shared


@pytest.mark.skipif(not FOLDER.exists(), reason="the folder of measured plans is not beside the checkout")
def test_measured_plans_are_met_better_than_by_their_authors_simulator() -> None:
    plans = SailorData().measured_plans()
    assert len(plans) == 9
    for chosen in (plans, [plan for plan in plans if plan.name != COPIED]):
        simulated = [plan.simulated for plan in chosen]
        assert mean_absolute_error(chosen, simulated) < MOST_ERROR
        assert rank_correlation(simulated, [plan.measured for plan in chosen]) > 0.85
    # The published errors of the others, so that the same things are compared.
    assert mean_absolute_error(plans, [plan.sailor for plan in plans]) == pytest.approx(0.103, abs=5e-4)
    assert mean_absolute_error(plans, [plan.metis for plan in plans]) == pytest.approx(0.277, abs=5e-4)
    assert all(holds for _, holds in make_report(plans).verdicts)


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
