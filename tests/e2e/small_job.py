"""A job whose model, optimizer and precision a few words choose: the file that is trained, and the plain loop beside it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file

from edgeswarm.job import Job
from edgeswarm.job_file import load_job
from edgeswarm.model.export import export_model
from edgeswarm.plan import Plan, Stage
from edgeswarm.samples import SampleOrder
from edgeswarm_coordinator.controller import TrainOptions, TrainResult, train
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.events import Listener
from tests import models

TEMPLATE = '''
import torch
from torch.nn import functional

import edgeswarm
import small_models

DTYPE = torch.{dtype}


class Data:
    """{samples} samples of noise, the same at every place."""

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.inputs = {inputs}
        self.targets = {targets}

    def __len__(self):
        return {samples}

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def optimizer(named):
    return {optimizer}


job = edgeswarm.Job(
    model=lambda: {model}.to(DTYPE),
    dataset=Data,
    loss={loss},
    optimizer=optimizer,
    batch_size={batch_size},
    epochs={epochs},
    seed=11,
    {more}
)
'''

IMAGES = "torch.randn({samples}, 1, 8, 8, generator=generator).to(DTYPE)"
SEQUENCES = "torch.randn({samples}, 6, 8, generator=generator).to(DTYPE)"
TOKENS = "torch.randint(0, 30, ({samples}, 8), generator=generator)"
CLASSES = "torch.randint(0, 10, ({samples},), generator=generator)"
CROSS_ENTROPY = "functional.cross_entropy"
COUNTED_TOKENS = (
    "lambda output, targets: (functional.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction='sum'), "
    "(targets >= 0).sum())"
)
SGD = "torch.optim.SGD([p for _, p in named], lr=0.05, momentum=0.9)"
ADAMW = "torch.optim.AdamW([p for _, p in named], lr=0.003)"


@dataclass(frozen=True)
class SmallJob:
    """What goes into the template. 5 rounds an epoch, the last of them ragged."""

    model: str
    inputs: str
    targets: str = CLASSES
    loss: str = CROSS_ENTROPY
    optimizer: str = SGD
    dtype: str = "float32"
    samples: int = 50
    batch_size: int = 12
    epochs: int = 4
    more: str = ""

    def write(self, folder: Path) -> Path:
        """The job file in `folder`, with the models beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "small_models.py").write_text(inspect.getsource(models))
        fields = {name: value for name, value in vars(self).items() if name not in ("inputs", "targets")}
        text = TEMPLATE.format(
            **fields,
            inputs=self.inputs.format(samples=self.samples),
            targets=self.targets.format(samples=self.samples),
        )
        path = folder / "small_job.py"
        path.write_text(text)
        return path


CNN = SmallJob(model="small_models.DigitsCNN(batch_norm=False, channels=4)", inputs=IMAGES)
CNN_WITH_BATCH_NORM = SmallJob(model="small_models.DigitsCNN(batch_norm=True, channels=4)", inputs=IMAGES)
TRANSFORMER = SmallJob(model="small_models.SmallTransformer(width=16, blocks=2)", inputs=SEQUENCES)


def layers_of(path: Path) -> int:
    """How many layers the job's model is cut into."""
    job = load_job(path.parent, path.name)
    dataset = job.dataset()
    inputs = torch.stack([dataset[index][0] for index in range(4)])
    return len(export_model(job.model(), (inputs,), {}).layer_graph.layers)


def plain_training(path: Path) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The loop that anyone would write, over the same samples in the same order."""
    job = load_job(path.parent, path.name)
    torch.manual_seed(job.seed)
    model = job.model()
    if job.weights is not None:
        model.load_state_dict(load_file(path.parent / job.weights))
    optimizer = job.optimizer(list(model.named_parameters()))
    rounds = SampleOrder.of(job, len(job.dataset())).rounds_per_epoch * job.epochs
    plain_rounds(job, model, optimizer, range(rounds))
    return model, optimizer


def plain_rounds(job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rounds: range) -> None:
    """Some rounds of the plain loop, which go on with the model and the optimizer as they are."""
    dataset = job.dataset()
    order = SampleOrder.of(job, len(dataset))
    initial = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    for round_number in rounds:
        permutation = order.permutation(order.epoch_of(round_number))
        start = round_number % order.rounds_per_epoch * job.batch_size
        items = [dataset[int(index)] for index in permutation[start : start + order.samples_of(round_number)]]
        inputs, targets = (torch.stack(parts) for parts in zip(*items, strict=True))
        optimizer.zero_grad()
        loss = job.loss(model(inputs), targets)
        (loss[0] / loss[1] if isinstance(loss, tuple) else loss).backward()
        if job.clip_gradient_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip_gradient_norm)
        if job.learning_rate_schedule is not None:
            for group, rate in zip(optimizer.param_groups, initial, strict=True):
                group["lr"] = rate * job.learning_rate_schedule(round_number)
        optimizer.step()


class Batched(Protocol):
    """A job of a test, as far as a plan needs to know it."""

    @property
    def batch_size(self) -> int: ...


def plan_of(
    cluster: ThrowawayCluster,
    groups: Sequence[Mapping[str, int]],
    *,
    layers: int,
    job: Batched,
    in_flight: int | None = None,
) -> Plan:
    """A hand-written plan: stages of about equal numbers of layers over groups of devices with their shares."""
    micro_batch = sum(groups[0].values())
    bounds = [layers * index // len(groups) for index in range(len(groups) + 1)]
    rest = job.batch_size % micro_batch
    return Plan(
        planner="hand",
        micro_batch=micro_batch,
        micro_batches=-(-job.batch_size // micro_batch),
        last_micro_batch=rest or None,
        stages=tuple(
            Stage(
                first_layer=bounds[index],
                end_layer=bounds[index + 1],
                shares={cluster.node_id(name): share for name, share in group.items()},
                in_flight=in_flight or max(1, 2 * (len(groups) - index) - 1),
            )
            for index, group in enumerate(groups)
        ),
    )


def train_on(
    cluster: ThrowawayCluster,
    job_path: Path,
    *,
    plan: Plan | None,
    output: Path,
    listener: Listener = lambda _: None,
    **more: Any,
) -> TrainResult:
    """`edgeswarm train` in this process, over the cluster's agents."""
    plan_path = None
    if plan is not None:
        plan_path = output.with_suffix(".plan.json")
        plan_path.write_text(json.dumps(plan.to_json()))
    options = TrainOptions(
        job_path=job_path,
        output=output,
        plan_path=plan_path,
        listen_address="127.0.0.1",
        **{"discovery": cluster.discovery(), **more},
    )
    return train(options, folders=cluster.folders, listener=listener)


def relative_distance(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> tuple[float, float]:
    """Relative L2 distance: the largest of any tensor, and that of all tensors together."""
    assert found.keys() == wanted.keys()
    largest, difference, size = 0.0, 0.0, 0.0
    for name, tensor in wanted.items():
        delta = float((found[name].double() - tensor.double()).norm())
        norm = float(tensor.double().norm())
        largest = max(largest, delta / norm if norm else delta)
        difference += delta**2
        size += norm**2
    return largest, (difference / size) ** 0.5
