"""What the job's optimizer keeps of each parameter, before any was trained: for the memory of a plan, and for a checkpoint.

    parameters     w0 w1 w2 ...   b0 b1 b2 ...      by their group in the optimizer and their number of dimensions
    one step       w2             b0                on copies of the smallest of each kind
    kept of w*     row_var, col_var, step           Adafactor, say
    kept of b*     variance, step

Optimizers don't treat all alike: some factorise what they keep of matrices, and a job may give momentum to its weights alone.
Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.job_file import user_code
from edgeswarm.snapshot import LayerState, layer_pieces

from .job_errors import invalid
from .optimizer_checks import same_value

# Of a parameter with fewer elements a counter can't be told from what is kept of each element.
_TELLING_ELEMENTS = 8
_MOST_COPIED_ELEMENTS, _CORNER = 1 << 20, 64


@dataclass(frozen=True)
class OptimizerState:
    """kept: by parameter that is trained, the names of what is kept of it. factor: bytes of all that by those of all trained
    parameters. warnings: of what it keeps elsewhere, where no checkpoint finds it.
    """

    kept: Mapping[str, frozenset[str]]
    factor: float
    warnings: tuple[str, ...] = ()

    def check_goes_on(self, found: Mapping[str, Mapping[str, object]]) -> None:
        """found: what a checkpoint has, by parameter; of one that isn't trained any more it is no matter.

        Raises EdgeswarmError (CHECKPOINT) where this optimizer keeps otherwise.
        """
        for name, values in found.items():
            wanted = self.kept.get(name)
            if wanted is not None and values and frozenset(values) != wanted:
                raise EdgeswarmError(
                    ErrorCode.CHECKPOINT,
                    f"The optimizer is not the one of the checkpoint: it keeps {_listed(wanted)} of {name} now, "
                    f"and kept {_listed(values)}.",
                    "Give the job back its optimizer to go on, or move the unfinished training away and train from the "
                    "beginning.",
                )


def try_optimizer_state(job: Job, model: torch.nn.Module, *, folder: Path) -> OptimizerState:
    """Found out by one step. State of another size than the parameter's (AdamW's counter) doesn't grow with the model: 0 bytes.

    A second one tells what it counts beside that. folder: of the job's files. Raises EdgeswarmError (JOB_FILE; JOB_INVALID where
    a checkpoint couldn't hold what is kept, or it is a gradient itself).
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with user_code(folder, "making the optimizer"):
        kinds = _kinds(job.optimizer(list(trained.items())), trained)
    smallest: dict[tuple[int, int], str] = {}
    for name, kind in kinds.items():
        before = smallest.get(kind)
        if before is None or _telling(trained[name]) < _telling(trained[before]):
            smallest[kind] = name
    copies = {name: _small_copy(trained[name]) for name in trained if name in smallest.values()}
    for copy in copies.values():
        copy.grad = torch.zeros_like(copy)
    with user_code(folder, "taking an optimizer step"):
        optimizer = job.optimizer(list(copies.items()))
        optimizer.step()
        beside = _beside(optimizer)
        for copy in copies.values():
            copy.grad = torch.zeros_like(copy) if copy.grad is None else copy.grad  # a step may end with zero_grad()
        optimizer.step()
    state = {name: optimizer.state.get(copy, {}) for name, copy in copies.items()}
    for name, copy in copies.items():
        _check_no_gradient_is_kept(name, state[name], copy)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    try:
        layer_pieces(LayerState(round=1, optimizer=state, groups=groups))
    except ValueError as error:
        raise EdgeswarmError(
            ErrorCode.JOB_INVALID,
            f"What the optimizer keeps fits in no checkpoint: {error}.",
            "Let its state and its groups' values be numbers, texts, tensors, and lists, tuples and dicts of them.",
        ) from error
    parameter_bytes = sum(parameter.nbytes for parameter in trained.values())
    state_bytes = sum(
        trained[name].nbytes * _factor(state[smallest[kind]], copies[smallest[kind]]) for name, kind in kinds.items()
    )
    return OptimizerState(
        kept={name: frozenset(state[smallest[kinds[name]]]) if name in kinds else frozenset() for name in trained},
        factor=state_bytes / parameter_bytes,
        warnings=_warnings(optimizer, beside),
    )


