"""PIL images as plain data and back: pixels as they are, and beside them what else makes the image.

    <PIL.Image.Image RGB 64x48>   <->   ImageForm("RGB", 64, 48), 9216 bytes

Of what a file said beyond that (its format, EXIF, colour profile) only how the image is to be turned goes along, for transforms
that ask for it. Pillow is imported when the first image is made: who has no images needs no Pillow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

# Bits of one pixel, by mode.
_BITS = {
    "1": 1,
    "L": 8,
    "P": 8,
    "LA": 16,
    "La": 16,
    "PA": 16,
    "I;16": 16,
    "I;16L": 16,
    "I;16B": 16,
    "I;16N": 16,
    "RGB": 24,
    "YCbCr": 24,
    "LAB": 24,
    "HSV": 24,
    "RGBA": 32,
    "RGBa": 32,
    "RGBX": 32,
    "CMYK": 32,
    "I": 32,
    "F": 32,
}


_ORIENTATION_TAG = 0x0112  # in EXIF
_ORIENTATIONS = range(1, 9)
_NO_EXTRA = [None, None, 1]  # most images: no palette, no transparency, upright


@dataclass(frozen=True)
class ImageForm:
    """An image without its pixels. palette: (its raw mode, its colours); transparency: the colour that is none. orientation: as
    in EXIF, from 1, which is upright, to 8; pixels lie as they did in the file.
    """

    mode: str
    width: int
    height: int
    palette: tuple[str, bytes] | None = None
    transparency: int | bytes | tuple[int, ...] | None = None
    orientation: int = 1

    @property
    def pixel_bytes(self) -> int:
        """Rows of less than whole bytes are filled up."""
        return -(-self.width * _BITS[self.mode] // 8) * self.height

    def to_json(self) -> list[Any]:
        palette = None if self.palette is None else [self.palette[0], self.palette[1].hex()]
        transparency: Any = self.transparency
        if isinstance(transparency, bytes):
            transparency = transparency.hex()
        extra = [palette, transparency, self.orientation]
        return [self.mode, self.width, self.height, *([] if extra == _NO_EXTRA else extra)]

    @classmethod
    def from_json(cls, document: Any) -> ImageForm:
        """Raises ValueError for what describes no image."""
        try:
            complete = [*document, *_NO_EXTRA] if len(document) == 3 else document
            mode, width, height, palette, transparency, orientation = complete
            if isinstance(transparency, str):
                transparency = bytes.fromhex(transparency)
            elif isinstance(transparency, list):
                transparency = tuple(int(value) for value in transparency)
            elif transparency is not None and type(transparency) is not int:
                raise ValueError("transparency is a number, numbers or bytes")
            colours = None if palette is None else (str(palette[0]), bytes.fromhex(palette[1]))
            sizes_are_sound = all(type(size) is int and 0 <= size < 2**31 for size in (width, height))
            if mode not in _BITS or not sizes_are_sound:
                raise ValueError(f"no image has the mode {str(mode)[:10]!r} and the size {width} x {height}")
            if type(orientation) is not int or orientation not in _ORIENTATIONS:
                raise ValueError(f"no image has the orientation {str(orientation)[:10]}")
        except (TypeError, IndexError, KeyError) as error:
            raise ValueError(f"not the description of an image: {error!r}") from error
        return cls(mode, width, height, colours, transparency, orientation)


def is_image(value: object) -> bool:
    """Whether it is a PIL image, as far as can be said without importing Pillow."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


def take_apart(image: Image) -> tuple[ImageForm, bytes]:
    """(form, pixels), read from the image's file where that has not been done.

    Raises ValueError for a mode that is not known here, and what Pillow raises for a damaged file.
    """
    image.load()
    if image.mode not in _BITS:
        raise ValueError(f"images of mode {image.mode} can't be sent")
    palette = None
    if image.palette is not None and image.mode in ("P", "PA"):
        raw_mode, colours = image.palette.getdata()
        palette = (raw_mode, bytes(colours))
    transparency = image.info.get("transparency")
    form = ImageForm(image.mode, image.width, image.height, palette, transparency, _orientation(image))
    return form, image.tobytes()


def _orientation(image: Image) -> int:
    try:
        found = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # damaged, as Pillow has many ways to say: nobody may ask for it
        return 1
    return found if found in _ORIENTATIONS else 1


def put_together(form: ImageForm, pixels: bytes) -> Image:
    """The image. Raises ImportError where Pillow is missing, ValueError where the pixels aren't those of the form."""
    from PIL import Image as pillow

    if len(pixels) != form.pixel_bytes:
        raise ValueError(f"{len(pixels)} bytes aren't the pixels of {form.width} x {form.height} in {form.mode}")
    image = pillow.frombytes(form.mode, (form.width, form.height), pixels)
    if form.palette is not None:
        image.putpalette(form.palette[1], form.palette[0])
        if image.mode != form.mode:
            raise ValueError(f"a palette of {form.palette[0]} doesn't fit an image of mode {form.mode}")
    if form.transparency is not None:
        image.info["transparency"] = form.transparency
    if form.orientation != 1:
        exif = image.getexif()
        exif[_ORIENTATION_TAG] = form.orientation
        image.info["exif"] = exif.tobytes()  # for what is made of the image
    return image
