from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.layer_file import layer_file_name
from edgeswarm.snapshot import LayerState, pack_layer, unpack_layer, write_layer_file
from edgeswarm.wire.tensor_file import write_tensors

from .tensors import same_bits, tensors

NAMES = st.text(st.sampled_from("ab.0"), min_size=1, max_size=5)
MEMBERS = st.dictionaries(NAMES, tensors(), max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | tensors(),
    lambda inner: st.lists(inner, max_size=2) | st.tuples(inner, inner) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and same_bits(one, other)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return repr(one) == repr(other)


@given(
    st.builds(
        LayerState,
        round=st.integers(0, 2**40),
        parameters=MEMBERS,
        buffers=MEMBERS,
        constants=MEMBERS,
        optimizer=st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), max_size=3),
        groups=st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=2).map(tuple),
    )
)
def test_a_layer_comes_back_bit_for_bit(state: LayerState) -> None:
    packed = pack_layer(state)
    assert packed == pack_layer(state)
    for data in (packed, bytearray(packed), memoryview(packed)):
        found = unpack_layer(data)
        assert found.round == state.round
        for kind in ("parameters", "buffers", "constants"):
            assert same(dict(sorted(getattr(found, kind).items())), dict(sorted(getattr(state, kind).items())))
        assert same(found.optimizer, state.optimizer)
        assert same(found.groups, state.groups)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.NAdam,
        torch.optim.Rprop,
    ],
)
def test_training_goes_on_with_the_same_bits_from_a_snapshot(make: Any) -> None:
    def trained(steps: int, snapshot_at: int) -> torch.Tensor:
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3))
        optimizer: torch.optim.Optimizer = make([parameter])
        for step in range(steps):
            if step == snapshot_at:
                groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
                state = LayerState(step, {"w": parameter}, optimizer={"w": optimizer.state[parameter]}, groups=groups)
                restored = unpack_layer(bytearray(pack_layer(state)))
                parameter = torch.nn.Parameter(restored.parameters["w"])
                optimizer = make([parameter])
                optimizer.state[parameter] = dict(restored.optimizer["w"])
                optimizer.param_groups[0].update(restored.groups[0])
            optimizer.zero_grad()
            (parameter.sin() ** 2).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return parameter.detach()

    assert same_bits(trained(6, snapshot_at=3), trained(6, snapshot_at=-1))


def test_state_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ValueError, match=r"^optimizer\.conv\.history: a set can't be written"):
        pack_layer(LayerState(0, optimizer={"conv": {"history": {1}}}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("format", "pt"),
        ("edgeswarm-layer/9", "{}"),
        ("edgeswarm-layer/1", "{}"),
        ("edgeswarm-layer/1", "[]"),
        ("edgeswarm-layer/1", "["),
        ("edgeswarm-layer/1", '{"round": 1, "optimizer": {"dict": []}}'),
        ("edgeswarm-layer/1", '{"round": "x", "optimizer": {"dict": []}, "groups": {"list": []}}'),
        ("edgeswarm-layer/1", '{"round": -1, "optimizer": {"dict": []}, "groups": {"list": []}}'),
        ("edgeswarm-layer/1", '{"round": 1, "optimizer": {"list": []}, "groups": {"list": []}}'),
        ("edgeswarm-layer/1", '{"round": 1, "optimizer": {"dict": []}, "groups": {"list": [1]}}'),
        ("edgeswarm-layer/1", '{"round": 1, "optimizer": {"leaf": "none"}, "groups": {"list": []}}'),
    ],
)
def test_another_file_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        unpack_layer(write_tensors({"parameter.w": torch.zeros(1)}, (name, text)))


def test_a_layers_file_is_written_whole(tmp_path: Path) -> None:
    path = write_layer_file(tmp_path, 3, LayerState(7, {"w": torch.ones(2)}))
    assert [path] == list(tmp_path.iterdir())
    assert path.name == layer_file_name(3) == "layer-3.safetensors"
    assert unpack_layer(path.read_bytes()).parameters["w"].tolist() == [1, 1]
    assert not list(tmp_path.glob(".*"))
