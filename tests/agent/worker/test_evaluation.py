"""Evaluation over real streams: what plain PyTorch computes in evaluation mode, and training is none the wiser."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.model.evaluation import EvaluationGraph, export_evaluation
from edgeswarm.model.export import export_model
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.plan import Stage
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE
from edgeswarm.snapshot import unpack_layer
from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_agent.worker.errors import HaltedError
from edgeswarm_agent.worker.evaluation import MetricTotals
from edgeswarm_agent.worker.transforming import sample_generator

from .lan import Lan, WorkerEnd
from .stage_run import StageRun, layer_states

A, B, C, D = "a-000001", "b-000002", "c-000003", "d-000004"
BATCH, EPOCHS, SEED = 8, 2, 5
GROUPS: list[list[Mapping[str, int]]] = [
    [{A: 4}],
    [{A: 3, B: 1}],
    [{A: 4}, {B: 4}],
    [{A: 1, B: 3}, {C: 3, D: 1}],
    [{A: 4}, {B: 4}, {C: 3, D: 1}],
]


class Data:
    def __init__(self, samples: int, *, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 3, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


class Model(nn.Module):
    """Dropout and batch statistics in training; in evaluation a buffer that training never reads."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.second, self.drop = nn.Linear(8, 8), nn.Dropout(0.3)
        self.third = nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor([2.0, 3.0, 5.0]))

    def forward(self, value: Tensor) -> Tensor:
        value = torch.tanh(self.norm(self.first(value)))
        value = torch.tanh(self.drop(self.second(value)))
        scores: Tensor = self.third(value)
        return scores if self.training else scores * self.scale


def sgd(named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.1, momentum=0.9)


def noisy(sample: Any, generator: torch.Generator) -> Any:
    inputs, label = sample
    return inputs + 0.1 * torch.randn(6, generator=generator, dtype=torch.float64), label


def doubled(sample: Any, generator: torch.Generator) -> Any:
    inputs, label = sample
    return 2 * inputs + torch.rand(6, generator=generator, dtype=torch.float64), label


def accuracy(output: Tensor, labels: Tensor) -> Tensor:
    return (output.argmax(1) == labels).double().mean()