def _check_no_gradient_is_kept(name: str, state: Mapping[str, object], parameter: torch.nn.Parameter) -> None:
    """Of each parameter's gradients one follows the other in the same memory."""
    if parameter.grad is None:
        return
    memory = parameter.grad.untyped_storage().data_ptr()
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.numel() and value.untyped_storage().data_ptr() == memory:
            invalid(
                f"The optimizer keeps the gradient of {name} itself, as {key}: the next round writes its own over it.",
                "Let it keep a copy: grad.clone().",
            )


def _beside(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """What it has beside the state of its parameters, by name: numbers and tensors of its own, its groups' values where hooks of
    the user's may change them, and optimizers within it.
    """
    own: dict[str, object] = {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in vars(optimizer).items()
        if isinstance(value, (int, float, torch.Tensor))
    }
    inner = {name: value for name, value in vars(optimizer).items() if isinstance(value, torch.optim.Optimizer)}
    own |= {name: len(value.state) for name, value in inner.items() if value.state is not optimizer.state}
    if getattr(optimizer, "_optimizer_step_post_hooks", None):  # some optimizers that wrap others don't call __init__
        own |= {
            f"{key} of its groups": [group[key] for group in optimizer.param_groups if key in group]
            for key in ("lr", "momentum", "betas", "weight_decay")
        }
    return own


def _warnings(optimizer: torch.optim.Optimizer, before: Mapping[str, object]) -> tuple[str, ...]:
    """before: what it had beside its state before the last step, and after another one."""
    now = _beside(optimizer)
    counted = [name for name, value in now.items() if name in before and not same_value(before[name], value)]
    inner = [
        name for name, value in vars(optimizer).items() if isinstance(value, torch.optim.Optimizer) and now.get(name)
    ]
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    others = [
        "tensors that are no parameters" if isinstance(key, torch.Tensor) else str(key)
        for key in optimizer.state
        if id(key) not in held
    ]
    found = list(dict.fromkeys([*counted, *inner, *others]))
    if not found:
        return ()
    return (
        f"The optimizer counts or keeps {', '.join(found)} beside what it keeps of each parameter. That is in no checkpoint, and "
        "begins anew with --resume and where shares of the samples move (which --keep-shares leaves out). Let it be computed "
        "from what is kept of the parameters, or stand in the groups' values; a learning rate goes into learning_rate_schedule.",
    )


def _kinds(optimizer: torch.optim.Optimizer, trained: Mapping[str, torch.nn.Parameter]) -> dict[str, tuple[int, int]]:
    """By parameter its group and its number of dimensions; of what the optimizer trains."""
    names = {id(parameter): name for name, parameter in trained.items()}
    return {
        names[id(parameter)]: (index, parameter.dim())
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }


def _small_copy(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Of a large one a corner: a table of words may be the only one of its group, and its state several times as large."""
    if parameter.numel() > _MOST_COPIED_ELEMENTS:
        parameter = parameter[tuple(slice(0, _CORNER) for _ in parameter.shape)]  # type: ignore[assignment]
    return torch.nn.Parameter(parameter.detach().clone())


def _telling(parameter: torch.nn.Parameter) -> tuple[bool, int]:
    """The less, the sooner it is tried."""
    return parameter.numel() < _TELLING_ELEMENTS, parameter.numel()


def _factor(state: Mapping[str, object], parameter: torch.nn.Parameter) -> float:
    """Bytes kept by bytes of the parameter, of what is as large as it."""
    return sum(
        value.element_size() / parameter.element_size()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() == parameter.numel()
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
