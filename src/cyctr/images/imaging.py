"""Files and pixels -> arrays and back. Whatever is wrong with a file becomes a one-line DataError that names it."""

import ctypes
import io
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from cyctr.errors import DataError
from cyctr.images.safe_open import SIDEWAYS, check_png, opened, orientation_of, reason, stored_size, upright
from cyctr.limits import JPEG_SIDE, check_image
from cyctr.storage import write_atomically

EXTENSIONS: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
"""The endings of the images we look for, in lower case."""

UNREAD: tuple[str, ...] = (
    ".heic",
    ".heif",
    ".avif",
    ".jxl",
    ".jp2",
    ".dng",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".raf",
    ".orf",
    ".rw2",
)
"""Endings of photographs that we do not read."""

_LARGE = 2**24  # pixels of an image for which memory is returned to the system
_STRIP = 2**20  # pixels that are converted at a time: whole images would be held several times
# blocks so large that the C library returns them to the system: of smaller ones a thread would keep what an image has taken
Image.core.set_block_size(2**26)  # type: ignore[attr-defined]


def read_image(path: Path) -> NDArray[np.uint8]:
    """The picture as (H, W, 3) RGB: upright by its EXIF orientation, over white where transparent, the first frame only.

    Grey of 16 bits is divided by 257: 65535 becomes 255. Colour profiles are not applied.

    Raises:
        DataError: the file is missing, damaged, too large, or holds numbers whose range nobody knows (float, 32 bits).
    """
    return _read(path, _colours)


def read_reduced(path: Path, side: int) -> NDArray[np.uint8]:
    """What `read_image` gives, or less where that is quicker: the longer side still has `side` pixels, if the image has."""

    def convert(name: Path | str, image: Image.Image) -> NDArray[np.uint8]:
        image.draft("RGB", (side, side))  # of a JPEG, which decodes to half, a quarter or an eighth by leaving out waves
        return _colours(name, image)

    return _read(path, convert)


def read_values(path: Path) -> NDArray[np.uint8]:
    """The values of a mask as (H, W): indices of a palette, never its colours; grey as it is; 0 and 1 of a 1-bit image.

    It is turned like its image, by its EXIF orientation. Grey of 2 or 4 bits spans 0 to 255, as the PNG standard has it.

    Raises:
        DataError: the file is missing, damaged or too large, or holds colours or values above 255.
    """
    return _read(path, _values)


def image_pixels(image: Image.Image, name: str) -> NDArray[np.uint8]:
    """What `read_image` gives, of a picture that Pillow has opened or made; of several frames the one it stands on.

    It is turned by the EXIF orientation that it still carries: `ImageOps.exif_transpose` takes that away, `convert` does not.

    Args:
        image: of any mode but floating point.
        name: what a message calls it.
    """
    return _of_pillow(image, name, _colours)


def image_values(image: Image.Image, name: str) -> NDArray[np.uint8]:
    """What `read_values` gives, of a mask that Pillow has opened or made."""
    return _of_pillow(image, name, _values)


def image_size(path: Path) -> tuple[int, int]:
    """(height, width) of what `read_image` gives, from the header only: the pixels may still be damaged."""
    with opened(path) as (image, orientation):
        width, height = stored_size(image)
    return (width, height) if orientation in SIDEWAYS else (height, width)


def find_images(folder: Path, complain: Callable[[str], None] | None = None) -> dict[str, Path]:
    """The images that lie in a folder, by name without ending, sorted; hidden files and subfolders are passed over.

    Args:
        folder: where.
        complain: told of two files of one name; the first is kept. Without it such a pair is an error.
    """
    try:
        visible = [path for path in sorted(folder.iterdir(), key=lambda path: path.name) if not path.name.startswith(".")]
        images = [path for path in visible if path.suffix.lower() in EXTENSIONS and not path.is_dir()]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); expected a folder of images") from error
    found: dict[str, Path] = {}
    for path in images:
        first = found.setdefault(path.stem, path)
        if first is not path:
            problem = f"{folder}: {first.name} and {path.name} share the name {path.stem!r}; rename or remove one"
            if complain is None:
                raise DataError(problem)
            complain(problem)
    return dict(sorted(found.items()))


