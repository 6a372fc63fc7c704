"""What went wrong in an export, said in terms of the user's model."""

from __future__ import annotations

import os
import re
import traceback

import torch

from ..errors import EdgeswarmError, ErrorCode

#: A bound of the tracer beyond this is no bound.
_UNBOUNDED = 2**20
#: "L['image'].size()[0]", as the tracer's conditions name the batch.
_SIZE = re.compile(r"L(\[[^\]]*\])+\.size\(\)\[0\]")
#: Two samples and more: one alone is traced as any other number is.
_BATCHES = (*range(2, 130), 1009, 4096, 65_537, _UNBOUNDED)
#: What torch says of a returned object that is no tensor and holds none that it knows of.
_FOREIGN_OUTPUT = re.compile(r"Found <class '(?:[\w.]*\.)?(\w+)'> in output")

_MASKS = "Write the choice with torch.where or masks, or decide by shapes and by the module's attributes."
_BATCH = "Take the batch from x.shape[0] where it is needed, and let nothing depend on how large it is."


def explain(model: torch.nn.Module, error: Exception) -> EdgeswarmError:
    """EXPORT_FAILED for what the tracer or the user's forward raised, naming module and line where they can be found."""
    if isinstance(error, EdgeswarmError):
        return error
    place = _user_place(model, error)
    where = f" in {place}" if place else ""
    text = str(error)
    # The tracer's own traceback, pages long, is worth showing only where nothing better is known.
    detail = ""
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in text.lower():
        message = f"The model's forward decides by the values of a tensor{where}: it has no fixed graph."
        remedy = _MASKS
    elif "specializ" in text.lower() or "ConstraintViolation" in kind or "Constraints violated" in text:
        number = re.search(r"constant \((\d+)\)", text)
        message = f"The model's forward fixes the batch size{f' to {number[1]}' if number else ''}{where}: {first_line}"
        remedy = "Look for a number in a view, reshape, expand or loop that should be x.shape[0]."
    elif foreign := _FOREIGN_OUTPUT.search(text):
        message = f"The model returns an object of the type {foreign[1]}{where}, which can't be built on a device."
        remedy = "Return tensors in tuples, lists and dicts; turn off what the loss doesn't use."
    else:
        message = f"The model can't be exported{where}: {kind}: {first_line}"
        remedy = "Call the model with one batch of the dataset in plain PyTorch first; then mend that line."
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
    """The innermost line outside torch that was running, with the path of its module: "features.3 (model.py:12: x = ..)"."""
    paths = {id(module): path or type(module).__name__ for path, module in model.named_modules()}
    skipped = (os.path.dirname(torch.__file__), os.path.dirname(__file__), "<")
    seen: BaseException | None = error
    while seen is not None:
        place = ""
        owner = ""
        for frame, line in traceback.walk_tb(seen.__traceback__):
            names = frame.f_code.co_varnames
            first = frame.f_locals.get(names[0]) if names else None
            owner = paths.get(id(first), owner)
            if not frame.f_code.co_filename.startswith(skipped):
                summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
                place = f"{owner or 'the model'} ({summary.filename}:{line}: {(summary.line or '').strip()})"
        if place:
            return place
        seen = seen.__cause__ or seen.__context__
    return ""
