from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeswarm.wire.tensor_file import read_tensors, save_tensors, tensor_pieces, write_tensors

from ..tensors import same_bits, tensors


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), tensors(), max_size=4))
def test_tensors_come_back_bit_for_bit_and_the_library_reads_them_too(members: dict[str, torch.Tensor]) -> None:
    data = write_tensors(members, ("a", "ä"))
    for buffer in (data, bytearray(data), memoryview(data)):
        found, metadata = read_tensors(buffer)
        assert metadata == {"a": "ä"}
        assert found.keys() == members.keys()
        assert all(same_bits(found[name], members[name]) for name in members)
    library = safetensors.torch.load(data)
    assert all(same_bits(library[name], members[name]) for name in members)


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), tensors(), max_size=4))
def test_pieces_are_such_a_file(members: dict[str, torch.Tensor]) -> None:
    size, pieces = tensor_pieces(members, ("a", "ä"))
    data = b"".join(pieces)
    assert len(data) == size
    found, metadata = read_tensors(data)
    assert metadata == {"a": "ä"}
    library = safetensors.torch.load(data)
    for tensors_of in (found, library):
        assert tensors_of.keys() == members.keys()
        assert all(same_bits(tensors_of[name], members[name]) for name in members)
    again = dict(reversed(members.items()))
    assert b"".join(tensor_pieces(again, ("a", "ä"))[1]) == data


def test_pieces_are_the_tensors_own_memory_where_that_is_contiguous() -> None:
    base = torch.arange(6.0, requires_grad=True)
    assert b"".join(tensor_pieces({"one": torch.arange(10.0)[5::5]})[1])[-4:] == bytes(base[5].detach().numpy())
    members = {"wide": base, "narrow": base.detach().to(torch.bfloat16), "turned": torch.arange(6.0).view(2, 3).T}
    size, pieces = tensor_pieces(members)
    header, *data = pieces
    assert [len(piece) for piece in data] == [24, 24, 12]
    own = [torch.frombuffer(piece, dtype=torch.uint8).data_ptr() for piece in data]
    assert own[1] == base.data_ptr()
    assert own[2] == members["narrow"].data_ptr()
    found, _ = read_tensors(b"".join([header, *data]))
    assert found["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert size == sum(map(len, [header, *data]))


def test_a_writable_buffer_is_not_copied() -> None:
    buffer = bytearray(write_tensors({"a": torch.zeros(4)}))
    tensors, _ = read_tensors(buffer)
    buffer[-4:] = b"\x00\x00\x80\x3f"
    assert tensors["a"].tolist() == [0, 0, 0, 1]


def test_what_shares_memory_or_is_a_view_is_written_as_values() -> None:
    base = torch.arange(6.0, requires_grad=True)
    found, _ = read_tensors(write_tensors({"a": base, "b": base, "c": base[2:4], "d": base.detach().expand(2, 6)}))
    assert found["b"].tolist() == base.tolist()
    assert found["c"].tolist() == [2, 3]
    assert found["d"].shape == (2, 6)


def test_a_file_has_the_same_bytes(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    members = {"b": base, "a": base[2:4], "none": torch.empty(0, 3), "half": torch.ones(3, dtype=torch.bfloat16)}
    save_tensors(tmp_path / "file", members, ("format", "pt"))
    assert (tmp_path / "file").read_bytes() == write_tensors(members, ("format", "pt"))
    (tmp_path / "another").write_bytes(b"")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "another").stat().st_mode


def test_a_file_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        save_tensors(tmp_path / "no folder" / "file", {"a": torch.zeros(1)})


def test_types_that_cannot_be_written_are_named() -> None:
    with pytest.raises(ValueError, match=r"^spectrum: tensors of torch.complex64"):
        write_tensors({"spectrum": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(ValueError, match=r"^spectrum: tensors of torch.complex64"):
        tensor_pieces({"spectrum": torch.zeros(2, dtype=torch.complex64)})


def file(header: object, data: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: object) -> dict[str, object]:
    return {"t": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        (2**60).to_bytes(8, "little") + b"{}",
        file(b"{"),
        file(b"[" * 100_000),
        file([]),
        file({"t": 1}),
        file({"__metadata__": {"a": 1}}),
        file(entry(dtype="F128")),
        file(entry(dtype=["F32"])),
        file(entry(shape=[2, -2])),
        file(entry(shape=[2.0, 2])),
        file(entry(shape=[2**47] * 9)),
        file(entry(shape="22")),
        file(entry(data_offsets=[0, 20])),
        file(entry(data_offsets=[8, 0])),
        file(entry(data_offsets=[0])),
        file(entry(data_offsets=[0, 12])),
        file(entry(more=1)),
    ],
)
def test_wild_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_tensors(data)


def test_unaligned_tensors_are_read_all_the_same() -> None:
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    header |= {"b": {"dtype": "F64", "shape": [1], "data_offsets": [1, 9]}}
    found, _ = read_tensors(bytearray(file(header, b"\x07" + b"\x00\x00\x00\x00\x00\x00\xf0\x3f")))
    assert (found["a"].item(), found["b"].item()) == (7, 1.0)
