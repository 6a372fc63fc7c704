"""Graph data from the network: what is sound is rebuilt, what isn't is refused with one kind of error."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model import operators
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.node import Node
from edgeswarm.model.probe import random_inputs, random_tensors
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph

from .examples import EACH_EXAMPLE, example

Document = dict[str, Any]


@functools.cache
def _stage_text() -> str:
    return json.dumps(example("digits").exported.layer_graph.stage(1, 3).to_json())


def _stage() -> Document:
    document: Document = json.loads(_stage_text())
    return document


def _set(path: str, value: Any) -> Callable[[Document], None]:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]

    def change(document: Document) -> None:
        place: Any = document
        for part in parents:
            place = place[part]
        place[last] = value

    return change


def _read_the_value_of(node: int) -> Callable[[Document], None]:
    """The first node reads this one."""
    return lambda document: _set("nodes/0/args/0", {"node": document["nodes"][node]["name"]})(document)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: dict[str, Callable[[Document], None]] = {
    "an operation that reads files": _set("nodes/0/op", "aten.from_file.default"),
    "an operation of another namespace": _set("nodes/0/op", "mylib.conv.default"),
    "a builtin": _set("nodes/0/op", "builtins.eval"),
    "an operator that isn't arithmetic": _set("nodes/0/op", "operator.methodcaller"),
    "an overload that writes to its argument": _set("nodes/0/op", "aten.add.out"),
    "an operation that isn't a text": _set("nodes/0/op", 3),
    "a name that is code": _set("nodes/0/name", "x = 1; import os"),
    "a keyword that is code": _set("nodes/0/kwargs", {"a) or (b": 1}),
    "a value of a later node": _read_the_value_of(-1),
    "a value of itself": _read_the_value_of(0),
    "two nodes of one name": lambda document: _set("nodes/1/name", document["nodes"][0]["name"])(document),
    "a tensor that isn't listed": _set("nodes/0/args/1", {"tensor": "other.weight"}),
    "a missing tensor": lambda document: document["tensors"].pop(0),
    "an output that nobody makes": _set("outputs/0/name", "nothing"),
    "an unknown marked argument": _set("nodes/0/args/0", {"code": "1"}),
    "a dtype that is code": _set("nodes/0/args/0", {"dtype": "save"}),
    "a foreign memory format": _set("nodes/0/args/0", {"memory_format": "load"}),
    "an argument of two marks": _set("nodes/0/args/0", {"node": "a", "tensor": "b"}),
    "a number beyond 64 bits": _set("nodes/0/args/0", 2**70),
    "a batch that isn't two numbers": _set("nodes/0/args/0", {"batch": [1, 2, 3]}),
    "arguments nested deeply": _set("nodes/0/args/0", _nested(200)),
    "a layer of another stage": _set("nodes/0/layer", 7),
    "layers out of order": _set("nodes/0/layer", 2),
    "a live value of a strange dtype": _set("inputs/0/dtype", "object"),
    "a live value with two batches": _set("inputs/0/shape", [-1, -1, 3]),
    "a negative size": _set("tensors/0/shape", [-5]),
    "a trained buffer": lambda document: next(
        tensor for tensor in document["tensors"] if tensor["kind"] == "buffer"
    ).update(trainable=True),
    "a batch norm of another node": _set("batch_norms/0/name", "elsewhere"),
    "a batch norm of other buffers": _set("batch_norms/0/running_mean", "features.0.weight"),
    "a batch norm of more channels": _set("batch_norms/0/channels", 1000),
    "another format": _set("format", "edgeswarm-stage-graph/99"),
    "nodes that aren't a list": _set("nodes", {"a": 1}),
    "a structure that isn't one": _set("output_structure", {"call": "os.system"}),
    "no layers": _set("layer_names", []),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_data_is_refused(name: str) -> None:
    document = _stage()
    HOSTILE[name](document)
    with pytest.raises(EdgeswarmError) as caught:
        StageGraph.from_json(document)
    assert caught.value.code is ErrorCode.GRAPH_REFUSED


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", "null", b"\xff\xfe", '{"format": 1}'])
def test_text_that_is_no_graph_is_refused(text: str | bytes) -> None:
    for read in (StageGraph.from_json, LayerGraph.from_json):
        with pytest.raises(EdgeswarmError) as caught:
            read(text)
        assert caught.value.code is ErrorCode.GRAPH_REFUSED


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_change_is_refused_or_still_a_graph(data: st.DataObject) -> None:
    """Whatever stands in whatever field: EdgeswarmError or a graph, which travels on as it is; never another exception."""
    document = _stage()
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            place[key] = data.draw(_JSON)
            break
        place = inner
    try:
        graph = StageGraph.from_json(document)
    except EdgeswarmError:
        return
    text = json.dumps(graph.to_json())
    assert json.dumps(StageGraph.from_json(text).to_json()) == text


@pytest.mark.parametrize("name", EACH_EXAMPLE)
def test_every_stage_is_rebuilt_from_its_text(name: str) -> None:
    graph = example(name).exported.layer_graph
    for layer in graph.layers:
        stage = graph.stage(layer.index, layer.index + 1)
        rebuilt = StageGraph.from_json(json.dumps(stage.to_json()))
        assert rebuilt == stage
        module = StageModule(rebuilt, random_tensors(rebuilt, seed=1))
        outputs = module.forward(3, random_inputs(rebuilt, 3, seed=1), draw=None)
        assert [tuple(output.shape) for output in outputs] == [value.with_batch(3) for value in stage.outputs]
        again = StageModule(rebuilt, random_tensors(rebuilt, seed=1))
        repeated = again.forward(3, random_inputs(rebuilt, 3, seed=1), draw=None)
        assert all(torch.equal(first, second) for first, second in zip(outputs, repeated, strict=True))


def test_the_stage_keeps_the_tensors_that_it_is_given() -> None:
    stage = example("digits").exported.layer_graph.stage(0, 2)
    tensors = random_tensors(stage, seed=0)
    module = StageModule(stage, tensors)
    names = [name for name, _ in module.named_parameters_in_order()]
    assert names == [spec.name for spec in stage.parameters]
    assert all(parameter.data_ptr() == tensors[name].data_ptr() for name, parameter in module.parameters.items())
    assert module.tensor("features.1.running_mean") is module.buffers["features.1.running_mean"]


def test_tensors_that_do_not_fit_are_refused() -> None:
    stage = example("digits").exported.layer_graph.stage(0, 1)
    tensors = random_tensors(stage, seed=0)
    with pytest.raises(ValueError, match=r"features\.0\.weight.* is missing"):
        StageModule(stage, {name: tensor for name, tensor in tensors.items() if name != "features.0.weight"})
    with pytest.raises(ValueError, match="float64"):
        StageModule(stage, {**tensors, "features.0.weight": tensors["features.0.weight"].double()})
    with pytest.raises(ValueError, match="takes 1 inputs and got 0"):
        StageModule(stage, tensors).forward(1, [], draw=None)


def test_a_halt_is_looked_at_before_each_layer() -> None:
    class Halted(Exception):
        pass

    stage = example("digits").exported.layer_graph.stage(0, 4)
    module = StageModule(stage, random_tensors(stage, seed=0))
    calls = 0

    def check_halt() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Halted

    with pytest.raises(Halted):
        module.forward(2, random_inputs(stage, 2, seed=0), draw=None, check_halt=check_halt)
    assert calls == 3
    assert module.take_batch_statistics() is None


def test_passes_in_flight_do_not_disturb_each_other() -> None:
    """Two forward passes, then their backward passes in order: as 1F1B runs them."""
    stage = example("digits").exported.layer_graph.stage(0, 3)

    def run(together: bool) -> list[torch.Tensor]:
        module = StageModule(stage, random_tensors(stage, seed=0))
        inputs = [random_inputs(stage, 3, seed=seed) for seed in (1, 2)]
        if together:
            outputs = [module.forward(3, given, draw=None)[0] for given in inputs]
            for output in outputs:
                torch.autograd.backward(output.sum())
        else:
            for given in inputs:
                torch.autograd.backward(module.forward(3, given, draw=None)[0].sum())
        return [parameter.grad for parameter in module.parameters.values() if parameter.grad is not None]

    assert all(torch.equal(one, other) for one, other in zip(run(True), run(False), strict=True))


def test_the_list_names_operations_that_exist() -> None:
    missing = {name for name in operators._FUNCTIONAL if not hasattr(torch.ops.aten, name)}
    # Gone from this torch, or not yet in it: harmless, as nothing resolves to them.
    assert len(missing) <= 0.08 * len(operators._FUNCTIONAL), sorted(missing)


def test_what_torch_calls_random_is_random_here() -> None:
    met = set()
    for packet in sorted(operators.ATEN_PACKETS):
        found = getattr(torch.ops.aten, packet, None)
        for overload in found.overloads() if found is not None else ():
            tagged = torch.Tag.nondeterministic_seeded in getattr(found, overload).tags
            if tagged and operators.is_allowed(f"aten.{packet}.{overload}"):
                arguments = {"train": True, "training": True, "dropout_p": 0.5, "dropout": 0.5}
                assert operators.is_random(f"aten.{packet}.{overload}", [], arguments), packet
                met.add(packet)
    assert {"bernoulli_", "dropout", "lstm", "normal_", "rand", "scaled_dot_product_attention"} <= met


def test_an_overload_that_only_ends_like_one_that_writes_is_allowed() -> None:
    assert operators.is_allowed("aten.to.dtype_layout")
    assert not operators.is_allowed("aten.add.Scalar_out")


def test_a_dropout_that_keeps_everything_draws_nothing() -> None:
    assert operators.is_random("aten.dropout.default", [{"node": "x"}, 0.1, True], {})
    assert not operators.is_random("aten.dropout.default", [{"node": "x"}, 0.1, False], {})
    assert not operators.is_random("aten.scaled_dot_product_attention.default", [1, 2, 3], {})


def test_an_operation_that_this_torch_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(operators, "ATEN_PACKETS", operators.ATEN_PACKETS | {"invented"})
        with pytest.raises(EdgeswarmError, match=r"aten\.invented\.default.*PyTorch") as caught:
            operators.resolve("aten.invented.default")
    assert torch.__version__ in caught.value.message


@pytest.mark.thorough
def test_a_worker_needs_torch_alone() -> None:
    """Rebuilding a stage imports neither the exporter nor the model's code; reading a graph doesn't import torch."""
    code = (
        "import sys, edgeswarm.model.layer_graph; assert 'torch' not in sys.modules\n"
        "import edgeswarm.model.stage, edgeswarm.model.probe\n"
        "assert not {'edgeswarm.model.export', 'edgeswarm.model.lowering', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_node_lists_what_it_reads_once() -> None:
    node = Node("sum", "aten.cat.default", ([{"node": "a"}, {"node": "b"}, {"node": "a"}], {"batch": [1, 0]}), {}, 0)
    assert node.reads == ("a", "b")
    assert copy.copy(node) == node
