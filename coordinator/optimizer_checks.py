"""Whether a job's optimizer can be made over any part of the model, and gives each parameter the same steps there.

Each device makes it over the parameters of its own layers:

    whole model      group 0: a.weight  b.weight  c.weight     group 1: a.bias  b.bias  c.bias
    one device       group 0:           b.weight               group 1:         b.bias
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from edgeswarm.job import Job
from edgeswarm.job_file import user_code

from .job_errors import invalid, with_article

# What PyTorch itself keeps in a group beside its values.
_NOT_VALUES = ("params", "param_names")
# Of the parameters with which steps are tried: the smallest ones, since an optimizer's state may be several times as large.
_TRIED_PARAMETERS, _MOST_TRIED_ELEMENTS = 8, 1 << 20
_STEPS, _GRADIENTS = 2, (10.0, 0.001)


def check_optimizer(job: Job, model: torch.nn.Module, *, folder: Path) -> torch.optim.Optimizer:
    """The job's optimizer over the whole model, if it can also be made over any part of it: that is what devices do.

    Each device makes it over the parameters of its own layers. So the group that a parameter is in, and that group's
    values, may depend on nothing but the parameter. Raises EdgeswarmError (JOB_INVALID).
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        invalid("The model has no parameter to train.", "Leave requires_grad on for what is to be trained.")
    with user_code(folder, "making the optimizer"):
        whole = job.optimizer(list(named))
    if not isinstance(whole, torch.optim.Optimizer):
        invalid(f"optimizer(...) returns {with_article(type(whole).__name__)}.", "Return a torch.optim.Optimizer.")
    if _needs_closure(whole):
        invalid(
            f"{type(whole).__name__} computes the loss several times in one step, which a pipeline can't do.",
            "Use an optimizer whose step() needs no closure, such as SGD or AdamW.",
        )
    expected = _groups_by_name(whole, named)
    for part in [*_parts(named), *_parts_by_group(named, expected)]:
        with user_code(folder, f"making the optimizer over {len(part)} of the model's {len(named)} trained parameters"):
            optimizer = job.optimizer(list(part))
        for name, (index, values) in _groups_by_name(optimizer, part).items():
            if name not in expected:
                continue
            whole_index, whole_values = expected[name]
            if index != whole_index:
                _depends(f"{name} is in group {whole_index} of the whole model's optimizer, and in group {index}")
            differing = [key for key in whole_values if not same_value(values.get(key), whole_values[key])]
            if differing:
                _depends(f"{name} has another {differing[0]} in the whole model's optimizer than")
    _check_steps(job, named, folder=folder)
    return whole


def _check_steps(job: Job, named: Sequence[tuple[str, torch.nn.Parameter]], *, folder: Path) -> None:
    """Whether a parameter's steps depend on its own gradients alone: tried with a few small ones, all of them and each half.

    One that draws random numbers is let through: nobody can tell.
    """
    small = sorted(
        (pair for pair in named if pair[1].numel() <= _MOST_TRIED_ELEMENTS), key=lambda pair: pair[1].numel()
    )
    tried = {name: (place, parameter) for place, (name, parameter) in enumerate(small[:_TRIED_PARAMETERS])}
    if len(tried) < 2:
        return
    together, once_more = (_stepped(job, tried, seed=seed, folder=folder) for seed in (0, 1))
    if any(not torch.equal(value, once_more[name]) for name, value in together.items()):
        return
    for part in _parts([(name, parameter) for name, (_, parameter) in tried.items()]):
        alone = _stepped(job, {name: tried[name] for name, _ in part}, seed=0, folder=folder)
        for name, value in alone.items():
            if not torch.equal(value, together[name]):
                invalid(
                    f"The optimizer's step moves {name} otherwise where it has other parameters beside it, as a norm over "
                    "all of them does: each device has those of its own layers.",
                    "Use an optimizer that takes each parameter by itself (Lamb with max_grad_norm=None), and "
                    "clip_gradient_norm of the job for clipping.",
                )


def _stepped(
    job: Job, tried: Mapping[str, tuple[int, torch.nn.Parameter]], *, seed: int, folder: Path
) -> dict[str, torch.Tensor]:
    """By name, what copies of these parameters are after some steps. Gradients are large and small by turns."""
    copies = {name: torch.nn.Parameter(parameter.detach().clone()) for name, (_, parameter) in tried.items()}
    torch.manual_seed(seed)
    with user_code(folder, f"taking optimizer steps over {len(copies)} of the model's parameters"):
        optimizer = job.optimizer(list(copies.items()))
        for step in range(_STEPS):
            for name, copy in copies.items():
                copy.grad = torch.full_like(copy, _GRADIENTS[(tried[name][0] + step) % len(_GRADIENTS)])
            optimizer.step()
    return {name: copy.detach() for name, copy in copies.items()}


def _parts(named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[list[tuple[str, torch.nn.Parameter]]]:
    """Parts such as devices hold: each half."""
    middle = len(named) // 2
    return [list(part) for part in (named[:middle], named[middle:]) if part]


def _parts_by_group(
    named: Sequence[tuple[str, torch.nn.Parameter]], groups: Mapping[str, tuple[int, object]]
) -> list[list[tuple[str, torch.nn.Parameter]]]:
    """The parameters of each group by themselves, where there are several: a stage may have those of one alone.

    groups: by parameter its group's index first.
    """
    indices = sorted({index for index, _ in groups.values()})
    if len(indices) < 2:
        return []
    return [[pair for pair in named if pair[0] in groups and groups[pair[0]][0] == index] for index in indices]


def _groups_by_name(
    optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, torch.nn.Parameter]]
) -> dict[str, tuple[int, dict[str, Any]]]:
    """For each parameter the index of its group, and the group's values."""
    names = {id(parameter): name for name, parameter in named}
    found = {}
    for index, group in enumerate(optimizer.param_groups):
        values = {key: value for key, value in group.items() if key not in _NOT_VALUES}
        for parameter in group["params"]:
            if id(parameter) not in names:
                invalid(
                    "optimizer(...) trains a parameter that it was not given.",
                    "Use only the (name, parameter) pairs of its argument.",
                )
            found[names[id(parameter)]] = (index, values)
    return found


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    if isinstance(optimizer, torch.optim.LBFGS):
        return True
    parameters = list(inspect.signature(optimizer.step).parameters.values())
    return bool(parameters) and parameters[0].name == "closure" and parameters[0].default is inspect.Parameter.empty


def same_value(one: object, other: object) -> bool:
    """Whether two values of an optimizer are equal; tensors where all of their elements are."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)


def _depends(what: str) -> NoReturn:
    invalid(
        f"The optimizer depends on which parameters it is given: {what} in that of a part of it.",
        "Choose a parameter's group and values by its name alone, and keep a group even where it is empty: "
        "each device makes the optimizer over its own layers.",
    )