def release_memory(pixels: int) -> None:
    """Returns freed memory to the system, before work on an image of so many pixels, if they are many.

    The C library of Linux keeps freed memory in pieces too small for a large image. Other systems need no such call.
    """
    if pixels > _LARGE:
        with suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)


def write_values(path: Path, values: NDArray[np.uint8]) -> None:
    """Writes (H, W) class numbers as a PNG in the colours of VOC, whole or not at all.

    Args:
        path: ends in .png; its folder is made if need be, and a file that is there is replaced.
        values: what `read_values` gives back.
    """
    if values.dtype != np.uint8 or values.ndim != 2 or values.size == 0:
        raise DataError(f"{path}: cannot hold {values.dtype} of shape {values.shape}; expected uint8 of shape (H, W)")
    image = Image.fromarray(values)
    image.putpalette(voc_palette())  # turns grey values into indices
    _write_png(path, image)


def write_mask(path: Path, mask: NDArray[np.bool_]) -> None:
    """Writes a (H, W) mask as a grey PNG, 255 where it marks and 0 elsewhere, whole or not at all."""
    _write_png(path, Image.fromarray(mask.view(np.uint8) * np.uint8(255)))


def write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Writes (H, W, 3) RGB as the JPEG or PNG that the name ends in, whole or not at all."""
    if path.suffix.lower() == ".png":
        _write_png(path, Image.fromarray(pixels))
    elif path.suffix.lower() in (".jpg", ".jpeg"):
        if max(pixels.shape) > JPEG_SIDE:
            raise DataError(
                f"{path}: cannot hold {pixels.shape[0]} x {pixels.shape[1]} pixels; a JPEG has sides of at most {JPEG_SIDE}: "
                "end the name in .png"
            )
        _write(path, Image.fromarray(pixels), "JPEG", quality=90)
    else:
        raise DataError(f"{path}: pictures are written as PNG or JPEG; end the name in .png or .jpg")


def _write_png(path: Path, image: Image.Image) -> None:
    if path.suffix.lower() != ".png":
        raise DataError(f"{path}: masks are written as PNG, which keeps every value; end the name in .png")
    _write(path, image, "PNG", compress_level=6)


def _write(path: Path, image: Image.Image, kind: str, **options: int) -> None:
    content = io.BytesIO()
    image.save(content, kind, **options)
    try:
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def voc_palette() -> list[int]:
    """Red, green and blue of the 256 colours of VOC: bits 0, 1, 2 of a number are their top bits, 3, 4, 5 the next ones."""
    return [
        sum((index >> (3 * place + channel) & 1) << (7 - place) for place in range(3))
        for index in range(256)
        for channel in range(3)
    ]


_Convert = Callable[[Path | str, Image.Image], NDArray[np.uint8]]


def _read(path: Path, convert: _Convert) -> NDArray[np.uint8]:
    with opened(path) as (image, orientation):
        if isinstance(image, PngImageFile):
            check_png(path)
        release_memory(math.prod(stored_size(image)))
        pixels = convert(path, image)
        if isinstance(image, TiffImageFile):  # Pillow has turned these
            return pixels
    del image  # turning takes memory, too
    return upright(pixels, orientation)


def _of_pillow(image: Image.Image, name: str, convert: _Convert) -> NDArray[np.uint8]:
    width, height = image.size
    if min(width, height) == 0:
        raise DataError(f"{name}: is empty ({height} x {width} pixels); expected a picture: look at how it was made")
    check_image(name, (height, width))
    try:
        pixels = convert(name, image)
    except DataError:
        raise
    except Exception as error:  # a file that is closed or damaged, a mode that Pillow does not convert
        raise DataError(f"{name}: cannot be read ({reason(error)}); open it again, or give the path of its file") from error
    exif = image.info.get("exif")
    if isinstance(image, TiffImageFile) or not isinstance(exif, bytes):
        return pixels
    return upright(pixels, orientation_of(exif))


def _strips(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """An image in parts of whole rows, and which rows those are."""
    width, height = image.size
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        yield slice(top, bottom), image if rows >= height else image.crop((0, top, width, bottom))


def _colours(path: Path | str, image: Image.Image) -> NDArray[np.uint8]:
    top = 4095 if "I;12" in str(getattr(image, "tile", "")) else 65535  # gone once loaded
    image.load()
    if image.mode == "F":
        raise DataError(f"{path}: holds floating-point pixels, whose range nobody knows; save it with 8 bits per channel")
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for rows, part in _strips(image):
        pixels[rows] = _grey(path, part, top)[..., None] if image.mode.startswith("I") else np.asarray(_seen(part))
    return pixels


def _seen(image: Image.Image) -> Image.Image:
    """The colours of an image, over white where it is transparent."""
    if image.has_transparency_data:
        image = image.convert("LA") if image.mode == "La" else image
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey(path: Path | str, image: Image.Image, top: int) -> NDArray[np.uint8]:
    """Grey of 0 to `top` as 0 to 255, rounded; Pillow's own conversion would clip it."""
    values = _within(path, image, top, "save it with 8 bits per channel").astype(np.uint32)
    grey = ((values * 255 + top // 2) // top).astype(np.uint8)
    grey[values == image.info.get("transparency", -1)] = 255
    return grey


def _values(path: Path | str, image: Image.Image) -> NDArray[np.uint8]:
    remedy = "save the mask as a palette or grey PNG of 8 bits"
    deep = ";16" in str(getattr(image, "tile", ""))  # of 16-bit colours Pillow keeps the upper half
    image.load()
    grey, whole = image.mode in ("1", "L", "P"), image.mode.startswith("I")
    if not (grey or whole) and (deep or image.mode not in ("LA", "PA", "RGB", "RGBA")):
        kind = f"16-bit {image.mode}" if deep else image.mode
        raise DataError(f"{path}: holds {kind} pixels; expected class numbers from 0 to 255: {remedy}")
    white = whole and all(np.isin(np.asarray(part), (0, 65535)).all() for _, part in _strips(image))
    values = np.empty((image.height, image.width), np.uint8)
    for rows, part in _strips(image):
        if white:  # 0 and 65535 are the 0 and 255 of 16 bits
            values[rows] = np.asarray(part) // 257
        elif whole:
            values[rows] = _within(path, part, 255, remedy)
        else:
            values[rows] = np.asarray(part) if grey else _one_channel(path, image, part, rows.start, remedy)
    return values


def _one_channel(path: Path | str, image: Image.Image, part: Image.Image, top: int, remedy: str) -> NDArray[np.uint8]:
    """(h, W) of some rows of an image, from the `top` one on, whose colours are grey and whose alpha is the same all over."""
    channels = np.asarray(part)  # (h, W, 2 to 4)
    if image.mode.endswith("A"):
        alpha = np.asarray(image.crop((0, 0, 1, 1)))[0, 0, -1]
        if (channels[..., -1] != alpha).any():
            raise DataError(f"{path}: is transparent in places; expected class numbers from 0 to 255: {remedy}")
        channels = channels[..., :-1]
    coloured = (channels != channels[..., :1]).any(-1)
    if coloured.any():
        row, column = np.unravel_index(coloured.argmax(), coloured.shape)
        raise DataError(
            f"{path}: shows the colour {tuple(channels[row, column].tolist())} at row {top + row}, column {column}; "
            f"expected class numbers from 0 to 255: {remedy}"
        )
    return channels[..., 0]


def _within(path: Path | str, image: Image.Image, top: int, remedy: str) -> NDArray[np.integer]:
    values = np.asarray(image)
    for value in (values.min(), values.max()):
        if not 0 <= value <= top:
            raise DataError(f"{path}: holds the value {value}; expected 0 to {top}: {remedy}")
    return values
