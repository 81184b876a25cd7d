"""Whatever a user has -> pixels: files, Pillow's images, arrays and tensors; masks also as boxes and outlines."""

import math
import operator
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from cyctr.errors import ConfigError, DataError, NothingMarkedError
from cyctr.images.counting import count_values
from cyctr.images.imaging import image_pixels, image_values, read_image, read_values
from cyctr.inference.shapes import Box, Polygons, box_label, polygons_label
from cyctr.types import IGNORE, SMALLEST_SIDE
from cyctr.words import listed

_TOLERANCE = 1e-3  # of a float pixel, as `Episode` has it
_ASPECT = 1.01
_SOFT = 8  # values and more are the edges of a picture, not classes


ImageLike = str | os.PathLike[str] | Image.Image | NDArray[Any] | torch.Tensor
MaskLike = ImageLike | Polygons | Box


def to_image(value: ImageLike, name: str = "image") -> NDArray[np.uint8]:
    """The picture as (H, W, 3) RGB, in memory of its own.

    Transparency shows white. A file, or an image that Pillow has opened, is turned upright by its EXIF orientation.

    Args:
        value: the path of a file; an image of Pillow; an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), the fourth channel
            alpha, of uint8, uint16, bool or float in [0, 1]; a tensor (3, H, W), (1, 3, H, W) or (H, W, 3), of uint8 or
            float in [0, 1], on any device. Channels are in the order red, green, blue.
        name: what a message calls it; a file is called by its path.

    Raises:
        DataError: it is something else, too small, or holds values whose range nobody knows.
    """
    match value:
        case str() | os.PathLike():
            path = Path(os.fsdecode(value))
            pixels = read_image(path)
            _check_size(pixels.shape[:2], str(path))
        case Image.Image():
            _check_size((value.height, value.width), name)
            pixels = image_pixels(value, name)
        case torch.Tensor():
            pixels = _colours(_interleaved(value, name), name)
        case np.ndarray():
            pixels = _colours(_channels_last(value, name), name)
        case _:
            raise DataError(f"{name}: is of type {type(value).__name__}; {_EXPECTED_IMAGE}")
    return pixels


def to_label(value: MaskLike, size: tuple[int, int], class_id: int | None = None, name: str = "mask") -> NDArray[np.uint8]:
    """The mask as (H, W): 1 foreground, 0 background, 255 ignore; at least one pixel is 1.

    Without `class_id`, 1 is foreground and 255 beside it is ignored; where 255 is the only
    value beside 0, it is foreground. With it, pixels of that value are foreground and 255 is ignored, unless it is 255.

    A mask of another size than its image, of the same proportions within 1 %, is resized, each pixel taking the value of
    the nearest; what has other proportions belongs to another image, or was turned or cut, and is refused.

    Args:
        value: the path of a file; an image of Pillow, whose palette is read by its indices; an array or tensor (H, W), axes
            of length 1 before or after aside, of bool or of whole numbers from 0 to 255; `Polygons`; a `Box`. What of an
            outline or a box lies outside the image is cut off.
        size: (height, width) of the image.
        class_id: the value that is foreground; means nothing for an outline or a box.
        name: what a message calls it; a file is called by its path.

    Raises:
        DataError: it is something else, does not fit the image, marks nothing, or needs a `class_id`.
        ConfigError: `class_id` is no value that a mask may hold.
    """
    if isinstance(value, Box):
        return box_label(value, size, name)
    if isinstance(value, Polygons):
        return polygons_label(value, size, name)
    if isinstance(value, str | os.PathLike):
        name = os.fsdecode(value)
    label = _decided(_values(value, name), class_id, name)
    return _fitted(label, size, name)


_EXPECTED_IMAGE = "expected a path, a PIL image, a NumPy array or a torch.Tensor: wrap nested lists in numpy.asarray"
_EXPECTED_MASK = (
    "expected a path, a PIL image, a NumPy array, a torch.Tensor, Polygons or a Box: "
    "wrap points in Polygons([points]), corners in Box(left, top, right, bottom), nested lists of pixels in numpy.asarray"
)


