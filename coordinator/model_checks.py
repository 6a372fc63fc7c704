"""What a model may do in one process and not over several: parameters that share memory, and state outside of its buffers.

And what it may mean and not get: parts that are to stay in evaluation mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from .job_errors import invalid

# What every module has.
_OWN = frozenset(vars(torch.nn.Module()))


def check_memory(model: torch.nn.Module) -> None:
    """Raises EdgeswarmError (JOB_INVALID) where a trained parameter shares memory with another tensor of the model.

    In one process every step changes both; on the devices they are two, which drift apart.
    """
    spans = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.numel() and tensor.layout is torch.strided and tensor.device.type != "meta":
            elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            first = tensor.data_ptr()
            spans.append((first, first + elements * tensor.element_size(), name, tensor))
    spans.sort(key=lambda span: span[:2])
    # Of those before, the one that reaches farthest: who shares memory with any of them shares it with this one.
    farthest = (0, 0, "", torch.empty(0))
    for span in spans:
        (_, end, name, tensor), (first, _, other_name, other) = farthest, span
        if first < end and (tensor.requires_grad or other.requires_grad):
            names = sorted((name, other_name))
            invalid(
                f"{names[0]} and {names[1]} lie in the same memory, and are two tensors of the model: devices would train "
                "them apart.",
                "Let both be one parameter (decoder.weight = encoder.weight), compute the one from the other in forward(), "
                "or give it memory of its own with clone().",
            )
        farthest = max(farthest, span, key=lambda each: each[1])


def modes_given_up(model: torch.nn.Module) -> tuple[str, ...]:
    """Puts the model into training mode; a warning where parts that `model()` left in evaluation mode do other things then.

    A model that is in evaluation mode as a whole, as those of some libraries are when they are loaded, means nothing by it.
    """
    meant = model.training
    resting = [
        (name, module)
        for name, module in model.named_modules()
        if not module.training and isinstance(module, (_BatchNorm, _DropoutNd))
    ]
    model.train()
    changed = [name for name, module in resting if module.training] if meant else []
    if not changed:
        return ()
    others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return (
        f"model() leaves {changed[0]}{others} in evaluation mode, and the whole model trains in training mode, as after "
        "model.train(): running statistics change, dropout draws. Let the module's own train() leave in evaluation mode what is "
        "to stay so, if it is.",
    )


class PlainState:
    """Numbers and tensors that modules keep as plain attributes, as they are when this is made."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before = self._read()

    def changed(self) -> list[str]:
        """The names of those that are others now, as `encoder.steps`."""
        now = self._read()
        return [name for name, before in self._before.items() if name in now and _differs(before, now[name])]

    def _read(self) -> dict[str, tuple[Any, int]]:
        """By name the value, and of a tensor how often it was written to."""
        return {
            f"{path}.{key}" if path else key: (value, _writes_to(value))
            for path, module in self._model.named_modules()
            for key, value in vars(module).items()
            if key not in _OWN and isinstance(value, (bool, int, float, complex, torch.Tensor))
            # Of torch.nn.utils.weight_norm, which computes it anew each time.
            if not {f"{key}_g", f"{key}_v"} <= module._parameters.keys()
        }


def _writes_to(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def _differs(before: tuple[Any, int], now: tuple[Any, int]) -> bool:
    if isinstance(before[0], torch.Tensor) or isinstance(now[0], torch.Tensor):
        return before[0] is not now[0] or before[1] != now[1]
    return bool(before[0] != now[0]) and before[0] == before[0]
