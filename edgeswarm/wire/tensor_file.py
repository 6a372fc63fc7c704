"""Named tensors <-> the bytes of a safetensors file, with its metadata, without copying what is read.

    | 8 bytes: n | n bytes of JSON: {"__metadata__": {...}, "name": {"dtype", "shape", "data_offsets"}, ...} | data |

The library writes a model's weights, and samples. Reading is ours: its `load` takes bytes alone, copies them and drops the
metadata, and what comes over the network is a bytearray that tensors can live in. So are pieces: its `save` has every tensor
three times in memory, as a copy, as bytes and in the file, and a device that gives a large layer has no room for that.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
LARGEST_HEADER_BYTES = 64 * 1024**2
_ALIGNMENT = 8  # of where the data begin; each tensor lies at a multiple of its own items' size
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_tensors(tensors: Mapping[str, torch.Tensor], metadata: tuple[str, str] | None = None) -> bytes:
    """The file's bytes. Tensors may share storage, be views, need gradients or live on a GPU; their values are written.

    metadata: one name and its text. The library writes several in an order that changes from run to run, and the same
    state shall be the same bytes.
    Raises ValueError naming a tensor whose type the format or this reader doesn't have (complex, quantised, sparse).
    """
    return safetensors.torch.save(_apart(tensors), metadata=_as_metadata(metadata))


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: tuple[str, str] | None = None) -> None:
    """The same bytes as a file, which is never in memory as a whole; on the disk when this returns.

    Raises ValueError as `write_tensors` does, OSError where it can't be written.
    """
    path.touch()
    permissions = stat.S_IMODE(path.stat().st_mode)  # of this user's files: the library's are for their owner alone
    try:
        safetensors.torch.save_file(_apart(tensors), path, metadata=_as_metadata(metadata))
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(permissions)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def tensor_pieces(
    tensors: Mapping[str, torch.Tensor], metadata: tuple[str, str] | None = None
) -> tuple[int, Iterator[memoryview]]:
    """(how long such a file is, its bytes in pieces): a header, then each tensor's own memory, the widest types first.

    No tensor is copied but those that aren't contiguous or live on a card, two of them at a time at most. They must stay as they
    are until the last piece was used. The same state is the same bytes. Raises ValueError as `write_tensors` does.
    """
    for name, tensor in tensors.items():
        _check(name, tensor)
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, object] = {"__metadata__": _as_metadata(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)

    def pieces() -> Iterator[memoryview]:
        yield memoryview(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            if tensor.nbytes:
                plain = tensor.detach().to("cpu").contiguous()
                # Not `view`: a size of 1 may have any stride.
                yield plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().data

    return 8 + len(text) + end, pieces()


def _as_metadata(metadata: tuple[str, str] | None) -> dict[str, str]:
    return dict([metadata] if metadata else [])


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As the library takes them: on the CPU, contiguous, each in memory of its own."""
    plain: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        _check(name, tensor)
        value = tensor.detach().to("cpu").contiguous()
        storage = value.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != value.nbytes:
            value = value.clone()  # the library refuses what shares memory, or is a part of something larger
        seen.add(value.untyped_storage().data_ptr())
        plain[name] = value
    return plain


def _check(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
        raise ValueError(f"{name}: tensors of {tensor.dtype} ({tensor.layout}) can't be written")


def read_tensors(data: bytes | bytearray | memoryview) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """(tensors, metadata) of a file. Tensors are views of `data` where it is writable, of one copy where it isn't.

    Raises ValueError for bytes that are no such file, whatever they are.
    """
    view = memoryview(data).cast("B")
    if len(view) < 8:
        raise ValueError(f"{len(view)} bytes are no safetensors file")
    header_bytes = int.from_bytes(view[:8], "little")
    if header_bytes > min(LARGEST_HEADER_BYTES, len(view) - 8):
        raise ValueError("the header of the safetensors file is longer than the file")
    try:
        header = json.loads(bytes(view[8 : 8 + header_bytes]))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header of the safetensors file is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ValueError("the header of the safetensors file is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the metadata of the safetensors file isn't text by name")
    content = view[8 + header_bytes :]
    if content.readonly:
        content = memoryview(bytearray(content))
    return {name: _tensor(name, entry, content) for name, entry in header.items()}, metadata


def _tensor(name: str, entry: object, content: memoryview) -> torch.Tensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name}: not the description of a tensor")
    dtype = DTYPES.get(str(entry["dtype"]))
    if dtype is None:
        raise ValueError(f"{name}: unknown type {str(entry['dtype'])[:20]!r}")
    shape, offsets = _whole_numbers(name, entry["shape"]), _whole_numbers(name, entry["data_offsets"])
    elements = 1
    for size in shape:
        elements *= size
    if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] <= len(content):
        raise ValueError(f"{name}: lies outside of the file")
    if offsets[1] - offsets[0] != elements * dtype.itemsize:
        raise ValueError(f"{name}: {offsets[1] - offsets[0]} bytes don't hold shape {shape} of {dtype}")
    if elements == 0:
        return torch.empty(shape, dtype=dtype)
    part = content[offsets[0] : offsets[1]]
    tensor = torch.frombuffer(part, dtype=torch.uint8)
    if tensor.data_ptr() % dtype.itemsize:
        tensor = tensor.clone()  # some processors can't compute on what isn't aligned
    return tensor.view(dtype).view(shape)


def _whole_numbers(name: str, values: object) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 2**48 for value in values):
        raise ValueError(f"{name}: its shape or place isn't a list of whole numbers")
    return values
