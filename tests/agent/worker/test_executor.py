from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.job import Job
from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.plan import Stage
from edgeswarm.samples import SampleOrder
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD, SCHEDULES, ZERO_BUBBLE
from edgeswarm.schedule.policy import Action, ActionKind
from edgeswarm_agent.worker.compute import StageCompute

from .lan import Lan
from .stage_run import StageRun, layer_states

SAMPLES, BATCH, EPOCHS = 20, 8, 2
A, B, C = "a-000001", "b-000002", "c-000003"


class Data:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        self.targets = torch.randn(SAMPLES, 2, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


class FrozenBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        self.backbone.requires_grad_(False)

    def forward(self, value: Tensor) -> Tensor:
        scores: Tensor = self.head(self.backbone(value))
        return scores


class SideHeads(nn.Module):
    """Two heads whose outputs the loss leaves alone, one early and one late."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.early, self.late = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value = torch.tanh(self.first(value))
        early = self.early(value)
        value = torch.tanh(self.second(value))
        return self.third(value), early, self.late(value)


def loss_of(output: Any, targets: Tensor) -> Tensor:
    return functional.mse_loss(output[0] if isinstance(output, tuple) else output, targets)


def adamw(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([parameter for _, parameter in named], lr=0.01, weight_decay=0.1)


def job_of(build: Callable[[], nn.Module]) -> Job:
    return Job(
        model=build, dataset=Data, loss=loss_of, optimizer=adamw, batch_size=BATCH, epochs=EPOCHS, seed=1, data="local"
    )


def built(job: Job) -> nn.Module:
    torch.manual_seed(job.seed)
    return job.model().double()


def plain(job: Job) -> tuple[dict[str, Tensor], set[str]]:
    """The weights of a plain loop, and the names of the parameters for which its optimizer has state."""
    model, data, order = built(job), Data(), SampleOrder(SAMPLES, BATCH, job.seed)
    optimizer = adamw([pair for pair in model.named_parameters() if pair[1].requires_grad])
    for number in range(EPOCHS * order.rounds_per_epoch):
        start = number % order.rounds_per_epoch * BATCH
        indices = order.permutation(order.epoch_of(number))[start : start + order.samples_of(number)]
        optimizer.zero_grad()
        torch.autograd.backward([loss_of(model(data.inputs[indices]), data.targets[indices])])
        optimizer.step()
    stated = {name for name, parameter in model.named_parameters() if optimizer.state.get(parameter)}
    return {name: parameter.detach() for name, parameter in model.named_parameters()}, stated


@functools.cache
def graph_of(build: Callable[[], nn.Module]) -> LayerGraph:
    return export_model(build().double(), (torch.zeros(4, 6, dtype=torch.float64),)).layer_graph


def run_of(
    lan: Lan,
    job: Job,
    groups: Sequence[Mapping[str, int]],
    *,
    in_flight: int,
    cut: float,
    passes: Mapping[str, int] | None = None,
    schedule: str = ONE_FORWARD_ONE_BACKWARD,
) -> StageRun:
    graph, model = graph_of(job.model), built(job)
    layers = len(graph.layers)
    bounds = [0, layers] if len(groups) == 1 else [0, max(1, round(layers * cut)), layers]
    stages = [
        Stage(first, end, shares, in_flight, passes=passes or {})
        for first, end, shares in zip(bounds[:-1], bounds[1:], groups, strict=True)
    ]
    return StageRun(lan, job, graph, stages, layer_states(graph, model), schedule=schedule)


def check_against_plain(run: StageRun, job: Job) -> None:
    wanted, stated = plain(job)
    found = run.parameters()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, rtol=1e-9, atol=1e-12), name
    assert run.with_optimizer_state() == stated


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_gets_no_gradient_is_left_alone_as_in_a_plain_loop(tmp_path: Path, schedule: str) -> None:
    for number, groups in enumerate([[{A: 4}], [{A: 4}, {B: 4}], [{A: 3, B: 1}, {C: 4}]]):
        job = job_of(SideHeads)
        with Lan(tmp_path / str(number), [name for group in groups for name in group]) as lan:
            lan.connect()
            run = run_of(lan, job, groups, in_flight=2, cut=0.5, schedule=schedule)
            lan.at_once(run.train)
            check_against_plain(run, job)
            run.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_frozen_stage_does_not_run_ahead_of_the_next(tmp_path: Path, schedule: str) -> None:
    job = job_of(FrozenBackbone)
    with Lan(tmp_path / "ca", [A, B]) as lan:
        lan.connect()
        run = run_of(lan, job, [{A: 2}, {B: 2}], in_flight=2, cut=0.5, schedule=schedule)
        frozen = run.computes[A]
        assert not any(value.requires_grad for value in frozen.module.graph.outputs)
        forwards: list[int] = []
        original = frozen.run
        progress = frozen.shared.progress

        def counted(action: Action) -> None:
            forwards.extend([action.micro_batch] if action.kind is ActionKind.FORWARD else [])
            original(action)

        frozen.run = counted  # type: ignore[method-assign]
        ahead = threading.Thread(target=run.train, args=(lan.ends[A],))
        ahead.start()
        # The next stage hasn't begun: two micro-batches are in flight, and the third has to wait.
        while progress.read().waiting_for != (B,) and ahead.is_alive():
            ahead.join(0.01)
        assert forwards == [0, 1]
        run.train(lan.ends[B])
        ahead.join(30)
        check_against_plain(run, job)
        run.close()


class WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, value: Tensor) -> Tensor:
        scores: Tensor = self.layers(value)
        return scores


def test_passes_of_a_share_compute_what_micro_batches_of_their_size_do(tmp_path: Path) -> None:
    """To the bit, the statistics of batch norms included; the epoch's last round of 4 samples has passes of 2."""
    job = job_of(WithBatchNorm)
    found = []
    for name, share, passes in (("passes", 8, {A: 4}), ("micro-batches", 2, {})):
        with Lan(tmp_path / name, [A]) as lan:
            lan.connect()
            run = run_of(lan, job, [{A: share}], in_flight=1, cut=1.0, passes=passes)
            lan.at_once(run.train)
            found.append({**run.parameters(), **run.computes[A].module.buffers})
            run.close()
    assert found[0].keys() == found[1].keys()
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_replicas_with_passes_of_their_own_train_as_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(SideHeads)
    with Lan(tmp_path / "ca", [A, B, C]) as lan:
        lan.connect()
        run = run_of(lan, job, [{A: 4, B: 3, C: 1}], in_flight=1, cut=1.0, passes={A: 3, B: 2})
        lan.at_once(run.train)
        check_against_plain(run, job)
        run.close()


def test_gradients_of_weights_come_apart_and_the_same_plan_gives_the_same_bits(tmp_path: Path) -> None:
    """In a stage of two replicas, whose last gradients are summed up while others are computed."""
    job = job_of(WithBatchNorm)
    found = []
    for number in range(2):
        with Lan(tmp_path / str(number), [A, B, C]) as lan:
            lan.connect()
            run = run_of(lan, job, [{A: 2, B: 2}, {C: 4}], in_flight=2, cut=0.5, schedule=ZERO_BUBBLE)
            waiting = [waits_after_backwards(run.computes[device]) for device in (A, B)]
            lan.at_once(run.train)
            assert all(all(of_backwards) for of_backwards in waiting)
            assert all(
                len(of_backwards) == 10 for of_backwards in waiting
            )  # 2, 2 and 1 micro-batches in each of 2 epochs
            found.append(run.parameters())
            run.close()
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def waits_after_backwards(compute: StageCompute) -> list[bool]:
    """Fills, after each backward: whether gradients of weights of that micro-batch wait."""
    original = compute.run
    found: list[bool] = []

    def watched(action: Action) -> None:
        original(action)
        if action.kind is ActionKind.BACKWARD:
            found.append(len(compute._left[action.micro_batch]) > 0)

    compute.run = watched  # type: ignore[method-assign]
    return found


class Named(NamedTuple):
    """A target as some data sets return it; in a batch `names` has a text for each row."""

    values: Any
    names: Any


class NamedData(Data):
    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        inputs, targets = super().__getitem__(index)
        return inputs, Named(targets, f"{index}")


def loss_of_named(output: Any, targets: Named) -> Tensor:
    assert torch.equal(targets.values, Data().targets[[int(name) for name in targets.names]])
    return loss_of(output, targets.values)


def test_named_targets_with_texts_go_through_passes(tmp_path: Path) -> None:
    job = replace(job_of(SideHeads), dataset=NamedData, loss=loss_of_named)
    with Lan(tmp_path / "ca", [A]) as lan:
        lan.connect()
        run = run_of(lan, job, [{A: 8}], in_flight=1, cut=1.0, passes={A: 3})
        lan.at_once(run.train)
        check_against_plain(run, job)
        run.close()


def test_nothing_of_a_pass_is_held_while_the_next_one_computes(tmp_path: Path) -> None:
    job = job_of(WithBatchNorm)
    with Lan(tmp_path / "ca", [A]) as lan:
        lan.connect()
        run = run_of(lan, job, [{A: 8}], in_flight=1, cut=1.0, passes={A: 4})
        module = run.computes[A].module
        original = module.forward
        earlier: list[weakref.ref[Tensor]] = []
        alive: list[int] = []

        def watched(*given: Any, **named: Any) -> tuple[Tensor, ...]:
            alive.append(sum(reference() is not None for reference in earlier))
            outputs = original(*given, **named)
            earlier.extend(weakref.ref(output) for output in outputs)
            return outputs

        module.forward = watched  # type: ignore[method-assign]
        lan.at_once(run.train)
        run.close()
    assert len(alive) > EPOCHS
    assert not any(alive)
