"""`Job(weights=FILE)`: the model's initial weights out of a file, in place of those that its builder drew. Imports torch.

    weights.safetensors    names as in model.state_dict(); tied weights once or under each of their names
    weights.pt, .pth       torch.save(model.state_dict(), ...), read without running anything that the file may hold

The file of a Hugging Face model may carry that model's older names: what its library makes of them is taken.
It stays on this machine: what the devices get is the layers.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.model.export import quiet
from edgeswarm.wire.tensor_file import read_tensors

TORCH_SUFFIXES = (".pt", ".pth", ".bin")
SHOWN_NAMES = 3
_PREFIX_OF_WRAPPED = "module."

_log = logging.getLogger(__name__)


def load_initial_weights(job: Job, model: torch.nn.Module, *, folder: Path) -> tuple[str, ...]:
    """Copy every tensor of the job's `weights` into the model, in place; the model's dtypes stay.

    folder: of the job file. Returns warnings: which conversion loses digits.
    Raises EdgeswarmError (WEIGHTS) for a file that can't be read, and for one whose names or shapes are not those of the
    model's state_dict; then the model is as it was.
    """
    if job.weights is None or not isinstance(model, torch.nn.Module):  # what is no module, check_job names
        return ()
    path = folder / Path(job.weights).expanduser()
    wanted = {
        name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
    }
    found = _without_unsaved(model, wanted, _read(path))
    if _names_differ(wanted, found):
        found = _renamed_by_its_library(model, found)
    _check_names(path, wanted, found)
    _check_values(path, wanted, found)
    with torch.no_grad():
        for name, value in found.items():
            wanted[name].copy_(value)
    return _warnings(path, wanted, found)


def _read(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "doesn't exist"
        remedy = "Name the file in it." if path.is_dir() else "Correct the path: it is relative to the job file."
        raise EdgeswarmError(ErrorCode.WEIGHTS, f"The job's weights {path} {kind}.", remedy)
    try:
        return _read_torch(path) if path.suffix in TORCH_SUFFIXES else _read_safetensors(path)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise EdgeswarmError(
            ErrorCode.WEIGHTS,
            f"The job's weights {path} can't be read: {problem}.",
            "Copy the file anew if it isn't whole. It is a .safetensors file, or torch.save(model.state_dict(), 'FILE.pt').",
        ) from error


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        # The tensors stay in the file until they are copied: pages of the disk's cache, not of this process.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    tensors, _ = read_tensors(memoryview(content))
    return tensors


def _read_torch(path: Path) -> dict[str, torch.Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # it may be anything: bytes that are no such file, or objects that are no tensors
        refused = "Weights only load failed" in str(error)
        problem = "it holds more than tensors" if refused else str(error).partition("\n")[0].strip().rstrip(".")
        raise ValueError(problem or type(error).__name__) from error
    if not isinstance(content, Mapping):
        raise ValueError(f"it holds a {type(content).__name__}, not tensors by name")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(f"its entry {str(name)[:60]!r} is a {type(value).__name__}, not a tensor")
    return dict(content)


def _without_unsaved(
    model: torch.nn.Module, wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Without the buffers that this model makes itself; an older version of its code may have saved them."""
    own = {name for name, _ in model.named_buffers(remove_duplicate=False)}.difference(wanted)
    return {name: value for name, value in found.items() if name not in own}


def _missing(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> list[str]:
    """What the file doesn't give under any of its names."""
    given = {id(wanted[name]) for name in found if name in wanted}
    return [name for name, value in wanted.items() if id(value) not in given]


def _unknown(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name in found if name not in wanted]


def _names_differ(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> bool:
    return bool(_missing(wanted, found) or _unknown(wanted, found))


def _renamed_by_its_library(model: Any, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under this model's names, where Hugging Face's own loading knows all of them; else as they are."""
    if not (hasattr(model, "from_pretrained") and hasattr(model, "config")):
        return found
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            loaded, report = type(model).from_pretrained(
                None,
                config=model.config,
                state_dict=dict(found),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except Exception as error:  # the library's own: the names are then told as the file has them
        _log.debug("transformers does not load these weights: %s", error)
        return found
    if any(report.values()):
        return found
    return {name: value for name, value in loaded.state_dict().items() if isinstance(value, torch.Tensor)}


def _check_names(path: Path, wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    missing, unknown = _missing(wanted, found), _unknown(wanted, found)
    if not missing and not unknown:
        return
    problems = []
    if missing:
        problems.append(f"lack {len(missing)} of the model's {len(wanted)} tensors ({_first_of(missing)})")
    if unknown:
        problems.append(f"have {len(unknown)} that the model doesn't have ({_first_of(unknown)})")
    remedy = "Save model.state_dict() of the very model that the job builds, or build the one that the file is of."
    if unknown and all(name.startswith(_PREFIX_OF_WRAPPED) for name in unknown):
        remedy = (
            f"Save model.module.state_dict(): the names begin with {_PREFIX_OF_WRAPPED!r} since the model was wrapped."
        )
    raise EdgeswarmError(ErrorCode.WEIGHTS, f"The job's weights {path} {' and '.join(problems)}.", remedy)


def _check_values(path: Path, wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    other = [name for name, value in found.items() if value.shape != wanted[name].shape]
    if other:
        shapes = [f"{name} is {list(found[name].shape)}, not {list(wanted[name].shape)}" for name in other]
        raise EdgeswarmError(
            ErrorCode.WEIGHTS,
            f"The job's weights {path} have other shapes than the model in {len(other)} of {len(wanted)} tensors "
            f"({_first_of(shapes)}).",
            "Build the model in the sizes that the file has (its classes, its width), or give another file.",
        )
    seen: dict[int, str] = {}
    for name, value in found.items():
        first = seen.setdefault(id(wanted[name]), name)
        if first != name and not torch.equal(found[first].to(value.dtype), value):
            raise EdgeswarmError(
                ErrorCode.WEIGHTS,
                f"The job's weights {path} have different values for {first} and {name}, which are one in the model.",
                "Leave one of the two out of the file, or untie the two in the model.",
            )


def _warnings(path: Path, wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """One for each pair of dtypes of which the model's holds less."""
    narrowed: dict[tuple[str, str], list[str]] = {}
    for name, value in found.items():
        into = wanted[name].dtype
        if torch.promote_types(value.dtype, into) != into:
            narrowed.setdefault((_dtype(value.dtype), _dtype(into)), []).append(name)
    return tuple(
        f"The weights in {path.name} are {source}, the model is {into}: {len(names)} tensors lose digits."
        for (source, into), names in narrowed.items()
    )


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_of(texts: Sequence[str]) -> str:
    rest = len(texts) - SHOWN_NAMES
    return ", ".join(texts[:SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")
