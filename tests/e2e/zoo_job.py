"""A job for each small model of the zoo, and the plain loops beside it: PyTorch's own, and one that normalises by shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torch.utils.data import default_collate

from edgeswarm.job import Job, model_arguments
from edgeswarm.samples import SampleOrder, micro_batch_sizes, split_micro_batch
from tests.zoo import ZOO

SAMPLES = 18
BATCH_SIZE = 10  # two rounds, the second of 8
SGD = "torch.optim.SGD([p for _, p in named], lr=0.05, momentum=0.9)"
ADAMW = "torch.optim.AdamW([p for _, p in named], lr=0.003)"
TOKENS_AS_TARGETS = "gpt2"
PIXELS_AS_TARGETS = "unet"

TEMPLATE = """
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional

import edgeswarm


def model():
    from tests.e2e.zoo_job import build  # this machine's alone, as models are

    return build("{name}", torch.{dtype})


class Data:
    def __init__(self):
        self.columns = load_file(Path(__file__).with_name("data.safetensors"))
        self.targets = self.columns.pop("targets")

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        inputs = {{name: column[index] for name, column in self.columns.items()}}
        return inputs.get("0", inputs), self.targets[index]


def mean_of_rows(output, targets):
    return functional.cross_entropy(getattr(output, "logits", output), targets)


def sum_and_count_of_tokens(output, targets):
    scores = output.logits[:, :-1].flatten(0, 1)
    return functional.cross_entropy(scores, targets[:, 1:].flatten(), reduction="sum"), (targets[:, 1:] >= 0).sum()


def optimizer(named):
    return {optimizer}


job = edgeswarm.Job(
    model=model,
    dataset=Data,
    loss={loss},
    optimizer=optimizer,
    batch_size={batch_size},
    seed=7,
)
"""


@dataclass(frozen=True)
class ZooJob:
    """One epoch of two rounds. name: in the zoo. optimizer: an expression over `named`."""

    name: str
    optimizer: str = SGD
    dtype: str = "float64"
    batch_size: int = BATCH_SIZE

    def write(self, folder: Path) -> Path:
        """The job file in `folder`, with its data beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self._data(), folder / "data.safetensors")
        loss = "sum_and_count_of_tokens" if self.name == TOKENS_AS_TARGETS else "mean_of_rows"
        path = folder / f"{self.name}.py"
        path.write_text(TEMPLATE.format(**vars(self), loss=loss))
        return path

    def _data(self) -> dict[str, torch.Tensor]:
        """The columns of all samples; a single input that is given by position is called "0"."""
        generator = torch.Generator().manual_seed(3)
        args, kwargs = ZOO[self.name].small.batch(SAMPLES)
        dtype = getattr(torch, self.dtype)
        inputs = {str(index): value for index, value in enumerate(args)} | kwargs
        columns = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        if self.name == TOKENS_AS_TARGETS:
            targets = columns["input_ids"].clone()
            targets[torch.rand(targets.shape, generator=generator) < 0.3] = -100  # other counts in each sample
        else:
            shape = (16, 16) if self.name == PIXELS_AS_TARGETS else ()
            classes = 2 if self.name == PIXELS_AS_TARGETS else 10
            targets = torch.randint(0, classes, (SAMPLES, *shape), generator=generator)
        return {**columns, "targets": targets}


def build(name: str, dtype: torch.dtype) -> nn.Module:
    """The small model, with no tensor at the plain values that initialisers begin with.

    A bias that begins at 0 and has no gradient but noise (that of attention's keys: softmax cancels it) would be nothing but
    noise, which no two orders of summing share.
    """
    model = ZOO[name].small.make().to(dtype).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand_like(buffer), alpha=0.2)
    return model


def plain_training(job: Job) -> nn.Module:
    """The loop that anyone would write."""
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(list(model.named_parameters()))
    for items in _rounds(job):
        optimizer.zero_grad()
        inputs, targets = default_collate(items)
        args, kwargs = model_arguments(inputs)
        loss = job.loss(model(*args, **kwargs), targets)
        (loss[0] / loss[1] if isinstance(loss, tuple) else loss).backward()
        optimizer.step()
    return model


def training_by_shares(job: Job, *, shares: Mapping[str, int], replicated: Sequence[str]) -> nn.Module:
    """The plain loop over micro-batches in which some BatchNorms normalise each replica's part for itself.

    shares: of the replicas in a micro-batch, by device. replicated: names of the parameters of the stage that they hold.
    """
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(list(model.named_parameters()))
    norms = [
        _NormByShares(module, by_shares=f"{name}.weight" in replicated)
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d) and module.training
    ]
    for items in _rounds(job):
        optimizer.zero_grad()
        start = 0
        for size in micro_batch_sizes(len(items), micro_batch=sum(shares.values())):
            for norm in norms:
                norm.sizes = [interval.size for interval in split_micro_batch(shares, size).values()]
            inputs, targets = default_collate(items[start : start + size])
            args, kwargs = model_arguments(inputs)
            (job.loss(model(*args, **kwargs), targets) * size / len(items)).backward()
            start += size
        optimizer.step()
        for norm in norms:
            norm.end_round()
    return model


class _NormByShares:
    """In place of a BatchNorm's forward. sizes: of the parts of the batch that comes next; a part may be empty."""

    def __init__(self, module: nn.BatchNorm2d, *, by_shares: bool) -> None:
        self.sizes: Sequence[int] = ()
        self._module = module
        self._by_shares = by_shares
        self._seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []  # positions, sum, sum of squares
        setattr(module, "forward", self._forward)  # noqa: B010 (a type checker knows that it is no method)

    def _forward(self, batch: torch.Tensor) -> torch.Tensor:
        module = self._module
        parts = [part for part in torch.split(batch, list(self.sizes)) if len(part)] if self._by_shares else [batch]
        for part in parts:
            rows = part.detach().transpose(0, 1).flatten(1)
            self._seen.append((rows.shape[1], rows.sum(1), rows.square().sum(1)))
        return torch.cat(
            [
                functional.batch_norm(part, None, None, module.weight, module.bias, True, 0.0, module.eps)
                for part in parts
            ]
        )

    def end_round(self) -> None:
        """The running statistics take in those of the whole mini-batch, once."""
        module = self._module
        assert module.running_mean is not None
        assert module.running_var is not None
        assert module.num_batches_tracked is not None
        assert module.momentum is not None
        count = sum(positions for positions, _, _ in self._seen)
        mean = torch.stack([total for _, total, _ in self._seen]).sum(0) / count
        squares = torch.stack([total for _, _, total in self._seen]).sum(0) / count
        module.running_mean.lerp_(mean, module.momentum)
        module.running_var.lerp_((squares - mean.square()) * count / (count - 1), module.momentum)
        module.num_batches_tracked.add_(1)
        self._seen.clear()


def _rounds(job: Job) -> list[list[object]]:
    """The items of each round."""
    dataset = job.dataset()
    order = SampleOrder(len(dataset), job.batch_size, job.seed)
    permutation = order.permutation(0)
    return [
        [dataset[int(index)] for index in permutation[start : start + order.batch_size]]
        for start in range(0, len(dataset), order.batch_size)
    ]
