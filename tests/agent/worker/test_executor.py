from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.job import Job
from edgeswarm.model.export import export_model
from edgeswarm.model.stage import StageModule
from edgeswarm.plan import Plan, Stage
from edgeswarm.routes import Routes
from edgeswarm.samples import SampleOrder
from edgeswarm.schedule.policy import Action, ActionKind
from edgeswarm.wire.fetch import SamplePart
from edgeswarm_agent.worker.all_reduce import ReplicaGroup
from edgeswarm_agent.worker.compute import StageCompute
from edgeswarm_agent.worker.executor import StageExecutor
from edgeswarm_agent.worker.feed import SampleFeed
from edgeswarm_agent.worker.samples import LocalSamples
from edgeswarm_agent.worker.setup import feed_requests
from edgeswarm_agent.worker.timing import Progress, RoundClock

from .lan import Lan, WorkerEnd

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


class Run:
    """A job over the workers of a Lan, each in a thread: what a worker's setup makes, without its processes."""

    def __init__(self, lan: Lan, job: Job, groups: Sequence[Mapping[str, int]], *, in_flight: int, cut: float) -> None:
        self.model = built(job)
        graph = export_model(self.model, (torch.zeros(4, 6, dtype=torch.float64),)).layer_graph
        layers = len(graph.layers)
        bounds = [0, layers] if len(groups) == 1 else [0, max(1, round(layers * cut)), layers]
        micro_batch = sum(groups[0].values())
        self.plan = Plan(
            planner="by hand",
            micro_batch=micro_batch,
            micro_batches=BATCH // micro_batch,
            stages=tuple(
                Stage(first, end, shares, in_flight)
                for first, end, shares in zip(bounds[:-1], bounds[1:], groups, strict=True)
            ),
        )
        self.order = SampleOrder(SAMPLES, BATCH, job.seed)
        self.rounds = EPOCHS * self.order.rounds_per_epoch
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self.feeds: list[SampleFeed] = []
        self.computes: dict[str, StageCompute] = {}
        self.executors: dict[str, StageExecutor] = {}
        for name, end in lan.ends.items():
            stage = self.plan.stages[self.plan.stage_of(name)]
            module = StageModule(
                graph.stage(stage.first_layer, stage.end_layer),
                {key: tensor.detach().clone() for key, tensor in tensors.items()},
            )
            self.computes[name] = self._compute(end, module, job)
            routes = self.computes[name].routes
            self.executors[name] = StageExecutor(
                module=module,
                job=job,
                compute=self.computes[name],
                routes=routes,
                group=ReplicaGroup(routes.replicas, name, epoch=1, egress=end.egress, mailbox=end.mailbox),
                tied=(),
                order=self.order,
                loss_counts=False,
            )

    def _compute(self, end: WorkerEnd, module: StageModule, job: Job) -> StageCompute:
        routes = Routes(self.plan, end.name)
        feed = None
        if routes.is_first or routes.is_last:
            part = SamplePart.INPUTS if routes.is_first else SamplePart.TARGETS
            feed = SampleFeed(
                source=LocalSamples(Data(), where=end.name),
                job=job,
                seed=job.seed,
                part=SamplePart.BOTH if routes.is_first and routes.is_last else part,
                requests=feed_requests(routes, self.order, 0, self.rounds),
                where=end.name,
            )
            self.feeds.append(feed)
        return StageCompute(
            module=module,
            routes=routes,
            epoch=1,
            seed=job.seed,
            mailbox=end.mailbox,
            egress=end.egress,
            switch=end.switch,
            clock=RoundClock(),
            progress=Progress(),
            loss=job.loss,
            feed=feed,
        )

    def train(self, end: WorkerEnd) -> None:
        for number in range(self.rounds):
            self.executors[end.name].run_round(number)

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()
        for executor in self.executors.values():
            executor.close()

    def parameters(self) -> dict[str, Tensor]:
        return {
            name: parameter.detach()
            for compute in self.computes.values()
            for name, parameter in compute.module.parameters.items()
        }

    def with_optimizer_state(self) -> set[str]:
        return {
            name
            for device, executor in self.executors.items()
            for name, parameter in self.computes[device].module.parameters.items()
            if executor.optimizer.optimizer is not None and executor.optimizer.optimizer.state.get(parameter)
        }


def check_against_plain(run: Run, job: Job) -> None:
    wanted, stated = plain(job)
    found = run.parameters()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, rtol=1e-9, atol=1e-12), name
    assert run.with_optimizer_state() == stated


def test_what_gets_no_gradient_is_left_alone_as_in_a_plain_loop(tmp_path: Path) -> None:
    for number, groups in enumerate([[{A: 4}], [{A: 4}, {B: 4}], [{A: 3, B: 1}, {C: 4}]]):
        job = job_of(SideHeads)
        with Lan(tmp_path / str(number), [name for group in groups for name in group]) as lan:
            lan.connect()
            run = Run(lan, job, groups, in_flight=2, cut=0.5)
            lan.at_once(run.train)
            check_against_plain(run, job)
            run.close()


def test_a_frozen_stage_does_not_run_ahead_of_the_next(tmp_path: Path) -> None:
    job = job_of(FrozenBackbone)
    with Lan(tmp_path / "ca", [A, B]) as lan:
        lan.connect()
        run = Run(lan, job, [{A: 2}, {B: 2}], in_flight=2, cut=0.5)
        frozen = run.computes[A]
        assert not any(value.requires_grad for value in frozen.module.graph.outputs)
        forwards: list[int] = []
        original = frozen.run

        def counted(action: Action) -> None:
            forwards.extend([action.micro_batch] if action.kind is ActionKind.FORWARD else [])
            original(action)

        frozen.run = counted  # type: ignore[method-assign]
        ahead = threading.Thread(target=run.train, args=(lan.ends[A],))
        ahead.start()
        # The next stage hasn't begun: two micro-batches are in flight, and the third has to wait.
        while frozen.progress.read()[1] != (B,) and ahead.is_alive():
            ahead.join(0.01)
        assert forwards == [0, 1]
        run.train(lan.ends[B])
        ahead.join(30)
        check_against_plain(run, job)
        run.close()
