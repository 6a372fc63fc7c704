"""Job: what a user writes. Imports no torch; the user's file does.

A job file is plain Python with one name that counts:

    import edgeswarm

    job = edgeswarm.Job(model=build, dataset=load, loss=cross_entropy, optimizer=sgd, batch_size=64, epochs=10)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    NamedParameters = list[tuple[str, torch.nn.Parameter]]

SERVED = "served"
LOCAL = "local"
DATA_MODES = (SERVED, LOCAL)
WIRE_DTYPES = ("float32", "bfloat16", "float16")
LOSS = "loss"  # the name under which an evaluation tells the job's loss beside its metrics
LOWEST = "lowest"
HIGHEST = "highest"


class Dataset(Sized, Protocol):
    """A map-style data set: `len(dataset)` items, `dataset[index]` is a pair (inputs, targets), always the same one."""

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Job:
    """One training, as a user describes it.

    model: () -> nn.Module. Called under the seed, on the coordinator's machine alone.
    dataset: () -> a map-style data set whose items are pairs (inputs, targets). inputs is a tensor or array (the model
        is called as `model(inputs)`), a tuple (`model(*inputs)`) or a dict (`model(**inputs)`).
    loss: (output, targets) -> the mean over the rows it was given, or (sum, count).
    optimizer: (named parameters) -> a torch optimizer. It gets a list of (name, parameter) of what a device holds, and
        is not called where that is nothing. Its step takes each parameter by itself.
    batch_size: samples of one optimizer step. epochs: passes over the data set. seed: of weights, order and draws.
    drop_last: leave out the samples that are left over at an epoch's end (others each time), in place of a smaller last step.
    transform: (sample, generator) -> sample, run where the sample is used; draws from the generator alone. What it makes of a
        sample without drawing is kept for later epochs.
    learning_rate_schedule: round -> factor on each group's initial learning rate.
    clip_gradient_norm: the largest 2-norm of the whole model's gradient.
    input_columns, target_columns: for data sets whose items are dicts (Hugging Face `datasets`): the keys of the inputs and
        of the targets. One name gives that value alone, a list of names a dict of them.
    evaluation_dataset: () -> a map-style data set, which goes through the model in evaluation mode after every epoch that
        `evaluate_every` divides, and after the last. evaluation_transform: in place of `transform` there; None for the same.
    metrics: name -> (output, targets) -> the mean over the rows it was given, or (sum, count). What is told is the sum of
        all sums by the sum of all counts. The loss is told beside them, as "loss".
    best_metric, best_is: the checkpoint with the "lowest" or "highest" of this one is kept beside the last. By default the
        lowest loss; of another metric the highest.
    early_stop_epochs: stop when so many evaluations, one after the other, were no better than the best before.
    wire_dtype: how activations and gradients of float32 travel between devices: "float32", "bfloat16" or "float16".
    weights: a file with the model's initial state_dict, relative to the job file: safetensors (Hugging Face's too), or .pt of
        torch.save. It stays on the coordinator's machine.
    data: "served" (the coordinator's machine has the data) or "local" (every device opens the data set itself).
    files: further files and folders that the job needs, relative to the job file.

    Raises ValueError that names the field.
    """

    model: Callable[[], torch.nn.Module]
    dataset: Callable[[], Dataset]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[NamedParameters], torch.optim.Optimizer]
    batch_size: int
    epochs: int = 1
    seed: int = 0
    drop_last: bool = False
    transform: Callable[[Any, torch.Generator], Any] | None = None
    learning_rate_schedule: Callable[[int], float] | None = None
    clip_gradient_norm: float | None = None
    input_columns: str | Sequence[str] | None = None
    target_columns: str | Sequence[str] | None = None
    evaluation_dataset: Callable[[], Dataset] | None = None
    evaluation_transform: Callable[[Any, torch.Generator], Any] | None = None
    evaluate_every: int = 1
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    best_metric: str | None = None
    best_is: str | None = None
    early_stop_epochs: int | None = None
    wire_dtype: str | None = None
    weights: str | None = None
    data: str = SERVED
    files: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("model", "dataset", "loss", "optimizer"):
            self._expect_callable(name)
        for name in ("transform", "learning_rate_schedule", "evaluation_dataset", "evaluation_transform"):
            if getattr(self, name) is not None:
                self._expect_callable(name)
        _expect_integer("batch_size", self.batch_size, minimum=1)
        _expect_integer("epochs", self.epochs, minimum=1)
        _expect_integer("seed", self.seed, minimum=0)
        if self.seed >= 2**63:
            raise ValueError(f"seed is below 2**63, not {self.seed}")
        if not isinstance(self.drop_last, bool):
            raise ValueError(f"drop_last is True or False, not {self.drop_last!r}")
        clip = self.clip_gradient_norm
        if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0):
            raise ValueError(f"clip_gradient_norm is a number above 0 or None, not {clip!r}")
        if self.data not in DATA_MODES:
            raise ValueError(f"data is one of {', '.join(map(repr, DATA_MODES))}, not {self.data!r}")
        if isinstance(self.files, str) or not all(isinstance(file, str) for file in self.files):
            raise ValueError(f"files is a list of paths as texts, not {self.files!r}")
        object.__setattr__(self, "files", tuple(self.files))
        if self.weights is not None and (not isinstance(self.weights, str) or not self.weights):
            raise ValueError(f"weights is the path of a file as a text, not {shown(self.weights)}")
        if self.wire_dtype is not None and self.wire_dtype not in WIRE_DTYPES:
            raise ValueError(
                f"wire_dtype is one of {', '.join(map(repr, WIRE_DTYPES))} or None, not {self.wire_dtype!r}"
            )
        self._expect_columns()
        self._expect_evaluation()

    def _expect_columns(self) -> None:
        for name in ("input_columns", "target_columns"):
            value = getattr(self, name)
            if value is None or isinstance(value, str):
                continue
            if isinstance(value, Mapping) or not all(isinstance(column, str) for column in value) or not list(value):
                raise ValueError(f"{name} is the name of a column or a list of names, not {value!r}")
            object.__setattr__(self, name, tuple(value))
        if (self.input_columns is None) != (self.target_columns is None):
            raise ValueError("input_columns and target_columns go together; give both or none")

    def _expect_evaluation(self) -> None:
        _expect_integer("evaluate_every", self.evaluate_every, minimum=1)
        if not isinstance(self.metrics, Mapping) or not all(isinstance(name, str) for name in self.metrics):
            raise ValueError(f"metrics is a dict of functions by name, not {shown(self.metrics)}")
        for name, metric in self.metrics.items():
            if name == LOSS or not name.strip():
                raise ValueError(f"a metric needs a name of its own, not {name!r}; the loss is told in any case")
            if not callable(metric):
                raise ValueError(f"the metric {name!r} is a function of (output, targets), not {shown(metric)}")
        if self.best_metric is not None and self.best_metric not in (LOSS, *self.metrics):
            known = ", ".join(map(repr, (LOSS, *self.metrics)))
            raise ValueError(f"best_metric is one of {known}, not {self.best_metric!r}")
        if self.best_is is not None and self.best_is not in (LOWEST, HIGHEST):
            raise ValueError(f"best_is is {LOWEST!r} or {HIGHEST!r}, not {self.best_is!r}")
        if self.early_stop_epochs is not None:
            _expect_integer("early_stop_epochs", self.early_stop_epochs, minimum=1)
        if self.evaluation_dataset is None:
            unused = [
                name
                for name in ("evaluation_transform", "best_metric", "best_is", "early_stop_epochs")
                if getattr(self, name) is not None
            ]
            unused += ["metrics"] if self.metrics else []
            if unused:
                raise ValueError(f"{unused[0]} needs an evaluation_dataset to be computed on")

    @property
    def watched_metric(self) -> str:
        """The metric by which the best checkpoint is chosen."""
        return self.best_metric or LOSS

    @property
    def best_is_lowest(self) -> bool:
        """Which of two values of the watched metric is the better one."""
        return self.best_is == LOWEST if self.best_is is not None else self.watched_metric == LOSS

    def open_dataset(self) -> Dataset:
        """The training set, every item a pair (inputs, targets), also where `dataset` returns one of dicts.

        What the user's function draws is the same each time, and as that of the evaluation set does (fixed_draws.py).
        Raises what the user's function raises; EdgeswarmError (JOB_INVALID) where it returns no map-style data set.
        """
        return self._pairs_of("dataset", called="dataset")

    def open_evaluation_dataset(self) -> Dataset:
        """The evaluation set, as `open_dataset` gives the training set; ValueError where the job has none."""
        if self.evaluation_dataset is None:
            raise ValueError("the job has no evaluation_dataset")
        return self._pairs_of("evaluation_dataset", called="evaluation dataset")

    def _pairs_of(self, function: str, *, called: str) -> Dataset:
        from .columns import as_pairs  # it needs numpy, which a command that only shows its help can do without
        from .fixed_draws import begin_draws

        columns = (self.input_columns, self.target_columns)
        inputs, targets = (value if value is None or isinstance(value, str) else tuple(value) for value in columns)
        begin_draws()
        return as_pairs(getattr(self, function)(), inputs, targets, function=function, called=called)

    def _expect_callable(self, name: str) -> None:
        value = getattr(self, name)
        if not callable(value):
            raise ValueError(f"{name} is a function, not {shown(value)}; name the function without calling it")
        if name == "model" and hasattr(value, "forward") and not isinstance(value, type):
            raise ValueError("model is a function that builds the module, not a module; write model=lambda: ...")


def model_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with the inputs of an item or a batch: `model(*args, **kwargs)`."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def _expect_integer(name: str, value: object, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} is a whole number of at least {minimum}, not {value!r}")


def shown(value: object) -> str:
    """A value as a message names it: itself where that is short, else its kind."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    return f"a {type(value).__name__}"