def _check_size(size: tuple[int, ...], name: str) -> None:
    height, width = size
    if min(size) < SMALLEST_SIDE:
        what = "is empty" if min(size) == 0 else "is too small"
        raise DataError(
            f"{name}: {what} ({height} x {width} pixels); expected {SMALLEST_SIDE} or more on each side: enlarge it"
        )


def _on_processor(tensor: torch.Tensor, name: str) -> NDArray[Any]:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise DataError(f"{name}: is a tensor without plain pixels; expected a dense one: use .to_dense()")
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # NumPy has no bfloat16


def _interleaved(tensor: torch.Tensor, name: str) -> NDArray[Any]:
    """(3, H, W), (1, 3, H, W) or (H, W, 3) -> (H, W, 3)."""
    shape = tuple(tensor.shape)
    if tensor.dtype != torch.uint8 and not tensor.is_floating_point():
        raise DataError(f"{name}: is {tensor.dtype}; expected torch.uint8, or a float type with values in [0, 1]: convert it")
    if len(shape) == 4 and shape[:2] == (1, 3):
        return _on_processor(tensor[0].permute(1, 2, 0), name)
    if len(shape) == 3 and shape[0] == 3:
        return _on_processor(tensor.permute(1, 2, 0), name)
    if len(shape) == 3 and shape[2] == 3:
        return _on_processor(tensor, name)
    remedy = "repeat grey three times" if len(shape) == 2 or 1 in shape[:1] else "give one RGB image at a time"
    raise DataError(f"{name}: has shape {shape}; expected a tensor (3, H, W), (1, 3, H, W) or (H, W, 3): {remedy}")


def _channels_last(array: NDArray[Any], name: str) -> NDArray[Any]:
    """(H, W) or (H, W, 1, 3 or 4) -> with one axis for the channels."""
    if array.ndim == 2:
        return array[..., None]
    if array.ndim == 3 and array.shape[2] in (1, 3, 4):
        return array
    planar = array.ndim == 3 and array.shape[0] in (1, 3, 4)
    remedy = "move the channels last with .transpose(1, 2, 0)" if planar else "give one image at a time"
    raise DataError(f"{name}: has shape {array.shape}; expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4): {remedy}")


def _colours(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """(H, W, 1, 3 or 4) of any range we know -> (H, W, 3)."""
    _check_size(array.shape[:2], name)
    pixels = _bytes(array, name)
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:].astype(np.uint32)
        pixels = ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return np.ascontiguousarray(pixels) if pixels.shape[2] == 3 else np.repeat(pixels, 3, axis=2)


