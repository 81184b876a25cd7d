"""Files and pixels -> arrays and back. Whatever is wrong with a file becomes a one-line DataError that names it.

Pillow's plugins are called by name, not through `Image.open`: only these formats are ever parsed, and no warning
about large images is raised, which worker threads could not silence safely.
"""

import ctypes
import io
import logging
import math
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from cyctr.errors import DataError
from cyctr.limits import IMAGE_BYTES, IMAGE_PIXELS, JPEG_SIDE, check_bytes, check_image
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
_INFLATION = 1032  # bytes that deflate makes of one, at most
# blocks so large that the C library returns them to the system: of smaller ones a thread would keep what an image has taken
Image.core.set_block_size(2**26)  # type: ignore[attr-defined]

_WIDTH, _HEIGHT, _ORIENTATION = 256, 257, 274  # tags of TIFF, and of EXIF, which is a TIFF without pixels
_SIDEWAYS = (5, 6, 7, 8)


def read_image(path: Path) -> NDArray[np.uint8]:
    """The picture as (H, W, 3) RGB: upright by its EXIF orientation, over white where transparent, the first frame only.

    Grey of 16 bits is divided by 257, so that 65535 becomes 255. Colour profiles are not applied.

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
    """(height, width) of what `read_image` gives, from the header alone: the pixels may still turn out damaged."""
    with _opened(path) as (image, orientation):
        width, height = _stored_size(image)
    return (width, height) if orientation in _SIDEWAYS else (height, width)


def find_images(folder: Path, complain: Callable[[str], None] | None = None) -> dict[str, Path]:
    """The images that lie in a folder, by name without ending, sorted; hidden files and subfolders are passed over.

    Args:
        folder: where.
        complain: told of two files of one name, of which the first is then kept; without it the first such pair is an error.
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

    The C library of Linux keeps what is freed, in pieces too small for a large image. Other systems need no such call.
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
    with _opened(path) as (image, orientation):
        if isinstance(image, PngImageFile):
            _check_png(path)
        release_memory(math.prod(_stored_size(image)))
        pixels = convert(path, image)
        if isinstance(image, TiffImageFile):  # Pillow has turned these
            return pixels
    del image  # turning takes memory, too
    return _upright(pixels, orientation)


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
        raise DataError(f"{name}: cannot be read ({_reason(error)}); open it again, or give the path of its file") from error
    exif = image.info.get("exif")
    if isinstance(image, TiffImageFile) or not isinstance(exif, bytes):
        return pixels
    return _upright(pixels, _orientation(exif))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ImageFile, int]]:
    """The image, its pixels yet to be decoded, and its EXIF orientation. What fails inside becomes a DataError."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise DataError(f"{path}: is a folder; expected an image file")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise DataError(f"{path}: is not a regular file; expected an image file")
        if status.st_size == 0:
            raise DataError(f"{path}: holds 0 bytes; copy or download it again")
        check_bytes(path, status.st_size, IMAGE_BYTES, "an image")
        with path.open("rb") as file:
            image, orientation = _identified(path, file)
            width, height = _stored_size(image)
            check_image(path, (height, width))
            yield image, orientation
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; expected an image: check the path") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{path}: has too many pixels; expected at most {IMAGE_PIXELS}: make it smaller") from error
    except Exception as error:  # Pillow's parsers meet damage with whatever they trip over
        if isinstance(error, OSError) and error.errno is not None:  # the system's word; Pillow's own have no number
            raise DataError(f"{path}: cannot be read ({error.strerror}); expected a readable image file") from error
        raise DataError(f"{path}: damaged or cut short ({_reason(error)}); copy or download it again") from error


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


class _Jpeg(JpegImageFile):
    def getexif(self) -> Image.Exif:
        return Image.Exif()  # Pillow looks for the resolution in it, and warns where it is damaged, as it often is


@cache
def _quieten_libtiff() -> None:
    """Stops libtiff from writing lines of its own on the screen; what it finds becomes an error of Pillow's as well."""
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # without any, Python shows what Pillow says beside its errors
    packages = Path(PIL.__file__).parents[1]
    for path in (*packages.glob("pillow.libs/libtiff*"), *packages.glob("PIL/.dylibs/libtiff*")):
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path))  # the one that Pillow has loaded
            for function in (library.TIFFSetErrorHandler, library.TIFFSetWarningHandler):
                function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
                function(None)


