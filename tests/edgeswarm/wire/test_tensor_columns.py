from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.wire.pillow_images import ImageForm
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_columns import PackedColumn, read_column
from edgeswarm.wire.tensor_samples import collate, collate_rows, decode_blocks, decode_items, encode_items


def image(width: int, height: int, mode: str = "RGB") -> Image.Image:
    noise = np.random.RandomState(width).randint(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


def test_images_of_every_size_in_one_block_come_back_as_images() -> None:
    items = [(image(width, 5), width % 3) for width in (7, 1, 300)]
    data = bytearray(encode_items(items, SamplePart.BOTH))
    [block] = decode_blocks(data)
    for row, (expected, label) in enumerate(items):
        found: Any = block.item(row)
        assert found[1] == label
        assert (found[0].mode, found[0].size) == (expected.mode, expected.size)
        assert found[0].tobytes() == expected.tobytes()
    assert len(data) < 308 * 5 * 3 + 1000  # the pixels and little else


def test_an_image_from_a_file_keeps_its_palette_and_its_transparent_colour(tmp_path: Path) -> None:
    image(20, 10).quantize(16).save(tmp_path / "a.png", transparency=3)
    with Image.open(tmp_path / "a.png") as opened:
        [found] = decode_items(encode_items([(opened, 0)], SamplePart.INPUTS))
        assert isinstance(found, Image.Image)
        assert found.mode == "P"
        assert found.convert("RGBA").tobytes() == opened.convert("RGBA").tobytes()


def test_a_damaged_image_is_an_error_that_says_so(tmp_path: Path) -> None:
    stream = io.BytesIO()
    image(200, 200).save(stream, "JPEG")
    (tmp_path / "a.jpg").write_bytes(stream.getvalue()[:2000])
    with (
        Image.open(tmp_path / "a.jpg") as damaged,
        pytest.raises(EdgeswarmError, match="image that can't be read: ") as c,
    ):
        encode_items([(damaged, 0)], SamplePart.BOTH)
    assert c.value.code is ErrorCode.DATA_FAILED


def test_bytes_and_texts_of_unequal_length_travel_as_they_are() -> None:
    items = [({"jpeg": bytes(range(n)), "name": "ä" * n + "\ud800"}, b"") for n in (3, 0, 200)]
    blocks = decode_blocks(bytearray(encode_items(items, SamplePart.BOTH)))
    assert [block.item(row) for block in blocks for row in range(block.rows)] == items
    assert len(blocks) == 1
    batch: Any = collate_rows([(blocks[0], 2), (blocks[0], 0)])
    assert batch == collate([items[2], items[0]])
    assert batch[0]["jpeg"] == [bytes(range(200)), bytes(range(3))]


def test_a_batch_of_images_says_what_to_write() -> None:
    items = [(image(4, 4), 0), (image(5, 4), 1)]
    [block] = decode_blocks(encode_items(items, SamplePart.BOTH))
    [other] = decode_blocks(encode_items(items, SamplePart.BOTH))
    with pytest.raises(EdgeswarmError, match="hold PIL images") as caught:
        collate(items)
    assert "transform(sample, generator)" in caught.value.remedy
    for second in (block, other):
        with pytest.raises(EdgeswarmError, match="hold PIL images"):
            collate_rows([(block, 0), (second, 1)])
    targets_alone = collate_rows([(decode_blocks(encode_items(items, SamplePart.TARGETS))[0], 1)])
    assert targets_alone.tolist() == [1]


def column(ends: list[int], forms: Any = None, kind: str = "image") -> PackedColumn:
    tensors = {"x": torch.zeros(12, dtype=torch.uint8), "x.ends": torch.tensor(ends, dtype=torch.int64)}
    made = read_column(kind, forms, tensors, "x")
    assert isinstance(made, PackedColumn)
    return made


@pytest.mark.parametrize("ends", [[13], [6, 4, 12], [4], [-1, 12], []])
def test_rows_that_do_not_lie_one_after_the_other_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="one after the other"):
        column(ends, kind="bytes")


@pytest.mark.parametrize(
    "form",
    [
        ["RGB", 2, 3],
        ["RGB", -2, -2],
        ["RGB", 2.0, 2],
        ["XYZ", 2, 2],
        [[], 2, 2],
        ["RGB", 2],
        ["RGB", 2, 2, None, None],
        ["RGB", 2, 2, ["RGB"], None, 1],
        ["RGB", 2, 2, None, {}, 1],
        ["RGB", 2, 2, 3, None, 1],
        ["RGB", 2, 2, None, None, 9],
        ["RGB", 2, 2, None, None, 2.0],
        3,
    ],
)
def test_a_form_that_is_none_of_these_pixels_is_refused(form: Any) -> None:
    column([12], [["RGB", 2, 2]]).leaf(0)
    with pytest.raises((ValueError, TypeError)):
        column([12], [form])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_by_a_transform_that_asks_for_it(orientation: int) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image(11, 7).save(file, "PNG", exif=exif)
    photo = Image.open(file)
    [found] = decode_items(encode_items([(photo, 0)], SamplePart.INPUTS))
    assert isinstance(found, Image.Image)
    assert found.tobytes() == photo.tobytes()
    wanted = ImageOps.exif_transpose(photo)
    for made in (found, found.convert("RGB"), found.copy()):
        turned = ImageOps.exif_transpose(made)
        assert (turned.size, turned.tobytes()) == (wanted.size, wanted.tobytes())


def test_a_photo_with_damaged_exif_is_sent_as_it_is() -> None:
    photo = image(11, 7)
    photo.info["exif"] = b"Exif\0\0nothing of that kind"
    [found] = decode_items(encode_items([(photo, 0)], SamplePart.INPUTS))
    assert isinstance(found, Image.Image)
    assert found.tobytes() == photo.tobytes()


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "PA", "I;16", "RGB", "YCbCr", "HSV", "RGBA", "CMYK", "I", "F"])
def test_every_mode_comes_back(mode: str) -> None:
    made = (
        Image.new(mode, (11, 7), 500) if mode == "I;16" else image(11, 7, "P" if mode == "PA" else mode).convert(mode)
    )
    [found] = decode_items(encode_items([(made, 0)], SamplePart.INPUTS))
    assert isinstance(found, Image.Image)
    assert (found.mode, found.size, found.tobytes(), found.getpalette()) == (
        mode,
        made.size,
        made.tobytes(),
        made.getpalette(),
    )
    assert ImageForm(mode, 11, 7).pixel_bytes == len(made.tobytes())
