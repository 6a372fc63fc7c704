from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm_coordinator.process_costs import ProcessCosts, UpdateCosts
from edgeswarm_coordinator.profile_cache import FILE_NAME, LINK_AGE_SECONDS, Curve, Link, ProfileCache, Profiles

HOSTS = ("10.0.0.1", "10.0.0.2")
CURVE = Curve((1, 2, 4), (0.1, 0.2, 0.4), (0.2, 0.4, 0.8), asked=16)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
seconds = st.floats(0, 1e3)


@st.composite
def profiles(draw: st.DrawFn) -> Profiles:
    sizes = draw(st.lists(st.integers(1, 512), unique=True, max_size=5).map(sorted))
    curve = Curve(
        tuple(sizes),
        tuple(draw(seconds) for _ in sizes),
        tuple(draw(seconds) for _ in sizes),
        draw(st.integers(1, 512)),
        draw(st.sampled_from([(), tuple(0.01 for _ in sizes)])),
        draw(st.sampled_from([(), tuple(1000 * size for size in sizes)])),
        draw(st.integers(0, 2**40)),
        rest_part=draw(seconds),
        weights_part=draw(seconds),
    )
    costs = st.builds(
        ProcessCosts,
        base_bytes=st.integers(0, 2**40),
        frame_seconds=seconds,
        byte_seconds=seconds,
        stretch=seconds,
        burst_seconds=seconds,
        updates=st.dictionaries(words, st.builds(UpdateCosts, seconds, seconds), max_size=2),
    )
    return Profiles(
        curves=draw(st.dictionaries(st.tuples(words, words, words), st.just(curve), max_size=3)),
        processes=draw(st.dictionaries(words, costs, max_size=3)),
        links=draw(
            st.dictionaries(
                st.tuples(words, words),
                st.builds(
                    *(Link, st.floats(1, 1e10), seconds, st.floats(0, 2e9), seconds, seconds),
                    hosts=st.sampled_from([(), HOSTS]),
                ),
                max_size=3,
            )
        ),
    )


@given(profiles())
def test_json_round_trip(original: Profiles) -> None:
    assert Profiles.from_json(json.loads(json.dumps(original.to_json()))) == original


def test_what_is_added_is_found_again(tmp_path: Path) -> None:
    warnings: list[str] = []
    cache = ProfileCache(tmp_path / "cache", warn=warnings.append)
    assert cache.load() == Profiles()
    cache.add(Profiles(curves={("nano", "float32", "conv"): CURVE}, processes={"nano": ProcessCosts(100)}))
    cache.add(Profiles(links={("a", "b"): Link(1e8, 1e-4, 1000.0)}))
    found = ProfileCache(tmp_path / "cache", warn=warnings.append).load()
    assert found.curve("nano", "float32", "conv", largest_batch=16) == CURVE
    assert found.processes == {"nano": ProcessCosts(100)}
    assert found.links == {("a", "b"): Link(1e8, 1e-4, 1000.0)}
    assert warnings == []


def test_a_curve_that_ended_early_answers_only_what_it_was_asked() -> None:
    found = Profiles(curves={("nano", "float32", "conv"): CURVE})
    assert found.curve("nano", "float32", "conv", largest_batch=8) is CURVE
    assert found.curve("nano", "float32", "conv", largest_batch=32) is None
    assert found.curve("nano", "float64", "conv", largest_batch=8) is None
    assert found.curve("nx", "float32", "conv", largest_batch=8) is None


@pytest.mark.parametrize(
    ("age", "holds"), [(0.0, True), (LINK_AGE_SECONDS, True), (LINK_AGE_SECONDS + 1, False), (-5.0, False)]
)
def test_links_grow_old(age: float, holds: bool) -> None:
    found = Profiles(links={("a", "b"): Link(1e8, 1e-4, 5000.0, hosts=HOSTS)})
    assert (found.link("a", "b", hosts=HOSTS, now=5000.0 + age) is not None) is holds


@pytest.mark.parametrize("hosts", [("10.0.0.1", "10.0.0.3"), ("10.0.0.3", "10.0.0.2"), ("10.0.0.2", "10.0.0.1"), ()])
def test_a_link_between_other_hosts_says_nothing(hosts: tuple[str, ...]) -> None:
    found = Profiles(links={("a", "b"): Link(1e8, 1e-4, 5000.0, hosts=hosts)})
    assert found.link("a", "b", hosts=HOSTS, now=5000.0) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"format": "edgeswarm-profiles/9", "curves": {}, "processes": {}, "links": {}}',
        b'{"curves": {"k": {"float32": {"s": {"batch_sizes": [2, 1], "forward_seconds": [1, 1], '
        b'"backward_seconds": [1, 1], "asked": 2, "relative_errors": [], "peak_bytes": []}}}}, "processes": {}, "links": {}}',
    ],
)
def test_a_damaged_file_is_a_warning_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    warnings: list[str] = []
    cache = ProfileCache(tmp_path, warn=warnings.append)
    (tmp_path / FILE_NAME).write_bytes(content)
    assert cache.load() == Profiles()
    assert len(warnings) == 1
    assert "measuring again" in warnings[0]
    cache.add(Profiles(processes={"nano": ProcessCosts(1)}))
    warnings.clear()
    assert cache.load().processes == {"nano": ProcessCosts(1)}
    assert warnings == []


def _add(folder: Path, number: int) -> None:
    ProfileCache(folder, warn=print).add(Profiles(processes={f"kind{number}": ProcessCosts(number)}))


def _opened(process_id: int) -> list[Path]:
    found: list[Path] = []
    for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(descriptor.readlink())
    return found


def test_two_coordinators_add_at_once(tmp_path: Path) -> None:
    """The other one has begun to write when this one comes."""
    cache = ProfileCache(tmp_path, warn=print)
    waiting = multiprocessing.get_context("spawn").Process(target=_add, args=(tmp_path, 0))
    with cache._locked():
        waiting.start()
        try:
            while tmp_path / f"{FILE_NAME}.lock" not in _opened(waiting.ident or 0):
                time.sleep(0.01)
                assert waiting.is_alive(), "it didn't wait"
            waiting.join(0.1)
            assert waiting.is_alive(), "it didn't wait"
            other = Profiles(processes={"kind1": ProcessCosts(1)})
            (tmp_path / FILE_NAME).write_text(json.dumps(other.to_json()))
        except BaseException:
            waiting.kill()
            raise
    waiting.join()
    assert cache.load().processes == {"kind0": ProcessCosts(0), "kind1": ProcessCosts(1)}
