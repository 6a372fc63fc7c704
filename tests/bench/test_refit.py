"""Profiles that were measured several times, as one."""

from __future__ import annotations

from bench.refit import median_profiles
from edgeswarm_coordinator.process_costs import ProcessCosts, UpdateCosts
from edgeswarm_coordinator.profile_cache import Curve, Link, Profiles

KEY = ("nano", "float32", "conv")
HOSTS = ("10.0.0.1", "10.0.0.2")


def measured(seconds: float, *, sizes: tuple[int, ...] = (1, 4), base_bytes: int = 100) -> Profiles:
    times = tuple(seconds * size for size in sizes)
    curve = Curve(sizes, times, times, 256, relative_errors=(0.1,) * len(sizes), peak_bytes=(50,) * len(sizes))
    costs = ProcessCosts(base_bytes, frame_seconds=seconds, updates={"SGD": UpdateCosts(1.0, 2.0)})
    return Profiles(
        curves={KEY: curve}, processes={"nano": costs}, links={("a", "b"): Link(10.0 * seconds, 0.1, 0.0, hosts=HOSTS)}
    )


def test_medians_of_curves_costs_and_links() -> None:
    found = median_profiles([measured(1.0), measured(9.0, base_bytes=103), measured(2.0, base_bytes=101)])
    curve = found.curves[KEY]
    assert curve.forward_seconds == curve.backward_seconds == (2.0, 8.0)
    assert curve.peak_bytes == (50, 50)
    costs = found.processes["nano"]
    assert (costs.base_bytes, costs.frame_seconds, costs.updates) == (101, 2.0, {"SGD": UpdateCosts(1.0, 2.0)})
    link = found.links["a", "b"]
    assert link.bandwidth_bytes_per_second == 20.0
    assert found.link("a", "b", hosts=HOSTS, now=link.measured_at + 1) is not None


def test_batch_sizes_that_most_have() -> None:
    found = median_profiles([measured(1.0, sizes=(1, 4)), measured(2.0, sizes=(1, 2, 4)), measured(3.0, sizes=(1, 4))])
    assert found.curves[KEY].batch_sizes == (1, 4)


def test_what_one_of_them_lacks_is_left_out() -> None:
    lacking = measured(1.0)
    del lacking.links["a", "b"]
    found = median_profiles([measured(1.0), lacking])
    assert not found.links
    assert list(found.curves) == [KEY]