class _Tiff(TiffImageFile):
    def getexif(self) -> Image.Exif:
        """The orientation alone: what Pillow turns the image by, nothing that could be damaged, no XMP."""
        exif = Image.Exif()
        exif[_ORIENTATION] = self.tag_v2.get(_ORIENTATION, 1)
        return exif

    def load_prepare(self) -> None:
        self.im = Image.new(self.mode, _stored_size(self), None).im  # Pillow, making it, warns of large images
        super().load_prepare()


_SIGNATURES: dict[bytes, type[ImageFile]] = {
    b"\xff\xd8\xff": _Jpeg,
    b"\x89PNG\r\n\x1a\n": PngImageFile,
    b"RIFF": WebPImageFile,
    b"BM": BmpImageFile,
    b"II*\0": _Tiff,
    b"MM\0*": _Tiff,
    b"II+\0": _Tiff,  # of more than 4 GB
    b"MM\0+": _Tiff,
    b"GIF87a": GifImageFile,
    b"GIF89a": GifImageFile,
}


def _identified(path: Path, file: IO[bytes]) -> tuple[ImageFile, int]:
    start = file.read(8)
    reader = next((reader for signature, reader in _SIGNATURES.items() if start.startswith(signature)), None)
    if reader is None:
        raise DataError(f"{path}: is not a JPEG, PNG, WebP, BMP, TIFF or GIF image, whatever its name; convert it to one")
    exif = _png_exif(file) if reader is PngImageFile else None
    if reader is _Tiff:
        _quieten_libtiff()
    file.seek(0)
    image = reader(file)
    if isinstance(image, TiffImageFile):
        return image, image.tag_v2.get(_ORIENTATION, 1)
    return image, _orientation(image.info.get("exif", b"") if exif is None else exif)


def _stored_size(image: ImageFile) -> tuple[int, int]:
    """(width, height) before any turn. Pillow's versions disagree on whether a TIFF's `size` is that."""
    if isinstance(image, TiffImageFile):
        return image.tag_v2[_WIDTH], image.tag_v2[_HEIGHT]
    return image.size


def _png_exif(file: IO[bytes]) -> bytes:
    """The EXIF block of a PNG, which may come after the pixels: Pillow finds it there only once they are decoded."""
    file.seek(8)
    while len(header := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", header)
        if kind == b"eXIf":
            return file.read(length)
        file.seek(length + 4, io.SEEK_CUR)  # and its checksum
    return b""


def _check_png(path: Path) -> None:
    """Raises DataError for a PNG whose header promises more than its file can hold: decoding would make room for all of it."""
    with path.open("rb") as file:
        width, height, depth, colour = struct.unpack(">IIBB", file.read(26)[16:])
    size = path.stat().st_size
    row = -(-width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] // 8)
    if row * height > _INFLATION * size:
        raise DataError(f"{path}: damaged or cut short ({height} x {width} pixels in {size} bytes); copy or download it again")


def _orientation(exif: bytes) -> int:
    """What an EXIF block says of how the camera was held, 1 to 8; 1 where it says nothing or is damaged."""
    exif = exif.removeprefix(b"Exif\0\0").removeprefix(b"Exif\0\0")  # some writers repeat it
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, entry)
            if tag == _ORIENTATION and kind == 3:  # an unsigned short
                return int(value)
    except struct.error:
        pass
    return 1


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turns stored pixels the way they are to be seen."""
    if orientation in _SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])


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
