from __future__ import annotations

import copy
import functools
import itertools

import pytest
import torch
from torch import nn

from edgeswarm.model.batch_norm import BatchNormMerger, BatchStatistics, StatisticsPlaces
from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.model.stage import StageModule
from edgeswarm.model.values import BatchNorm


def _model(momentum: float | None) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=momentum))


@functools.cache
def _graph(momentum: float | None, dtype: torch.dtype) -> LayerGraph:
    with torch.random.fork_rng():  # whether a test is the first one to ask or not, it draws the same
        model = _model(momentum).to(dtype)
    return export_model(model, (torch.zeros(4, 2, 6, 6, dtype=dtype),)).layer_graph


def _stage(model: nn.Module, momentum: float | None) -> StageModule:
    graph = _graph(momentum, next(model.parameters()).dtype)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    return StageModule(graph.stage(0, len(graph.layers)), copies)


def test_momentum_is_rounded_as_pytorch_rounds_it() -> None:
    torch.manual_seed(0)
    model = _model(0.997).train()
    samples = 0.1 * torch.randn(4, 2, 6, 6)
    stage = _stage(model, 0.997)
    merger = BatchNormMerger(stage.graph.batch_norms, stage.buffers)
    stage.forward(4, [samples], draw=None)
    merger.add(stage.take_batch_statistics())
    merger.apply(merger.to_vector())
    model(samples)
    for name, value in model.named_buffers():
        torch.testing.assert_close(stage.buffers[name], value, rtol=2e-7, atol=0)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_micro_batches_and_replicas_count_as_one_batch(momentum: float | None) -> None:
    """Unequal shares of unequal micro-batches on two replicas: the statistics of the whole mini-batch, momentum once a round."""
    torch.manual_seed(0)
    model = _model(momentum).train().double()
    torch.nn.init.constant_(model[1].running_mean, 40.0)  # type: ignore[index]
    plain = copy.deepcopy(model)
    torch.set_default_dtype(torch.float64)
    try:
        replicas = [_stage(model, momentum), _stage(model, momentum)]
        mergers = [BatchNormMerger(replica.graph.batch_norms, replica.buffers) for replica in replicas]
        for _ in range(3):
            samples = torch.randn(9, 2, 6, 6) * 3 + 100
            plain(samples)
            for replica, merger, shares in zip(replicas, mergers, [(0, 2, 5), (5, 8, 9)], strict=True):
                for first, end in itertools.pairwise(shares):
                    replica.forward(end - first, [samples[first:end]], draw=None)
                    merger.add(replica.take_batch_statistics())
                    assert replica.take_batch_statistics() is None
            total = mergers[0].to_vector() + mergers[1].to_vector()
            assert total.shape == (mergers[0].elements,)
            for merger in mergers:
                merger.apply(total)
                assert not merger.to_vector().any()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, expected in plain.named_buffers():
        assert torch.equal(replicas[0].buffers[name], replicas[1].buffers[name])
        torch.testing.assert_close(replicas[0].buffers[name], expected, rtol=1e-12, atol=0)


def test_a_round_without_samples_moves_nothing() -> None:
    module = _stage(_model(0.1), 0.1)
    before = {name: tensor.clone() for name, tensor in module.buffers.items()}
    merger = BatchNormMerger(module.graph.batch_norms, module.buffers)
    merger.apply(merger.to_vector())
    assert all(torch.equal(before[name], tensor) for name, tensor in module.buffers.items())


def test_sums_of_another_stage_are_refused() -> None:
    module = _stage(_model(0.1), 0.1)
    merger = BatchNormMerger(module.graph.batch_norms, module.buffers)
    with pytest.raises(ValueError, match="wanted float64"):
        merger.apply(torch.zeros(3, dtype=torch.float64))


def test_statistics_of_another_stage_are_refused() -> None:
    module = _stage(_model(0.1), 0.1)
    merger = BatchNormMerger(module.graph.batch_norms, module.buffers)
    for seen in (BatchStatistics((8, 8), torch.zeros(6)), BatchStatistics((8,), torch.zeros(8))):
        with pytest.raises(ValueError, match="not those of this stage"):
            merger.add(seen)


