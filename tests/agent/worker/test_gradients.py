from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from edgeswarm.gradient_pieces import MOST_PIECES
from edgeswarm.model.memory_layout import arranged
from edgeswarm_agent.worker.all_reduce import ReplicaGroup
from edgeswarm_agent.worker.gradients import GradientBuckets, OverlappedReducer

from .lan import Lan, WorkerEnd


def parameters_of(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return list(model.named_parameters())


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)), torch.nn.Linear(6, 1))


def test_gradients_are_views_of_buckets_last_layers_first() -> None:
    net = model()
    buckets = GradientBuckets(parameters_of(net), bucket_bytes=200)
    assert buckets.members(0) == ["3.weight", "3.bias", "4.weight", "4.bias"]
    net(torch.ones(2, 6)).sum().backward()
    assert sum(flat.abs().sum().item() for flat in buckets.flat) > 0
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.data_ptr() == buckets.gradient(name).data_ptr()
    squares = sum(float(p.grad.double().square().sum()) for p in net.parameters() if p.grad is not None)
    assert abs(buckets.sum_of_squares(buckets.names) - squares) < 1e-9 * squares
    buckets.divide(2.0)
    assert abs(buckets.sum_of_squares(buckets.names) - squares / 4) < 1e-6 * squares
    buckets.zero()
    assert buckets.sum_of_squares(buckets.names) == 0


def test_gradients_too_large_to_be_squared_have_an_infinite_norm() -> None:
    net = model().double()
    buckets = GradientBuckets(parameters_of(net), bucket_bytes=200)
    buckets.gradient("4.bias").fill_(1e200)
    assert buckets.sum_of_squares(buckets.names) == math.inf


@pytest.mark.parametrize("as_parameters_lie", [False, True])
def test_gradients_lie_as_their_parameters_where_nobody_else_adds_to_them(as_parameters_lie: bool) -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(3, 5, (3, 2)), torch.nn.Conv2d(5, 4, 1)
    for convolution in (first, second):
        convolution.weight.data = arranged(convolution.weight.data)
    net = torch.nn.Sequential(first, second)
    alone = copy.deepcopy(net)
    buckets = GradientBuckets(parameters_of(net), bucket_bytes=200, as_parameters_lie=as_parameters_lie)
    images = arranged(torch.rand(2, 3, 4, 4))
    for module in (net, alone):
        for _ in range(2):
            module(images).square().sum().backward()
    assert sum(flat.numel() for flat in buckets.flat) == sum(parameter.numel() for parameter in net.parameters())
    for parameter, expected in zip(net.parameters(), alone.parameters(), strict=True):
        assert parameter.grad is not None
        assert expected.grad is not None
        assert torch.allclose(parameter.grad, expected.grad)
    assert first.weight.grad is not None
    assert (first.weight.grad.stride() == first.weight.stride()) is as_parameters_lie
    # The optimizer's state is made like the gradient, and the step is the same in any layout.
    for module in (net, alone):
        torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9).step()
    assert all(torch.allclose(*pair) for pair in zip(net.parameters(), alone.parameters(), strict=True))


def test_a_step_that_clears_gradients_changes_nothing() -> None:
    """As an optimizer of the user's may end its step with zero_grad(), which is harmless in a plain loop."""
    built = model()
    buckets = GradientBuckets(parameters_of(built))
    for _ in range(2):
        buckets.zero()
        built(torch.ones(3, 6)).sum().backward()
        assert all(parameter.grad is buckets.gradient(name) for name, parameter in parameters_of(built))
        assert any(flat.any() for flat in buckets.flat)
        built.zero_grad(set_to_none=True)


def test_element_types_do_not_share_a_bucket() -> None:
    names = [("a", torch.nn.Parameter(torch.ones(2))), ("b", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))]
    assert [flat.dtype for flat in GradientBuckets(names).flat] == [torch.float64, torch.float32]