def errors_of_class_0(output: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    of_class_0 = labels == 0
    return ((output.argmax(1) != 0) & of_class_0).sum(), int(of_class_0.sum())


def largest(output: Tensor, labels: Tensor) -> float:
    return float(output.amax(1).mean())


def job_of(*, length: int, **fields: Any) -> Job:
    settings: dict[str, Any] = {
        "metrics": {"accuracy": accuracy, "errors of class 0": errors_of_class_0, "largest": largest},
        "transform": noisy,
        **fields,
    }
    return Job(
        model=Model,
        dataset=lambda: Data(20, seed=1),
        evaluation_dataset=lambda: Data(length, seed=2),
        loss=functional.cross_entropy,
        optimizer=sgd,
        batch_size=BATCH,
        epochs=EPOCHS,
        seed=SEED,
        data="local",
        **settings,
    )


@functools.cache
def exported() -> tuple[LayerGraph, EvaluationGraph, dict[int, bytes]]:
    """The model under the seed in both modes, and its packed layers, of which each run unpacks copies of its own."""
    torch.manual_seed(SEED)
    model = Model().double()
    batch = torch.zeros(4, 6, dtype=torch.float64)
    training = export_model(model, (batch,))
    evaluation = export_evaluation(model, (batch,), {}, training=training.layer_graph)
    layers = layer_states(training.layer_graph, model, constants=training.constants, evaluation=evaluation)
    return training.layer_graph, evaluation, layers


def run_of(
    lan: Lan,
    job: Job,
    groups: Sequence[Mapping[str, int]],
    *,
    in_flight: int = 2,
    schedule: str = ONE_FORWARD_ONE_BACKWARD,
) -> StageRun:
    graph, evaluation, layers = exported()
    bounds = [round(len(graph.layers) * stage / len(groups)) for stage in range(len(groups) + 1)]
    stages = [
        Stage(first, end, shares, in_flight) for first, end, shares in zip(bounds[:-1], bounds[1:], groups, strict=True)
    ]
    return StageRun(lan, job, graph, stages, layers, evaluation=evaluation, schedule=schedule)


def names_of(groups: Sequence[Mapping[str, int]]) -> list[str]:
    return [name for group in groups for name in group]


def evaluated(lan: Lan, run: StageRun, round_number: int) -> dict[str, agent_pb2.EvaluationReport]:
    """The reports of one evaluation by worker; only the last stage's have one."""
    reports: dict[str, agent_pb2.EvaluationReport] = {}

    def evaluate(end: WorkerEnd) -> None:
        report = run.evaluations[end.name].run(round_number)
        if report is not None:
            reports[end.name] = report

    lan.at_once(evaluate)
    assert reports.keys() == run.plan.stages[-1].shares.keys()
    return reports


def metrics_of(reports: Mapping[str, agent_pb2.EvaluationReport]) -> dict[str, float]:
    """The quotients over all replicas."""
    sums: dict[str, list[float]] = {}
    for report in reports.values():
        for metric in report.metrics:
            total = sums.setdefault(metric.name, [0.0, 0.0])
            total[0] += metric.sum
            total[1] += metric.count
    return {name: total / count for name, (total, count) in sums.items()}


def plain_metrics(run: StageRun, round_number: int) -> dict[str, float]:
    """Plain PyTorch in evaluation mode, over the state that the workers have after this round."""
    model = Model().double().eval()
    state = model.state_dict()
    for layer in run.packed_layers(round_number).values():
        held = unpack_layer(layer)
        state.update({**held.parameters, **held.buffers})
    model.load_state_dict(state)
    job = run.job
    assert job.evaluation_dataset is not None
    transform = job.evaluation_transform or job.transform
    dataset = job.evaluation_dataset()
    items = [dataset[index] for index in range(len(dataset))]
    if transform is not None:
        items = [transform(item, sample_generator(SEED, 0, index)) for index, item in enumerate(items)]
    inputs, labels = torch.stack([item[0] for item in items]), torch.stack([item[1] for item in items])
    with torch.no_grad():
        output = model(inputs)
        wrong, of_class_0 = errors_of_class_0(output, labels)
        return {
            "loss": float(functional.cross_entropy(output, labels)),
            "accuracy": float(accuracy(output, labels)),
            "errors of class 0": float(wrong) / of_class_0,
            "largest": largest(output, labels),
        }


def train(lan: Lan, run: StageRun, first_round: int, end_round: int) -> None:
    lan.at_once(functools.partial(run.train, first_round=first_round, end_round=end_round))


# The last micro-batch: full, of three samples, of one, which not every replica of a group has a part in.
@pytest.mark.thorough
@pytest.mark.parametrize("length", [8, 11, 9])
@pytest.mark.parametrize("groups", GROUPS)
def test_loss_and_metrics_are_those_of_plain_pytorch_in_evaluation_mode(
    tmp_path: Path, groups: Sequence[Mapping[str, int]], length: int
) -> None:
    with Lan(tmp_path, names_of(groups)) as lan:
        lan.connect()
        run = run_of(lan, job_of(length=length, evaluation_transform=doubled if length == 9 else None), groups)
        for first, end in ((0, 0), (0, 4)):
            train(lan, run, first, end)
            reports = evaluated(lan, run, end)
            assert sum(report.samples for report in reports.values()) == length
            assert all((report.epoch, report.round) == (1, end) for report in reports.values())
            assert all(report.seconds > 0 for report in reports.values())
            found, wanted = metrics_of(reports), plain_metrics(run, end)
            assert list(found) == list(wanted)  # the loss first
            assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)
        run.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("groups", "schedule"),
    [
        (GROUPS[1], ONE_FORWARD_ONE_BACKWARD),
        (GROUPS[4], ONE_FORWARD_ONE_BACKWARD),
        pytest.param(GROUPS[4], ZERO_BUBBLE, marks=pytest.mark.soak),
    ],
)
def test_training_after_evaluations_has_the_bits_of_training_without(
    tmp_path: Path, groups: Sequence[Mapping[str, int]], schedule: str
) -> None:
    layers = []
    for evaluates in (False, True):
        with Lan(tmp_path / str(evaluates), names_of(groups)) as lan:
            lan.connect()
            run = run_of(lan, job_of(length=9), groups, schedule=schedule)
            for first, end in ((0, 2), (2, 3), (3, run.rounds)):
                train(lan, run, first, end)
                if evaluates:
                    before = run.packed_layers(end)
                    first_time, again = evaluated(lan, run, end), evaluated(lan, run, end)
                    assert metrics_of(first_time) == metrics_of(again)
                    assert run.packed_layers(end) == before
            layers.append(run.packed_layers(run.rounds))
            run.close()
    assert layers[0] == layers[1]


