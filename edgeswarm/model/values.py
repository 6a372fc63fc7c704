"""What a graph's values and tensors are, as data: no tensor, no torch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..json_fields import Fields
from .checked_json import read_identifier, refuse

#: Bytes of one element. What is missing here can neither cross a cut nor be a stage's tensor.
BYTES_PER_ELEMENT = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

TENSOR_KINDS = ("parameter", "buffer", "constant")


def check_dtype(dtype: str, what: str) -> str:
    if dtype not in BYTES_PER_ELEMENT:
        raise refuse(f"{what} has the dtype {dtype[:40]!r}")
    return dtype


@dataclasses.dataclass(frozen=True)
class LiveValue:
    """One tensor that crosses a cut.

    shape: its sizes, with -1 at batch_dim. batch_dim: the dimension whose rows belong to the samples, in order; -1 for
    an output of the whole model that has none (a scalar loss term, or batch times length in one dimension, with -1 for
    what isn't fixed): such a value never crosses between devices.
    requires_grad: a gradient of the same shape comes back. filler: what stands for it among made-up inputs (fillers.py), where it
    has whole numbers or truth values. is_input: the model's own, which travels as it is: labels among them, say.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    batch_dim: int
    requires_grad: bool
    filler: int = 0
    is_input: bool = False

    @property
    def bytes_per_sample(self) -> int:
        if self.batch_dim < 0:
            return 0
        return BYTES_PER_ELEMENT[self.dtype] * math.prod(size for size in self.shape if size >= 0)

    def with_batch(self, batch: int) -> tuple[int, ...]:
        """The value's shape for so many samples."""
        return tuple(batch if size < 0 else size for size in self.shape)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "batch_dim": self.batch_dim,
            "requires_grad": self.requires_grad,
            "filler": self.filler,
            "is_input": self.is_input,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> LiveValue:
        value = cls(
            name=read_identifier(fields, "name"),
            dtype=check_dtype(fields.text("dtype"), "a live value"),
            shape=fields.integers("shape", minimum=-1),
            batch_dim=fields.integer("batch_dim", minimum=-1),
            requires_grad=fields.flag("requires_grad"),
            filler=fields.integer("filler", minimum=-(2**63)),
            is_input=fields.flag("is_input"),
        )
        unknown = [dim for dim, size in enumerate(value.shape) if size < 0]
        if value.batch_dim >= 0 and unknown != [value.batch_dim]:
            raise refuse(f"the live value {value.name!r} has the shape {value.shape} and batch_dim {value.batch_dim}")
        return value


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One parameter, buffer or constant under its original name (as in `model.state_dict()`).

    aliases: the other names of the same tensor (tied weights). persistent: part of `state_dict`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    trainable: bool
    aliases: tuple[str, ...] = ()
    persistent: bool = True

    @property
    def bytes(self) -> int:
        return BYTES_PER_ELEMENT[self.dtype] * math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "kind": self.kind,
            "trainable": self.trainable,
            "aliases": list(self.aliases),
            "persistent": self.persistent,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> TensorSpec:
        spec = cls(
            name=fields.text("name"),
            shape=fields.integers("shape", minimum=0),
            dtype=check_dtype(fields.text("dtype"), "a tensor"),
            kind=fields.text("kind"),
            trainable=fields.flag("trainable"),
            aliases=fields.texts("aliases"),
            persistent=fields.flag("persistent"),
        )
        if spec.kind not in TENSOR_KINDS:
            raise refuse(f"the tensor {spec.name[:60]!r} is of the kind {spec.kind[:40]!r}")
        if spec.trainable and spec.kind != "parameter":
            raise refuse(f"the {spec.kind} {spec.name[:60]!r} says that it is trained")
        return spec


@dataclasses.dataclass(frozen=True)
class BatchNorm:
    """One training-mode batch normalisation that keeps running statistics.

    name: its node. The next three name its buffers. momentum: None for the cumulative average.
    elements_per_sample: how many elements of one channel a sample has (height times width).
    """

    name: str
    running_mean: str
    running_var: str
    num_batches_tracked: str | None
    momentum: float | None
    channels: int
    elements_per_sample: int

    @property
    def buffers(self) -> tuple[str, ...]:
        counted = () if self.num_batches_tracked is None else (self.num_batches_tracked,)
        return (self.running_mean, self.running_var, *counted)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Fields) -> BatchNorm:
        return cls(
            name=read_identifier(fields, "name"),
            running_mean=fields.text("running_mean"),
            running_var=fields.text("running_var"),
            num_batches_tracked=fields.optional_text("num_batches_tracked"),
            momentum=fields.optional_number("momentum"),
            channels=fields.integer("channels", minimum=1),
            elements_per_sample=fields.integer("elements_per_sample", minimum=1),
        )