def test_the_bucket_that_is_done_last_is_small() -> None:
    """Parameters of 16 KiB: of the first four, whose gradients come last, those behind 64 KiB have one by themselves."""

    def of(count: int) -> list[list[str]]:
        parameters = [(str(place), torch.nn.Parameter(torch.ones(64, 64))) for place in range(count)]
        buckets = GradientBuckets(parameters, bucket_bytes=16 * 64 * 64 * 4)
        return [buckets.members(bucket) for bucket in range(len(buckets.flat))]

    assert of(10) == [["4", "5", "6", "7", "8", "9"], ["0", "1", "2", "3"]]
    assert of(7) == [["3", "4", "5", "6"], ["0", "1", "2"]]
    assert of(22) == [[str(place) for place in range(6, 22)], ["2", "3", "4", "5"], ["0", "1"]]
    assert of(4) == [["0", "1", "2", "3"]]


def test_a_large_parameter_is_reduced_in_pieces_about_alike() -> None:
    buckets = GradientBuckets([("a", torch.nn.Parameter(torch.ones(50, 51)))], bucket_bytes=2000)
    (pieces,) = buckets.pieces
    assert [piece.numel() for piece in pieces] == [384, 512, 384, 384, 512, 374]
    pieces[0].fill_(1.0)
    assert buckets.gradient("a").sum() == 384
    huge = GradientBuckets([("a", torch.nn.Parameter(torch.ones(50_000)))], bucket_bytes=200)
    assert len(huge.pieces[0]) == MOST_PIECES


@pytest.mark.parametrize(("replicas", "bucket_bytes"), [(2, 200), (2, 60), (4, 60)])
def test_buckets_are_summed_over_replicas_while_the_backward_goes_on(
    tmp_path: Path, replicas: int, bucket_bytes: int
) -> None:
    names = [f"a-{replica:06x}" for replica in range(replicas)]
    inputs = {name: torch.randn(5, 6, generator=torch.Generator().manual_seed(i)) for i, name in enumerate(names)}
    whole = model()
    nets = {name: model() for name in names}
    for content in inputs.values():
        whole(content).sum().backward()
        whole(content * 2).sum().backward()
    with Lan(tmp_path / "ca", names) as lan:
        lan.connect()
        found: dict[str, dict[str, torch.Tensor]] = {}

        def train(end: WorkerEnd) -> None:
            net = nets[end.name]
            buckets = GradientBuckets(parameters_of(net), bucket_bytes=bucket_bytes)
            group = ReplicaGroup(names, end.name, epoch=1, egress=end.egress, mailbox=end.mailbox)
            reducer = OverlappedReducer(buckets, parameters_of(net), group=group, switch=end.switch)
            for round_number in range(2):
                buckets.zero()
                reducer.begin_round(round_number)
                net(inputs[end.name]).sum().backward()
                reducer.arm(True)
                net(inputs[end.name] * 2).sum().backward()
                reducer.finish_backward()
                last = torch.tensor([1.0], dtype=torch.float64)
                reducer.reduce_beside(last)
                reducer.wait()
                assert last.item() == replicas
            found[end.name] = {name: buckets.gradient(name).clone() for name in buckets.names}
            reducer.close()

        lan.at_once(train)
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[names[0]][name], parameter.grad, rtol=1e-5, atol=1e-6)
        assert all(torch.equal(found[names[0]][name], of_another[name]) for of_another in found.values())


class CountingBuckets(GradientBuckets):
    """Counts the questions what is in a bucket: each goes through the names of all parameters."""

    questions = 0

    def members(self, bucket: int) -> list[str]:
        self.questions += 1
        return super().members(bucket)


def test_what_is_in_which_bucket_is_looked_up_once_for_all_rounds(tmp_path: Path) -> None:
    net, name = model(), "a-000001"
    with Lan(tmp_path / "ca", [name]) as lan:
        end = lan.ends[name]
        buckets = CountingBuckets(parameters_of(net), bucket_bytes=60)
        group = ReplicaGroup([name], name, epoch=1, egress=end.egress, mailbox=end.mailbox)
        reducer = OverlappedReducer(buckets, parameters_of(net), group=group, switch=end.switch)
        for round_number in range(3):
            buckets.zero()
            reducer.begin_round(round_number)
            reducer.arm(True)
            net(torch.ones(2, 6)).sum().backward()
            reducer.finish_backward()
            reducer.wait()
            assert buckets.touched == set(buckets.names)
        reducer.close()
    assert buckets.questions == len(buckets.flat)
