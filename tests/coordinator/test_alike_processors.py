from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm_coordinator.alike_processors import spread_alike, with_alike_parts
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.profile_cache import Curve, Profiles

SIZES = (1, 8, 64)
LAYERS = ("a", "b", "c")
TWICE_B = {"a": 1, "b": 2, "c": 1}


def curve(*seconds: float, sizes: tuple[int, ...] = SIZES) -> Curve:
    """A third of it forward."""
    return Curve(
        batch_sizes=sizes,
        forward_seconds=tuple(each / 3 for each in seconds),
        backward_seconds=tuple(2 * each / 3 for each in seconds),
        asked=64,
        peak_bytes=tuple(100 * size for size in sizes),
    )


def totals(curve: Curve) -> list[float]:
    return [f + b for f, b in zip(curve.forward_seconds, curve.backward_seconds, strict=True)]


def device(key: str, **hardware: str) -> Device:
    return Device(node_id=f"{key}-000000", address="", hardware_key=key, hardware=hardware)


def flat(seconds: Mapping[str, float]) -> dict[str, Curve]:
    return {mark: curve(each, 8 * each, 64 * each) for mark, each in seconds.items()}


def test_the_example_of_the_module() -> None:
    quick, slow = {"a": 1.0, "b": 3.0, "c": 1.0}, {"a": 4.0, "b": 8.0, "c": 8.0}
    found = spread_alike({"quick": flat(quick), "slow": flat(slow)}, dict.fromkeys(LAYERS, 1))
    parts = {mark: totals(found["quick"][mark])[0] / 5 for mark in LAYERS}
    assert parts == pytest.approx({"a": 0.206, "b": 0.504, "c": 0.291}, abs=1e-3)
    assert {mark: totals(found["slow"][mark])[0] / 20 for mark in LAYERS} == pytest.approx(parts)
    assert found["slow"]["a"].peak_bytes == curve(1, 8, 64).peak_bytes


seconds = st.floats(1e-5, 1e2)
some_curves = st.lists(seconds, min_size=3, max_size=3).map(lambda drawn: curve(*drawn))
on_hardware = st.fixed_dictionaries(dict.fromkeys(LAYERS, some_curves))


@given(curves=st.dictionaries(st.sampled_from("uvwx"), on_hardware, min_size=1, max_size=4))
def test_the_whole_model_takes_what_it_took_and_all_spread_it_alike(curves: dict[str, dict[str, Curve]]) -> None:
    found = spread_alike(curves, TWICE_B)
    parts = []
    for key, before in curves.items():
        for place in range(len(SIZES)):
            was = sum(TWICE_B[mark] * totals(before[mark])[place] for mark in LAYERS)
            now = {mark: totals(found[key][mark])[place] for mark in LAYERS}
            assert sum(TWICE_B[mark] * each for mark, each in now.items()) == pytest.approx(was)
            parts.append((place, [now[mark] / was for mark in LAYERS]))
    if len(curves) > 1:
        for place, part in parts:
            assert part == pytest.approx(parts[place][1])


def test_sizes_that_one_did_not_measure_are_taken_from_between() -> None:
    fine = {mark: curve(1.0, 8.0, 64.0) for mark in "ab"}
    coarse = {"a": curve(2.0, 128.0, sizes=(1, 64)), "b": curve(2.0, 16.0, 128.0)}
    found = spread_alike({"fine": fine, "coarse": coarse}, {"a": 1, "b": 1})
    assert totals(found["fine"]["a"]) == pytest.approx([1.0, 8.0, 64.0])
    assert totals(found["coarse"]["a"]) == pytest.approx([2.0, 128.0])


def test_beyond_what_all_measured_the_last_factor_holds() -> None:
    large = {"a": curve(1.0, 8.0, 64.0), "b": curve(4.0, 32.0, 256.0)}
    small = {"a": curve(4.0, 32.0, sizes=(1, 8)), "b": curve(1.0, 8.0, sizes=(1, 8))}
    found = spread_alike({"large": large, "small": small}, {"a": 1, "b": 1})
    assert totals(found["large"]["a"]) == pytest.approx([2.5, 20.0, 160.0])
    assert totals(found["large"]["b"]) == pytest.approx([2.5, 20.0, 160.0])
    assert totals(found["small"]["b"]) == pytest.approx([2.5, 20.0])


def test_where_no_size_is_known_of_two_nothing_changes() -> None:
    one, other = {"a": curve(1.0, sizes=(1,))}, {"a": curve(3.0, sizes=(64,))}
    assert spread_alike({"one": one, "other": other}, {"a": 1}) == {"one": one, "other": other}


def profiles() -> Profiles:
    found = Profiles()
    for key, spread in (("nano", (1.0, 3.0)), ("nx", (1.0, 1.0)), ("tx2", (3.0, 1.0))):
        for mark, each in zip("ab", spread, strict=True):
            found.curves[key, "float32", mark] = curve(each, 8 * each, 64 * each)
    return found


def test_only_processors_of_one_kind_count_for_each_other() -> None:
    devices = [device("nano", cpu="A57"), device("nx", cpu="Carmel"), device("tx2", cpu="A57")]
    found = with_alike_parts(profiles(), devices, dtype="float32", parts=["a", "b"])
    assert totals(found.curves["nano", "float32", "a"])[0] == pytest.approx(2.0)
    assert totals(found.curves["tx2", "float32", "a"])[0] == pytest.approx(2.0)
    assert found.curves["nx", "float32", "a"] == profiles().curves["nx", "float32", "a"]


@pytest.mark.parametrize("hardware", [{}, {"cpu": ""}])
def test_one_that_does_not_say_what_it_has_is_like_no_other(hardware: dict[str, str]) -> None:
    devices = [device("nano", **hardware), device("tx2", **hardware)]
    assert with_alike_parts(profiles(), devices, dtype="float32", parts=["a", "b"]) == profiles()


def test_other_threads_are_another_kind() -> None:
    devices = [device("nano", cpu="A57", threads="1"), device("tx2", cpu="A57", threads="4")]
    assert with_alike_parts(profiles(), devices, dtype="float32", parts=["a", "b"]) == profiles()


def test_hardware_that_could_not_hold_a_layer_is_left_alone() -> None:
    known = profiles()
    known.curves["nano", "float32", "b"] = Curve((), (), (), asked=64)
    devices = [device("nano", cpu="A57"), device("tx2", cpu="A57")]
    found = with_alike_parts(known, devices, dtype="float32", parts=["a", "b"])
    assert found == known
    assert not math.isnan(totals(found.curves["tx2", "float32", "a"])[0])
