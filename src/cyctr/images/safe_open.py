"""A file -> an opened picture, whose pixels are not decoded yet, and how it has to be turned. Only known formats are parsed.

Pillow's plugins are called by name, not through `Image.open`. This also raises no warning about large images, which
worker threads could not silence safely.
"""

import ctypes
import io
import logging
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

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
from cyctr.limits import IMAGE_BYTES, IMAGE_PIXELS, check_bytes, check_image

_INFLATION = 1032  # bytes that deflate makes of one, at most
_WIDTH, _HEIGHT, _ORIENTATION = 256, 257, 274  # tags of TIFF, and of EXIF, which is a TIFF without pixels
SIDEWAYS = (5, 6, 7, 8)
_ROWS = 256  # that Pillow is given at a time


@contextmanager
def opened(path: Path) -> Iterator[tuple[ImageFile, int]]:
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
            width, height = stored_size(image)
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
        raise DataError(f"{path}: damaged or cut short ({reason(error)}); copy or download it again") from error


def reason(error: Exception) -> str:
    """The first line of an error, or its kind where it says nothing."""
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__


class _Jpeg(JpegImageFile):
    def getexif(self) -> Image.Exif:
        return Image.Exif()  # Pillow looks for the resolution in it, and warns where it is damaged, as it often is


@cache
def _quieten_libtiff() -> None:
    """Stops libtiff from writing lines of its own on the screen; its errors become errors of Pillow as well."""
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # without any, Python shows what Pillow says beside its errors
    for library in _of_pillow("libtiff"):
        with suppress(AttributeError):
            for function in (library.TIFFSetErrorHandler, library.TIFFSetWarningHandler):
                function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
                function(None)


def _of_pillow(name: str) -> Iterator[ctypes.CDLL]:
    """The libraries of a name that Pillow has brought along, and has loaded."""
    packages = Path(PIL.__file__).parents[1]
    for path in (*packages.glob(f"pillow.libs/{name}[-.]*"), *packages.glob(f"PIL/.dylibs/{name}[-.]*")):
        with suppress(OSError):
            yield ctypes.CDLL(str(path))


class _Tiff(TiffImageFile):
    def getexif(self) -> Image.Exif:
        """The orientation only, by which Pillow turns the image; the other tags may be damaged."""
        exif = Image.Exif()
        exif[_ORIENTATION] = self.tag_v2.get(_ORIENTATION, 1)
        return exif

    def load_prepare(self) -> None:
        self.im = Image.new(self.mode, stored_size(self), None).im  # Pillow, making it, warns of large images
        super().load_prepare()


@cache
def _libwebp() -> ctypes.CDLL | None:
    """The library of Pillow that decodes WebP; None where there is no such file."""
    for library in _of_pillow("libwebp"):
        with suppress(AttributeError):
            library.WebPGetInfo.argtypes = [ctypes.c_char_p, ctypes.c_size_t, *[ctypes.POINTER(ctypes.c_int)] * 2]
            for function in (library.WebPDecodeRGBInto, library.WebPDecodeRGBAInto):
                function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
                function.restype = ctypes.c_void_p
            return library
    return None


class _WebP(WebPImageFile):
    """Pillow's reader of animations holds four such pictures at once; one that stands still is decoded without it."""

    _still = False

    def load(self) -> Any:
        if not (self._still or self.is_animated):
            self._still = self._decoded()
        return ImageFile.load(self) if self._still else super().load()

    def load_prepare(self) -> None:
        self._decoder = None  # has given its bytes, and would hold two more such pictures while Pillow makes its own
        super().load_prepare()

    def _decoded(self) -> bool:
        """Decodes the pixels; false where that must be Pillow's work, which also says what is wrong with a file."""
        library, (width, height), channels = _libwebp(), self.size, len(self.mode)
        if library is None or self.fp is None:
            return False
        self.fp.seek(0)
        content, there = self.fp.read(), (ctypes.c_int(), ctypes.c_int())
        if not library.WebPGetInfo(content, len(content), *there) or (there[0].value, there[1].value) != (width, height):
            return False
        pixels = np.empty((height, width, channels), np.uint8)
        decode = library.WebPDecodeRGBAInto if channels == 4 else library.WebPDecodeRGBInto
        if not decode(content, len(content), pixels.ctypes.data, pixels.nbytes, width * channels):
            return False
        del content
        self._decoder = None
        whole = Image.new(self.mode, self.size, None)
        for top in range(0, height, _ROWS):
            whole.paste(Image.fromarray(pixels[top : top + _ROWS]), (0, top))
        self.im, self.tile = whole.im, []
        return True


_SIGNATURES: dict[bytes, type[ImageFile]] = {
    b"\xff\xd8\xff": _Jpeg,
    b"\x89PNG\r\n\x1a\n": PngImageFile,
    b"RIFF": _WebP,
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
    return image, orientation_of(image.info.get("exif", b"") if exif is None else exif)


def stored_size(image: ImageFile) -> tuple[int, int]:
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


def check_png(path: Path) -> None:
    """Raises DataError for a PNG whose header promises more than its file can hold: decoding would make room for all of it."""
    with path.open("rb") as file:
        width, height, depth, colour = struct.unpack(">IIBB", file.read(26)[16:])
    size = path.stat().st_size
    row = -(-width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] // 8)
    if row * height > _INFLATION * size:
        raise DataError(f"{path}: damaged or cut short ({height} x {width} pixels in {size} bytes); copy or download it again")


def orientation_of(exif: bytes) -> int:
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


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turns stored pixels the way they are to be seen."""
    if orientation in SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])