def _bytes(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array.astype(np.uint8)  # a copy
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)  # to the nearest, as of files
    if array.dtype.kind != "f":
        expected = "expected uint8, uint16, bool, or a float type with values in [0, 1]"
        raise DataError(f"{name}: is {array.dtype}; {expected}: convert bytes with .astype(numpy.uint8)")
    low, high = float(array.min()), float(array.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DataError(f"{name}: holds NaN or infinite pixels; expected values in [0, 1]: look at how they were made")
    if low < -_TOLERANCE or high > 1 + _TOLERANCE:
        remedy = "divide bytes by 255, and leave normalisation to the network"
        raise DataError(f"{name}: spans [{low:g}, {high:g}]; expected floats in [0, 1]: {remedy}")
    return np.rint(array.clip(0, 1).astype(np.float64) * 255).astype(np.uint8)


def _values(value: Any, name: str) -> NDArray[np.uint8]:
    """(H, W) values of a mask that is made of pixels."""
    match value:
        case str() | os.PathLike():
            return read_values(Path(os.fsdecode(value)))
        case Image.Image():
            return image_values(value, name)
        case torch.Tensor():
            array = _on_processor(value, name)
        case np.ndarray():
            array = value
        case _:
            raise DataError(f"{name}: is of type {type(value).__name__}; {_EXPECTED_MASK}")
    return _whole(_flat(array, name), name)


def _flat(array: NDArray[Any], name: str) -> NDArray[Any]:
    """(H, W) of an array whose other axes say nothing."""
    flat = array
    while flat.ndim > 2 and 1 in (flat.shape[0], flat.shape[-1]):
        flat = flat[0] if flat.shape[0] == 1 else flat[..., 0]
    if flat.ndim == 3 and flat.shape[2] == 3 and flat.size and (flat == flat[..., :1]).all():  # grey that was read as colour
        flat = flat[..., 0]
    if flat.ndim != 2:
        coloured = flat.ndim == 3 and flat.shape[2] in (3, 4)
        remedy = "give class numbers, not colours" if coloured else "give the mask of one image"
        raise DataError(f"{name}: has shape {array.shape}; expected (H, W): {remedy}")
    if flat.size == 0:
        raise DataError(f"{name}: is empty, of shape {array.shape}; expected (H, W): look at how it was made")
    return flat


def _whole(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if array.dtype.kind not in "buif":
        raise DataError(f"{name}: is {array.dtype}; expected bool, or whole numbers from 0 to 255: convert it")
    if array.dtype.kind == "f":
        strange = array != np.floor(array)  # NaN too
        if strange.any():
            remedy = "give mask > 0.5, or class numbers"
            raise DataError(f"{name}: holds {float(array[strange][0]):g}; expected whole numbers from 0 to 255: {remedy}")
    for value in (array.min(), array.max()):
        if not 0 <= value <= 255:
            raise DataError(f"{name}: holds {value:g}; expected whole numbers from 0 to 255: write 255 for pixels to ignore")
    return array.astype(np.uint8)


def _decided(values: NDArray[np.uint8], class_id: int | None, name: str) -> NDArray[np.uint8]:
    """Values of a mask -> 1 foreground, 0 background, 255 ignore."""
    found = np.flatnonzero(count_values(values)).tolist()
    if class_id is not None:
        wanted = _checked_class(class_id)
        if wanted not in found:
            raise DataError(
                f"{name}: marks nothing of class {wanted}; it holds {_numbers(found)}: choose one of these as class_id, "
                "or drop this image"
            )
        label = (values == wanted).view(np.uint8)
        if wanted != IGNORE:
            label[values == IGNORE] = IGNORE
        return label
    marked = [value for value in found if value != 0]
    if not marked:
        raise NothingMarkedError(f"{name}: marks nothing, every value is 0; mark the object, or drop this image")
    if marked == [IGNORE]:
        return (values == IGNORE).astype(np.uint8)
    if marked in ([1], [1, IGNORE]):
        return values
    remedy = "give the class_id of the object"
    if len(marked) >= _SOFT and marked[-1] == IGNORE:
        remedy += "; if these are soft edges, or a JPEG, give 0 below 128 and 255 from there on"
    expected = "expected 0 and 1, or 0 and 255, or 0, 1 and 255 (ignored)"
    raise DataError(f"{name}: holds the values {_numbers(found)}; {expected}: {remedy}")


def _checked_class(class_id: Any) -> int:
    try:
        number = operator.index(class_id)
    except TypeError:
        number = -1
    if isinstance(class_id, bool) or not 0 <= number <= 255:
        raise ConfigError(f"class_id is {class_id!r:.40}; expected a whole number from 0 to 255, as the mask holds it")
    return number


def _numbers(values: list[int]) -> str:
    return listed([str(value) for value in values])


def _fitted(label: NDArray[np.uint8], size: tuple[int, int], name: str) -> NDArray[np.uint8]:
    """The label at the image's size, by the nearest pixel, if both have the same proportions."""
    own = (label.shape[0], label.shape[1])
    if own == size:
        return label
    sizes = f"mask is {own[0]} x {own[1]}, image is {size[0]} x {size[1]} (height x width)"
    ratio = own[0] * size[1] / (own[1] * size[0])
    if max(ratio, 1 / ratio) > _ASPECT:
        turned = "turn the mask as the image is" if own == (size[1], size[0]) else "resize one to match the other"
        raise DataError(f"{name}: {sizes}; {turned}")
    rows, columns = ((2 * np.arange(new) + 1) * old // (2 * new) for old, new in zip(own, size, strict=True))
    resized = label[rows[:, None], columns]
    if not (resized == 1).any():
        raise DataError(f"{name}: {sizes}, and resized it marks nothing; mark the object at the image's size")
    return resized