def test_one_element_a_channel_has_no_variance_of_its_own() -> None:
    """Micro-batches of one sample, whose unbiased variance is 0 / 0: all that differs is between them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)).train()
    graph = export_model(model, (torch.randn(4, 5),)).layer_graph
    tensors = {**dict(model.named_parameters()), **{name: buffer.clone() for name, buffer in model.named_buffers()}}
    module = StageModule(graph.stage(0, len(graph.layers)), tensors)
    merger = BatchNormMerger(module.graph.batch_norms, module.buffers)
    samples = torch.randn(3, 5)
    for sample in samples:
        module.forward(1, [sample[None]], draw=None)
        merger.add(module.take_batch_statistics())
    merger.apply(merger.to_vector())
    model(samples)
    for name, expected in model.named_buffers():
        torch.testing.assert_close(module.buffers[name], expected)


@pytest.mark.parametrize("types", [(torch.float32, torch.float32), (torch.float64, torch.float32)])
def test_batch_norms_of_several_element_types_keep_their_own(types: tuple[torch.dtype, ...]) -> None:
    """What each sees is put into places of its own type, and moves its own buffers; the others' stay."""
    batch_norms = [
        BatchNorm(f"n{i}", f"m{i}", f"v{i}", f"t{i}", 0.5, channels=2 + i, elements_per_sample=4) for i in (0, 1)
    ]
    buffers = {f"{what}{i}": torch.full((2 + i,), 3.0, dtype=types[i]) for what in "mv" for i in (0, 1)}
    buffers |= {f"t{i}": torch.tensor(0) for i in (0, 1)}
    places = StatisticsPlaces(batch_norms, buffers)
    made = places.make()
    assert [place.dtype for place in made] == [*types, *types]
    versions = [place._version for place in made]
    for number, value in ((places.number("n1", 0), 5.0), (places.number("n1", 1), 8.0)):
        made[number].fill_(value)
    assert [place._version - before for place, before in zip(made, versions, strict=True)] == [0, 1, 0, 1]
    merger = BatchNormMerger(batch_norms, buffers)
    merger.add(places.read(1, made))
    merger.apply(merger.to_vector())
    torch.testing.assert_close(buffers["m1"], torch.full((3,), 4.0, dtype=types[1]))
    torch.testing.assert_close(buffers["v1"], torch.full((3,), 5.5, dtype=types[1]))
    torch.testing.assert_close(buffers["m0"], torch.full((2,), 1.5, dtype=types[0]))
    torch.testing.assert_close(buffers["v0"], torch.full((2,), 1.5, dtype=types[0]))
    assert int(buffers["t0"]) == int(buffers["t1"]) == 1


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        twice: torch.Tensor = self.norm(self.second(self.norm(self.first(values))))
        return twice


def test_a_batch_norm_used_twice_moves_twice() -> None:
    torch.manual_seed(0)
    model = _Twice().train()
    graph = export_model(model, (torch.randn(4, 5),)).layer_graph
    assert graph.holders["norm.running_mean"] == (1,)  # its statistics live in one place
    module = StageModule(
        graph.stage(0, 2), {**dict(model.named_parameters()), **{name: b.clone() for name, b in model.named_buffers()}}
    )
    merger = BatchNormMerger(module.graph.batch_norms, module.buffers)
    samples = torch.randn(8, 5)
    model(samples)
    module.forward(8, [samples], draw=None)
    merger.add(module.take_batch_statistics())
    merger.apply(merger.to_vector())
    for name, expected in model.named_buffers():
        torch.testing.assert_close(module.buffers[name], expected)


def test_export_leaves_the_model_as_it_was() -> None:
    model = _model(None).train()
    before = copy.deepcopy(model.state_dict())
    export_model(model, (torch.randn(4, 2, 6, 6),))
    assert model[1].momentum is None  # type: ignore[index]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
