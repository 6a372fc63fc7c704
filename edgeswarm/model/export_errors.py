"""What went wrong in an export, said in terms of the user's model."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

import torch

from ..errors import EdgeswarmError, ErrorCode
from .export_watch import place_of

#: A bound of the tracer beyond this is no bound.
_UNBOUNDED = 2**20
#: "L['image'].size()[0]", as the tracer's conditions name the batch.
_SIZE = re.compile(r"L(\[[^\]]*\])+\.size\(\)\[0\]")
#: Two samples and more: one alone is traced as any other number is.
_BATCHES = (*range(2, 130), 1009, 4096, 65_537, _UNBOUNDED)
#: What torch says of a returned object that is no tensor and holds none that it knows of.
_FOREIGN_OUTPUT = re.compile(r"Found <class '(?:[\w.]*\.)?(\w+)'> in output")

#: A symbolic size as the tracer prints it.
_SYMBOL = re.compile(r"\bs\d+\b")
_FIXED_VIEW = re.compile(r"is invalid for input of size .*\bs\d+\b")
#: What torch says where a tensor of the model was written to behind the tracer's back.
_WRITTEN_DATA = re.compile(
    r"fake tensor in the exported program constant.*model attribute: ([\w.]*?)lifted_tensor", re.DOTALL
)

_PLAIN_FIRST = "Call the model with one batch of the dataset in plain PyTorch first; then mend that line."
_ADVICE = (
    (
        re.compile(r"numpy"),
        "Use torch's functions there: what numpy computes is not part of the graph and has no gradient.",
    ),
    (
        re.compile(r"leaf Variable"),
        "Leave parameters to the optimizer, and compute into new tensors in the model's forward.",
    ),
    (
        re.compile(r"cuda", re.IGNORECASE),
        "Name no device in the model's forward; a new tensor's device is that of the input.",
    ),
)
_MASKS = "Write the choice with torch.where or masks, or decide by shapes and by the module's attributes."
_BATCH = "Take the batch from x.shape[0] where it is needed, and let nothing depend on how large it is."


def explain(model: torch.nn.Module, error: Exception, *, fixed_at: str = "") -> EdgeswarmError:
    """EXPORT_FAILED for what the tracer or the user's forward raised, naming module and line where they can be found.

    fixed_at: where the batch size became a number, if it did.
    """
    told = next((raised for raised in _chain(error) if isinstance(raised, EdgeswarmError)), None)
    if told is not None:
        return told
    place = _user_place(model, error)
    where = f" in {place}" if place else ""
    text = str(error)
    first_line = next((line.strip().rstrip(".") for line in text.splitlines() if line.strip()), type(error).__name__)
    said = f"{type(error).__name__}: {_SYMBOL.sub('batch', first_line)}"
    kind = type(error).__name__
    # The tracer's own traceback, pages long, is worth showing only where nothing better is known.
    detail = ""
    if "DataDependent" in kind or "data-dependent" in text.lower():
        message = f"The model's forward decides by the values of a tensor{where}: it has no fixed graph."
        remedy = _MASKS
    elif "specializ" in text.lower() or "ConstraintViolation" in kind or "Constraints violated" in text:
        number = re.search(r"constant \((\d+)\)", text)
        where = f" in {fixed_at}" if fixed_at else where
        message = f"The model's forward fixes the batch size{f' to {number[1]}' if number else ''}{where}."
        remedy = "Look for a number in a view, reshape, expand or loop that should be x.shape[0]; len(x) is such a number, too."
        detail = text
    elif _FIXED_VIEW.search(first_line):
        message = f"The model's forward fixes the batch size{where}: {said}."
        remedy = _BATCH
    elif foreign := _FOREIGN_OUTPUT.search(text):
        message = f"The model returns an object of the type {foreign[1]}{where}, which can't be built on a device."
        remedy = "Return tensors in tuples, lists and dicts; turn off what the loss doesn't use."
    elif lifted := _WRITTEN_DATA.search(text):
        owner = lifted[1].strip(".")
        message = (
            f"The model writes to the memory of one of its tensors{f' in {owner}' if owner else ''} (through .data?)."
        )
        remedy = "Leave parameters to the optimizer, and compute into new tensors in the model's forward."
    else:
        message = f"The model can't be exported{where}: {said}."
        remedy = next((advice for pattern, advice in _ADVICE if pattern.search(first_line)), _PLAIN_FIRST)
        detail = "".join(traceback.format_exception(error))
    return EdgeswarmError(ErrorCode.EXPORT_FAILED, message, remedy, detail=detail)


def refuse_fixed_batch(program: torch.export.ExportedProgram) -> None:
    """Raises EXPORT_FAILED where the graph holds for some batch sizes only (`if x.shape[0] > 5:` in a forward)."""
    for bounds in program.range_constraints.values():
        if bool(bounds.lower > 2) or bool(bounds.upper < _UNBOUNDED):
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The model's forward does one thing for batches of {bounds.lower} to {bounds.upper} and another beyond.",
                _BATCH,
            )
    for condition in getattr(program, "_guards_code", ()):
        if not holds_for_batches(_SIZE.sub("batch", condition)):
            raise EdgeswarmError(
                ErrorCode.EXPORT_FAILED,
                f"The model's graph holds only where {_SIZE.sub('the batch size', condition)}.",
                _BATCH,
            )


def holds_for_batches(condition: str) -> bool:
    """Whether a condition of the tracer is none: "((12*batch) % batch) == 0" is true of every batch."""
    try:
        # The text is torch's own, of this process, made of numbers, operators and the names of sizes.
        return all(eval(condition, {"__builtins__": {}, "batch": batch}) for batch in _BATCHES)
    except Exception:  # it is about something else than the batch
        return False


def _user_place(model: torch.nn.Module, error: BaseException) -> str:
    """The innermost line outside torch that was running, with the path of its module."""
    places = (place_of(model, traceback.walk_tb(raised.__traceback__)) for raised in _chain(error))
    return next((place for place in places if place), "")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it came from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
