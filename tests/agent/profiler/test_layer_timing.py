"""Curves of real layers. Nothing here looks at how long something takes, only at what was measured and where it ends."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.stage import StageModule
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_agent.profiler import layer_timing
from edgeswarm_agent.profiler.layer_timing import Timing, expected_bytes, time_layer
from edgeswarm_agent.profiler.profile import curve_of, run_profile
from tests.models import DigitsCNN

PLENTY = 1 << 40

BEYOND_GRADIENTS = 10**9  # bytes, beside which those of a small layer's gradients are nothing


def no_halt() -> None:
    pass


@pytest.fixture(scope="module")
def digits() -> LayerGraph:
    torch.manual_seed(0)
    return export_model(DigitsCNN(), (torch.randn(4, 1, 8, 8),)).layer_graph


def curve(digits: LayerGraph, **changes: object) -> list[Timing]:
    settings: dict[str, object] = {
        "longest_seconds": 0.0,
        "memory_budget": PLENTY,
        "slow_down": 1.0,
        "check_halt": no_halt,
        **changes,
    }
    return time_layer(digits.stage(0, 1), [1, 2, 4], **settings)  # type: ignore[arg-type]


def test_every_layer_gets_a_curve_and_the_curves_come_one_by_one(digits: LayerGraph) -> None:
    layers = [
        agent_pb2.ProfileLayer(
            signature=layer.signature, stage_graph_json=json.dumps(digits.stage(index, index + 1).to_json()).encode()
        )
        for index, layer in enumerate(digits.layers)
    ]
    sent: list[agent_pb2.LayerCurve] = []
    request = agent_pb2.ProfileRequest(layers=layers, batch_sizes=[4, 2, 2])
    run_profile(request, send=sent.append, slow_down=1.0, check_halt=no_halt)
    signatures = [layer.signature for layer in digits.layers]
    count = len(signatures)
    assert [curve.signature for curve in sent[:count]] == signatures
    assert [curve.signature for curve in sent[-count:]] == signatures, "each in the end"
    again = [curve.signature for curve in sent[count:-count]]
    # One that takes little beside the others has no second look, and which does is a matter of what else the machine does.
    assert again, "some after their second look"
    assert again == [signature for signature in signatures if signature in again]
    for curve in sent:
        assert list(curve.batch_sizes) == [2, 4]
        assert all(seconds > 0 for seconds in curve.forward_seconds)
    assert all(seconds > 0 for seconds in sent[-1].backward_seconds)


def test_a_halt_goes_through(digits: LayerGraph) -> None:
    class Halted(Exception):
        pass

    def halt() -> None:
        raise Halted

    with pytest.raises(Halted):
        curve(digits, check_halt=halt)


def test_the_curve_ends_after_the_first_batch_that_took_too_long(digits: LayerGraph) -> None:
    assert [timing.batch_size for timing in curve(digits, longest_seconds=1e-9)] == [1]


def test_the_slow_down_stretches_what_is_reported(digits: LayerGraph) -> None:
    quick, slow = curve(digits), curve(digits, slow_down=1e6)
    assert all(slowed.seconds > 1000 * normal.seconds for slowed, normal in zip(slow, quick, strict=True))


def test_the_curve_ends_where_the_next_batch_would_not_fit(digits: LayerGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_timing._PeakMemory, "taken", lambda _: BEYOND_GRADIENTS)
    assert [timing.batch_size for timing in curve(digits, memory_budget=BEYOND_GRADIENTS * 3 // 2)] == [1]
    assert [timing.batch_size for timing in curve(digits, memory_budget=BEYOND_GRADIENTS * 21 // 10)] == [1, 2, 4]


def test_a_layer_without_room_for_its_gradients_is_not_even_made(
    digits: LayerGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = digits.stage(0, 1)
    trained = [spec.bytes for spec in stage.parameters if spec.trainable]
    needed = sum(spec.bytes for spec in stage.tensors) + sum(trained) + max(trained)
    monkeypatch.setattr(layer_timing._PeakMemory, "taken", lambda _: 0)
    assert curve(digits, memory_budget=needed)
    monkeypatch.setattr(layer_timing, "random_tensors", None)  # so that making it would fail
    assert curve(digits, memory_budget=needed - 1) == []


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_the_curve_ends_where_memory_ended(
    digits: LayerGraph, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    forward = StageModule.forward

    def limited(self: StageModule, batch: int, inputs: list[torch.Tensor], **options: object) -> object:
        if batch > 2:
            raise error
        return forward(self, batch, inputs, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(StageModule, "forward", limited)
    assert [timing.batch_size for timing in curve(digits)] == [1, 2]


def test_an_error_that_is_not_of_memory_goes_through(digits: LayerGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("shapes don't match")

    monkeypatch.setattr(StageModule, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        curve(digits)


def test_a_long_step_up_leaves_twice_the_room(digits: LayerGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_timing._PeakMemory, "taken", lambda _: BEYOND_GRADIENTS)

    def sizes(budget: int) -> list[int]:
        found = time_layer(
            digits.stage(0, 1),
            [1, 16],
            longest_seconds=0.0,
            memory_budget=budget,
            slow_down=1.0,
            check_halt=no_halt,
        )
        return [timing.batch_size for timing in found]

    assert sizes(31 * BEYOND_GRADIENTS) == [1]
    assert sizes(32 * BEYOND_GRADIENTS) == [1, 16]


def test_an_empty_curve_is_sent_as_one() -> None:
    assert curve_of("abc", []) == agent_pb2.LayerCurve(signature="abc")


@given(
    per_sample=st.integers(0, 1 << 30),
    fixed=st.integers(0, 1 << 30),
    sizes=st.lists(st.integers(1, 1 << 12), min_size=2, max_size=6, unique=True),
)
def test_what_is_expected_is_never_less_than_what_a_straight_line_needs(
    per_sample: int, fixed: int, sizes: list[int]
) -> None:
    *measured, following = sorted(sizes)
    needs = [(size, fixed + per_sample * size) for size in measured]
    assert expected_bytes(needs, following) >= (fixed + per_sample * following) * (1 - 1e-9) - 1
    assert expected_bytes([], following) == 0


def test_gradients_need_no_more_for_a_larger_batch() -> None:
    """A table of words: 120 MB at one sample, of which 118 are its gradient, there twice."""
    assert expected_bytes([(1, 120)], 8, gradient_bytes=118) == 118 + 8 * 2
    assert expected_bytes([(1, 100)], 8, gradient_bytes=118) == 8 * 100  # they weren't seen: memory lay around
    assert expected_bytes([(1, 120), (2, 160)], 8, gradient_bytes=118) == 160 + 6 * 40  # unless it was seen to grow