def test_both_modes_compute_with_the_same_tensors_and_the_layers_keep_what_only_evaluation_needs(
    tmp_path: Path,
) -> None:
    with Lan(tmp_path, [A, B]) as lan:
        lan.connect()
        run = run_of(lan, job_of(length=4), [{A: 4}, {B: 4}])
        for name, evaluation in run.evaluations.items():
            training = run.computes[name].module
            for kind in ("parameters", "buffers"):
                for tensor_name, tensor in getattr(evaluation.module, kind).items():
                    assert tensor.data_ptr() == getattr(training, kind)[tensor_name].data_ptr()
        held = {name: tensor for layer in run.packed_layers(0).values() for name, tensor in unpacked(layer).items()}
        assert torch.equal(held["evaluation.scale"], torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64))
        run.close()


def unpacked(layer: bytes) -> Mapping[str, Tensor]:
    return unpack_layer(layer).constants


def test_a_stage_does_not_run_ahead_and_a_halt_ends_its_waiting(tmp_path: Path) -> None:
    with Lan(tmp_path, [A, B]) as lan:
        lan.connect()
        run = run_of(lan, job_of(length=32), [{A: 2}, {B: 2}], in_flight=3)
        ahead = run.evaluations[A]
        forwards: list[int] = []
        original = ahead.module.forward

        def counted(batch: int, *arguments: Any, **keywords: Any) -> tuple[Tensor, ...]:
            forwards.append(batch)
            return original(batch, *arguments, **keywords)

        ahead.module.forward = counted  # type: ignore[method-assign]
        errors: list[BaseException] = []

        def evaluate() -> None:
            try:
                ahead.run(0)
            except HaltedError as error:
                errors.append(error)

        thread = threading.Thread(target=evaluate)
        thread.start()
        progress = run.computes[A].shared.progress
        # The next stage hasn't begun: three micro-batches are out, and the fourth has to wait.
        while progress.read().waiting_for != (B,) and thread.is_alive():
            thread.join(0.01)
        assert progress.read().action == f"evaluation: waiting for answers from {B}"
        assert forwards == [2, 2, 2]
        lan.ends[A].switch.halt()
        thread.join(10)
        assert len(errors) == 1
        run.close()


def test_a_halt_is_looked_at_between_layers(tmp_path: Path) -> None:
    with Lan(tmp_path, [A]) as lan:

        def halting(output: Tensor, labels: Tensor) -> Tensor:
            lan.ends[A].switch.halt()
            return output.mean()

        run = run_of(lan, job_of(length=12, metrics={"halting": halting}), [{A: 4}])
        with pytest.raises(HaltedError):
            run.evaluations[A].run(0)
        run.close()


@pytest.mark.parametrize("returned", [torch.zeros(2), None, (1.0, torch.zeros(2)), (1.0, 2.0, 3.0), 1j])
def test_a_metric_that_is_no_number_is_named(returned: object) -> None:
    with pytest.raises(EdgeswarmError, match="The metric 'precision' returned") as caught:
        MetricTotals().add("precision", returned, rows=4)
    assert caught.value.code is ErrorCode.JOB_INVALID
    assert "(sum, count)" in caught.value.remedy


def test_a_metric_that_is_no_number_ends_the_evaluation(tmp_path: Path) -> None:
    with Lan(tmp_path, [A]) as lan:
        run = run_of(lan, job_of(length=4, metrics={"precision": lambda output, labels: "0.5"}), [{A: 4}])
        with pytest.raises(EdgeswarmError, match="The metric 'precision' returned a str, not one number") as caught:
            run.evaluations[A].run(0)
        assert caught.value.code is ErrorCode.JOB_INVALID
        run.close()


def test_what_the_users_function_raises_goes_through(tmp_path: Path) -> None:
    def broken(output: Tensor, labels: Tensor) -> Tensor:
        raise KeyError("no such class")

    with Lan(tmp_path, [A]) as lan:
        run = run_of(lan, job_of(length=4, metrics={"broken": broken}), [{A: 4}])
        with pytest.raises(KeyError, match="no such class"):
            run.evaluations[A].run(0)
        run.close()


Form = Callable[[float], object]


@pytest.mark.parametrize("form", [float, torch.tensor, lambda x: torch.tensor([x]), lambda x: torch.tensor(x).numpy()])
def test_a_metric_may_come_as_any_kind_of_number(form: Form) -> None:
    totals = MetricTotals()
    totals.add("m", form(0.5), rows=3)
    totals.add("m", (form(2.0), form(4.0)), rows=3)
    assert totals == MetricTotals(sum=3.5, count=7.0)


def test_sums_are_taken_in_float64() -> None:
    totals = MetricTotals()
    totals.add("m", torch.tensor(16777216.0), rows=3)
    totals.add("m", torch.tensor(1.0), rows=1)
    assert totals.sum == 3 * 16777216 + 1
