import io
import math
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from making import most_memory
from PIL import Image, ImageDraw, ImageOps

from cyctr.errors import ConfigError, DataError
from cyctr.images.imaging import EXTENSIONS, voc_palette
from cyctr.inference.inputs import to_image, to_label
from cyctr.inference.shapes import Box, Polygons
from cyctr.limits import IMAGE_PIXELS
from cyctr.types import SMALLEST_SIDE

ORIENTATION = 274
SIZE = (10, 14)


def noise(*shape, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


def smooth(height=24, width=32):
    """A picture that JPEG keeps well, no two corners alike."""
    rows, columns = np.mgrid[:height, :width]
    planes = [rows * 255 // height, columns * 255 // width, (rows + columns) * 255 // (height + width)]
    return np.stack(planes, -1).astype(np.uint8)


def exif(orientation):
    block = Image.Exif()
    block[ORIENTATION] = orientation
    return block


def saved(pixels, kind, **options):
    content = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(content, kind, **options)
    content.seek(0)
    return content


def put(path, pixels, **options):
    kind = {".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".webp": "WEBP"}.get(path.suffix, path.suffix[1:].upper())
    path.write_bytes(saved(pixels, kind, **options).getvalue())
    return path


def square(value=1, dtype=np.uint8, size=SIZE):
    """(H, W) with a value in a rectangle, all else 0."""
    values = np.zeros(size, dtype)
    values[2:5, 3:9] = value
    return values


FOREGROUND = square()


def coloured(values):
    mask = Image.fromarray(values)
    mask.putpalette(voc_palette())
    return mask


# images


def forms(pixels, tmp_path):
    """One picture in all the ways a user may have it."""
    planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    path = put(tmp_path / "photo.png", pixels)
    return {
        "path": path,
        "text": str(path),
        "pillow": Image.fromarray(pixels),
        "opened": Image.open(path),
        "with alpha": Image.fromarray(pixels).convert("RGBA"),
        "array": pixels,
        "strided": np.repeat(pixels, 2, axis=1)[:, ::2],
        "fortran": np.asfortranarray(pixels),
        "opaque": np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)]),
        "uint16": pixels.astype(np.uint16) * 257,
        "big-endian": (pixels.astype(np.uint16) * 257).astype(">u2"),
        **{f"float{bits}": (pixels / 255).astype(f"f{bits // 8}") for bits in (16, 32, 64)},
        "tensor": planes,
        "batch of one": planes[None],
        "channels last": planes.permute(1, 2, 0),
        "float tensor": (planes / 255).requires_grad_(),
        "half tensor": (planes / 255).half(),
        "double tensor": planes.double() / 255,
    }


def test_a_picture_is_the_same_pixels_however_it_is_given(tmp_path):
    pixels = noise(9, 12, 3)
    for form, value in forms(pixels, tmp_path).items():
        image = to_image(value)
        assert image.dtype == np.uint8 and image.shape == (9, 12, 3), form
        np.testing.assert_array_equal(image, pixels, err_msg=form)


def test_what_comes_back_is_in_one_piece_and_shares_no_memory_with_what_was_given(tmp_path):
    pixels = noise(9, 12, 3)
    for form, value in forms(pixels, tmp_path).items():
        before = to_image(value)
        image = to_image(value)
        assert image.flags.c_contiguous and image.flags.writeable, form
        image[:] = 0
        np.testing.assert_array_equal(to_image(value), before, err_msg=form)


@pytest.mark.parametrize("shape", [(9, 12), (9, 12, 1)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, bool])
def test_grey_becomes_three_equal_channels(shape, dtype):
    grey = noise(*shape)
    given = {np.uint16: grey.astype(np.uint16) * 257, np.float32: grey / np.float32(255), bool: grey > 127}.get(dtype, grey)
    expected = (grey > 127) * 255 if dtype is bool else grey
    np.testing.assert_array_equal(to_image(given), np.dstack([expected.reshape(9, 12)] * 3))


def test_bfloat16_is_taken_within_its_precision():
    planes = torch.from_numpy(noise(3, 9, 12))
    found = to_image((planes / 255).bfloat16()).transpose(2, 0, 1)
    assert np.abs(found.astype(int) - planes.numpy()).max() <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_gpu_are_fetched():
    planes = torch.from_numpy(noise(3, 9, 12))
    np.testing.assert_array_equal(to_image(planes.cuda()), to_image(planes))


def test_16_bits_are_divided_to_the_nearest_not_clipped():
    deep = np.zeros((8, 8), np.uint16)
    deep[0, :7] = [128, 129, 257, 300, 32767, 32768, 65535]
    assert to_image(deep)[0, :7, 0].tolist() == [0, 1, 1, 1, 127, 128, 255]


@pytest.mark.parametrize("alpha", [0, 1, 100, 254, 255])
@pytest.mark.parametrize("form", ["array", "float", "pillow", "file"])
def test_what_is_transparent_shows_white(form, alpha, tmp_path):
    pixels = np.full((8, 9, 4), (200, 100, 0, alpha), np.uint8)
    given = {
        "array": lambda: pixels,
        "float": lambda: pixels / 255,
        "pillow": lambda: Image.fromarray(pixels),
        "file": lambda: put(tmp_path / "logo.png", pixels),
    }[form]()
    expected = [round((value * alpha + 255 * (255 - alpha)) / 255) for value in (200, 100, 0)]
    assert np.abs(to_image(given).astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"]
)
def test_pillows_images_of_every_mode_are_seen(mode):
    source = Image.fromarray(smooth())
    if mode in ("PA", "La", "RGBa"):
        source = source.convert({"PA": "P", "La": "LA", "RGBa": "RGBA"}[mode])
    if mode == "LAB":
        from PIL import ImageCms

        profiles = [ImageCms.createProfile(space) for space in ("sRGB", "LAB")]
        source = ImageCms.profileToProfile(source, *profiles, outputMode="LAB")
    image = source if source.mode == mode else source.convert(mode)
    found = to_image(image)
    assert found.shape == (24, 32, 3) and found.dtype == np.uint8
    assert np.ptp(found) > 200
    if mode in ("RGBA", "RGBa", "RGBX", "CMYK"):
        np.testing.assert_array_equal(found, smooth())


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_pillows_grey_of_many_bits_is_divided(mode):
    deep = noise(8, 9, dtype=np.uint16)
    image = Image.fromarray(deep.astype({"I;16": "<u2", "I;16B": ">u2", "I": "i4"}[mode]))
    np.testing.assert_array_equal(to_image(image)[..., 0], np.round(deep / 257))


def test_pillows_floating_point_images_are_refused():
    with pytest.raises(DataError, match=r"cup: holds floating-point pixels.*save it with 8 bits"):
        to_image(Image.new("F", (9, 9)), "cup")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_opened_image_is_turned_upright_exactly_once(kind, orientation):
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    content = saved(smooth(), kind, exif=exif(orientation), **options)
    expected = np.array(ImageOps.exif_transpose(Image.open(content)).convert("RGB"))
    loaded = Image.open(content)
    loaded.load()
    ways = {
        "opened": Image.open(content),
        "loaded": loaded,
        "converted": Image.open(content).convert("RGB"),
        "copied": Image.open(content).copy(),
        "turned before": ImageOps.exif_transpose(Image.open(content)),
    }
    for way, image in ways.items():
        np.testing.assert_array_equal(to_image(image), expected, err_msg=way)
        np.testing.assert_array_equal(to_image(image), expected, err_msg=f"{way}, seen twice")


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_a_file_and_the_image_that_pillow_opens_from_it_are_the_same(orientation, tmp_path):
    path = put(tmp_path / "photo.jpg", smooth(), exif=exif(orientation))
    np.testing.assert_array_equal(to_image(path), to_image(Image.open(path)))
    assert to_image(path).shape[:2] == ((24, 32) if orientation == 3 else (32, 24))


def test_a_note_called_exif_turns_nothing():
    image = Image.fromarray(smooth())
    image.info["exif"] = "II*"
    np.testing.assert_array_equal(to_image(image), smooth())


def test_a_file_of_16_bits_is_divided(tmp_path):
    deep = noise(8, 9, dtype=np.uint16)
    np.testing.assert_array_equal(to_image(put(tmp_path / "scan.png", deep))[..., 1], np.round(deep / 257))


def test_a_file_in_cmyk_is_seen_in_its_colours(tmp_path):
    path = put(tmp_path / "print.tif", Image.new("CMYK", (9, 8), (255, 0, 0, 0)))
    assert np.unique(to_image(path).reshape(-1, 3), axis=0).tolist() == [[0, 255, 255]]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animated_file_the_first_frame_counts(kind, tmp_path):
    frames = [Image.new("RGB", (9, 8), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    options = {"lossless": True} if kind == "WEBP" else {}
    path = tmp_path / "moving"
    path.write_bytes(saved(frames[0], kind, save_all=True, append_images=frames[1:], **options).getvalue())
    assert np.unique(to_image(path).reshape(-1, 3), axis=0).tolist() == [[255, 0, 0]]


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def test_a_small_file_that_claims_endless_pixels_is_refused_unread(tmp_path):
    header = struct.pack(">IIBBBBB", 40000, 40000, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))))
    with pytest.raises(DataError, match=rf"bomb\.png: has 40000 x 40000 pixels; expected at most {IMAGE_PIXELS}"):
        to_image(path)


def test_an_image_of_pillow_that_claims_endless_pixels_is_refused_unread():
    class Endless(Image.Image):
        size = width, height = 40000, 40000

    with pytest.raises(DataError, match=rf"cup: has 40000 x 40000 pixels; expected at most {IMAGE_PIXELS}"):
        to_image(Endless(), "cup")


def test_an_image_whose_file_was_closed_or_cut_short_gives_one_line(tmp_path):
    path = put(tmp_path / "photo.jpg", noise(64, 64, 3))
    with Image.open(path) as closed:
        pass
    cut = Image.open(io.BytesIO(path.read_bytes()[:2000]))
    for image in (closed, cut):
        with pytest.raises(DataError, match=r"^cup: cannot be read \(.*\); open it again") as caught:
            to_image(image, "cup")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\nrest"])
def test_a_file_that_is_no_picture_is_named(content, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    for read in (to_image, lambda path: to_label(path, SIZE)):
        with pytest.raises(DataError, match=rf"^{re.escape(str(path))}: "):
            read(path)


def test_a_path_that_leads_nowhere_is_named(tmp_path):
    for value in (tmp_path / "none.jpg", str(tmp_path / "none.jpg")):
        with pytest.raises(DataError, match=r"none\.jpg: no such file"):
            to_image(value)
        with pytest.raises(DataError, match=r"none\.jpg: no such file"):
            to_label(value, SIZE)
    with pytest.raises(DataError, match="is a folder"):
        to_image(tmp_path)


@pytest.mark.parametrize("ending", EXTENSIONS)
def test_paths_of_every_ending_are_read(ending, tmp_path):
    path = tmp_path / f"photo{ending.upper()}"
    path.write_bytes(saved(smooth(), "PNG").getvalue())
    np.testing.assert_array_equal(to_image(path), smooth())


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0, 255, r"spans \[0, 255\]"), (-2, 2.5, r"spans \[-2, 2\.5\]"), (0, math.nan, "NaN"), (0, math.inf, "infinite")],
)
@pytest.mark.parametrize("make", [np.float32, lambda value: torch.tensor(value, dtype=torch.float32)], ids=["array", "tensor"])
def test_floats_outside_0_to_1_are_refused(make, low, high, words):
    pixels = np.full((9, 12, 3), low, np.float32)
    pixels[4, 4] = high
    with pytest.raises(DataError, match=rf"^cup: .*{words}.*\[0, 1\]"):
        to_image(make(pixels), "cup")


def test_floats_a_hair_outside_0_to_1_are_taken_as_0_and_1():
    pixels = np.zeros((8, 8))
    pixels[0, :2] = (-1e-4, 1 + 1e-4)
    assert to_image(pixels)[0, :2, 0].tolist() == [0, 255]


@pytest.mark.parametrize("value", [noise(9, 12).astype(np.int64), np.zeros((9, 9), complex), np.full((9, 9), "x")])
def test_arrays_of_other_types_are_refused_by_name(value):
    with pytest.raises(DataError, match=rf"^cup: is {re.escape(str(value.dtype))}; expected uint8.*astype"):
        to_image(value, "cup")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_tensors_of_other_types_are_refused_by_name(dtype):
    with pytest.raises(DataError, match=rf"^cup: is {dtype}; expected torch\.uint8"):
        to_image(torch.zeros(3, 9, 9, dtype=dtype), "cup")


@pytest.mark.parametrize("tensor", [torch.zeros(3, 9, 9).to_sparse(), torch.zeros(3, 9, 9, device="meta")])
def test_tensors_without_pixels_are_refused(tensor):
    with pytest.raises(DataError, match="cup: is a tensor without plain pixels"):
        to_image(tensor, "cup")


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((), "one image"),
        ((9,), "one image"),
        ((9, 9, 2), "one image"),
        ((2, 9, 9, 3), "one image"),
        ((3, 9, 9), "transpose"),
        ((1, 9, 9), "transpose"),
    ],
)
def test_arrays_of_other_shapes_are_refused(shape, remedy):
    with pytest.raises(DataError, match=rf"cup: has shape {re.escape(str(shape))}; expected \(H, W\), .*{remedy}"):
        to_image(np.zeros(shape, np.uint8), "cup")


@pytest.mark.parametrize(
    ("shape", "remedy"), [((9, 9), "grey"), ((1, 9, 9), "grey"), ((2, 3, 9, 9), "one RGB"), ((4, 9, 9), "one RGB"), ((), "one")]
)
def test_tensors_of_other_shapes_are_refused(shape, remedy):
    with pytest.raises(DataError, match=rf"cup: has shape {re.escape(str(shape))}; expected a tensor \(3, H, W\).*{remedy}"):
        to_image(torch.zeros(shape, dtype=torch.uint8), "cup")


@pytest.mark.parametrize(("size", "what"), [((SMALLEST_SIDE - 1, 20), "too small"), ((20, 1), "too small"), ((0, 20), "empty")])
def test_pictures_too_small_are_refused_whatever_they_are(size, what, tmp_path):
    pixels = np.zeros((*size, 3), np.uint8)
    forms = [pixels, torch.from_numpy(pixels).permute(2, 0, 1), Image.new("RGB", size[::-1])]
    if what != "empty":
        forms.append(put(tmp_path / "cup.png", pixels))
    for form in forms:
        with pytest.raises(DataError, match=rf"cup.*: is {what} \({size[0]} x {size[1]} pixels\); expected {SMALLEST_SIDE} or"):
            to_image(form, "cup")


def test_the_smallest_picture_is_taken():
    assert to_image(np.zeros((SMALLEST_SIDE, SMALLEST_SIDE), np.uint8)).shape == (SMALLEST_SIDE, SMALLEST_SIDE, 3)


@pytest.mark.parametrize("value", [None, [[0, 1]], b"bytes", 3, io.BytesIO()])
def test_anything_else_is_refused_by_its_type(value):
    with pytest.raises(DataError, match=rf"^cup: is of type {type(value).__name__}; expected a path, a PIL image"):
        to_image(value, "cup")


# masks


def mask_forms(values, tmp_path):
    path = put(tmp_path / "mask.png", values)
    tensor = torch.from_numpy(values.copy())
    return {
        "path": path,
        "text": str(path),
        "pillow": Image.fromarray(values),
        "palette": coloured(values),
        "palette file": put(tmp_path / "palette.png", coloured(values)),
        "grey in colour": Image.fromarray(values).convert("RGB"),
        "array": values,
        "trailing axis": values[..., None],
        "leading axis": values[None],
        "three channels": np.dstack([values] * 3),
        "int64": values.astype(np.int64),
        "float": values.astype(np.float32),
        "tensor": tensor,
        "tensor with a channel": tensor[None],
        "batch of one": tensor[None, None],
        "float tensor": tensor.float(),
    }


MEANINGS = {  # the values of a mask, and what they mean
    "0, 1": ([0, 1], {1}, set()),
    "0, 255": ([0, 255], {255}, set()),
    "0, 1, 255": ([0, 1, 255], {1}, {255}),
    "1, 255": ([1, 255], {1}, {255}),
    "full of 1": ([1], {1}, set()),
    "full of 255": ([255], {255}, set()),
}


@pytest.mark.parametrize("meaning", MEANINGS)
def test_the_values_of_a_mask_say_what_is_meant_however_it_is_given(meaning, tmp_path):
    allowed, foreground, ignored = MEANINGS[meaning]
    values = np.random.default_rng(0).choice(allowed, SIZE).astype(np.uint8)
    expected = np.where(np.isin(values, list(ignored)), 255, np.isin(values, list(foreground)))
    for form, value in mask_forms(values, tmp_path).items():
        label = to_label(value, SIZE)
        assert label.dtype == np.uint8 and label.shape == SIZE, form
        np.testing.assert_array_equal(label, expected, err_msg=form)


def test_bool_masks_and_1_bit_images_mark_what_is_true(tmp_path):
    mask = square().astype(bool)
    bits = Image.fromarray(mask)
    assert bits.mode == "1"
    for value in (mask, torch.from_numpy(mask), bits, put(tmp_path / "bits.png", bits)):
        np.testing.assert_array_equal(to_label(value, SIZE), FOREGROUND)


def test_a_label_shares_no_memory_with_the_mask():
    values = square()
    to_label(values, SIZE)[:] = 9
    np.testing.assert_array_equal(values, FOREGROUND)


@pytest.mark.parametrize("class_id", [0, 1, 2, 38, 254, 255, np.int64(2)])
def test_with_a_class_its_value_is_foreground_and_255_is_ignored_unless_it_is_the_class(class_id, tmp_path):
    values = np.random.default_rng(0).choice([0, 1, 2, 38, 254, 255], SIZE).astype(np.uint8)
    expected = [[1 if v == class_id else 255 if v == 255 else 0 for v in row] for row in values.tolist()]
    for form, value in mask_forms(values, tmp_path).items():
        np.testing.assert_array_equal(to_label(value, SIZE, class_id), expected, err_msg=form)


@pytest.mark.parametrize("values", [[0, 2], [2], [0, 1, 2], [0, 2, 255], [0, 254], [1, 2]], ids=str)
def test_other_values_need_a_class_and_are_listed(values):
    mask = np.resize(np.array(values, np.uint8), SIZE)
    found = ", ".join(map(str, values))
    with pytest.raises(DataError, match=rf"^cup: holds the values {found}; expected 0 and 1, .*class_id"):
        to_label(mask, SIZE, name="cup")


def test_soft_edges_are_recognised_and_many_values_are_not_all_listed():
    with pytest.raises(DataError, match=r"holds the values 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.; .*soft edges.*128"):
        to_label(np.arange(256, dtype=np.uint8).reshape(16, 16), (16, 16))


def test_a_class_that_is_not_there_is_an_error_that_lists_what_is():
    with pytest.raises(DataError, match="cup: marks nothing of class 3; it holds 0, 2: choose"):
        to_label(square(2), SIZE, class_id=3, name="cup")


@pytest.mark.parametrize("class_id", [-1, 256, True, 1.0, "1"])
def test_a_class_that_no_mask_can_hold_is_a_wrong_setting(class_id):
    with pytest.raises(ConfigError, match=r"class_id is .*; expected a whole number from 0 to 255"):
        to_label(square(), SIZE, class_id=class_id)


@pytest.mark.parametrize("mask", [np.zeros(SIZE, np.uint8), np.zeros(SIZE, bool), torch.zeros(SIZE)])
def test_a_mask_that_marks_nothing_is_refused(mask):
    with pytest.raises(DataError, match="cup: marks nothing"):
        to_label(mask, SIZE, name="cup")


@pytest.mark.parametrize("value", [0.5, math.nan, -1.0, 256.0, math.inf])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["array", "tensor"])
def test_floats_that_are_no_class_numbers_are_refused(make, value):
    mask = square().astype(np.float32)
    mask[0, 0] = value
    with pytest.raises(DataError, match=rf"cup: holds {value:g}; expected whole numbers from 0 to 255"):
        to_label(make(mask), SIZE, name="cup")


@pytest.mark.parametrize("value", [-1, 256])
def test_whole_numbers_outside_a_byte_are_refused(value):
    mask = square(dtype=np.int32)
    mask[0, 0] = value
    with pytest.raises(DataError, match=rf"cup: holds {value}; expected whole numbers from 0 to 255.*255"):
        to_label(mask, SIZE, name="cup")


@pytest.mark.parametrize("shape", [(), (9,), (2, 9, 9), (9, 9, 4), (0, 9), (2, 2, 9, 9)])
def test_masks_of_other_shapes_are_refused(shape):
    with pytest.raises(DataError, match=rf"cup: .*shape {re.escape(str(shape))}; expected \(H, W\)"):
        to_label(np.ones(shape, np.uint8), SIZE, name="cup")


def test_a_mask_in_colours_is_refused():
    colours = np.zeros((*SIZE, 3), np.uint8)
    colours[2:4, 2:4] = (255, 0, 0)
    with pytest.raises(DataError, match=r"cup: .*class numbers, not colours"):
        to_label(colours, SIZE, name="cup")
    with pytest.raises(DataError, match=r"cup: shows the colour \(255, 0, 0\) at row 2, column 2"):
        to_label(Image.fromarray(colours), SIZE, name="cup")


@pytest.mark.parametrize("value", [None, [1, 2, 3, 4], [(1, 2), (3, 4), (5, 0)], (1, 2, 3, 4), 7])
def test_plain_lists_are_refused_with_the_class_to_use(value):
    match = (
        rf"cup: is of type {type(value).__name__}; .*Polygons\(\[points\]\).*Box\(left, top, right, bottom\).*numpy\.asarray"
    )
    with pytest.raises(DataError, match=match):
        to_label(value, SIZE, name="cup")


def test_a_mask_file_is_turned_like_its_image(tmp_path):
    image = put(tmp_path / "photo.jpg", smooth(*SIZE), exif=exif(6))
    mask = put(tmp_path / "mask.png", square(), exif=exif(6))
    size = to_image(image).shape[:2]
    for value in (mask, Image.open(mask)):
        np.testing.assert_array_equal(to_label(value, size), np.rot90(FOREGROUND, -1))


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_mask_of_the_same_proportions_is_resized_by_the_nearest_pixel(factor):
    values = np.random.default_rng(0).choice([0, 1, 255], SIZE).astype(np.uint8)
    larger = np.kron(values, np.ones((factor, factor), np.uint8))
    np.testing.assert_array_equal(to_label(values, larger.shape), larger)
    np.testing.assert_array_equal(to_label(larger, SIZE), values)


def test_resizing_takes_the_value_under_each_pixels_centre():
    values = np.random.default_rng(0).choice([0, 1, 255], (100, 200)).astype(np.uint8)
    size = (37, 74)
    label = to_label(values, size)
    for row in range(size[0]):
        for column in range(size[1]):
            there = values[math.floor((row + 0.5) * 100 / size[0]), math.floor((column + 0.5) * 200 / size[1])]
            assert label[row, column] == there


@pytest.mark.parametrize(("size", "fits"), [((100, 101), True), ((101, 100), True), ((100, 102), False), ((102, 100), False)])
def test_proportions_agree_within_one_in_a_hundred(size, fits):
    mask = np.ones((50, 50), np.uint8)
    if fits:
        assert to_label(mask, size).shape == size
    else:
        with pytest.raises(
            DataError, match=rf"cup: mask is 50 x 50, image is {size[0]} x {size[1]} \(height x width\); resize"
        ):
            to_label(mask, size, name="cup")


def test_a_mask_turned_by_a_quarter_is_told_so():
    with pytest.raises(DataError, match=r"mask is 14 x 10, image is 10 x 14 \(height x width\); turn the mask"):
        to_label(square().T, SIZE)


def test_an_object_that_resizing_loses_is_an_error():
    mask = np.zeros((100, 100), np.uint8)
    mask[0, 0] = 1
    with pytest.raises(DataError, match=r"cup: mask is 100 x 100, image is 10 x 10 .* marks nothing"):
        to_label(mask, (10, 10), name="cup")


# boxes and outlines


@pytest.mark.parametrize(
    ("box", "rows", "columns"),
    [
        (Box(3, 2, 9, 5), (2, 5), (3, 9)),
        (Box(3.4, 2.4, 8.6, 4.6), (2, 5), (3, 9)),
        (Box(-5, -5, 100, 100), (0, 10), (0, 14)),
        (Box(12, 8, 99, 99), (8, 10), (12, 14)),
        (Box(-9, -9, 1, 1), (0, 1), (0, 1)),
        (Box(np.float32(1), np.int64(1), 2, 2), (1, 2), (1, 2)),
    ],
)
def test_a_box_marks_the_pixels_whose_centres_it_holds(box, rows, columns):
    expected = np.zeros(SIZE, np.uint8)
    expected[slice(*rows), slice(*columns)] = 1
    np.testing.assert_array_equal(to_label(box, SIZE), expected)


@pytest.mark.parametrize("corners", [(5, 2, 5, 4), (5, 2, 3, 4), (2, 5, 4, 3), (0, 0, 0, 0)])
def test_an_empty_or_inverted_box_is_refused(corners):
    with pytest.raises(DataError, match=rf"box: holds nothing \(left {corners[0]}, .*; expected left below right"):
        Box(*corners)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e9, "a", None])
def test_a_box_is_made_of_numbers(value):
    with pytest.raises(DataError, match=r"box: right is .*; expected .*pixels"):
        Box(0, 0, value, 3)


@pytest.mark.parametrize("box", [Box(14, 0, 20, 5), Box(-5, 0, 0, 5), Box(0, 10, 5, 12), Box(0.1, 0.1, 0.4, 0.4)])
def test_a_box_that_holds_no_pixel_of_the_image_is_refused(box):
    with pytest.raises(
        DataError, match=r"cup: the box marks nothing \(left .*\); the image has x from 0 to 14 and y from 0 to 10"
    ):
        to_label(box, SIZE, name="cup")


def inside(points, x, y):
    """The slow twin: is the number of edges to the left of a place odd?"""
    left = 0
    for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
        if min(y0, y1) <= y < max(y0, y1):
            left += x0 + (y - y0) * (x1 - x0) / (y1 - y0) <= x
    return left % 2


@pytest.mark.parametrize("seed", range(12))
def test_an_outline_marks_the_pixels_whose_centres_it_holds(seed):
    generator = np.random.default_rng(seed)
    points = generator.uniform(-6, 20, (3 + seed, 2)) if seed % 2 else generator.integers(-4, 18, (3 + seed, 2)) / 2
    points = [tuple(point) for point in points.tolist()]
    expected = [[inside(points, column + 0.5, row + 0.5) for column in range(SIZE[1])] for row in range(SIZE[0])]
    if np.any(expected):
        np.testing.assert_array_equal(to_label(Polygons([points]), SIZE), expected)
    else:
        with pytest.raises(DataError, match=r"marks? nothing"):
            to_label(Polygons([points]), SIZE)


def test_outlines_that_share_an_edge_share_no_pixel_and_leave_none_out():
    for x in np.linspace(0, 14, 29):
        cut = (x, 0), (14 - x, 10)
        one, other = ([*cut, (0, 10), (0, 0)], [*cut, (14, 10), (14, 0)])
        marked = sum(to_label(Polygons([points]), SIZE).astype(int) for points in (one, other))
        assert (marked == 1).all()


def test_a_rectangle_is_the_same_as_outline_and_as_box():
    for left, top, right, bottom in np.random.default_rng(0).uniform((0, 0, 7, 5), (6, 4, 14, 10), (20, 4)).tolist():
        outline = Polygons([[(left, top), (right, top), (right, bottom), (left, bottom)]])
        np.testing.assert_array_equal(to_label(outline, SIZE), to_label(Box(left, top, right, bottom), SIZE))


def test_an_outline_agrees_with_pillows_up_to_its_border():
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    points = np.stack([100 + 70 * np.cos(angles), 80 + 60 * np.sin(angles) * (1.2 + np.cos(3 * angles)) / 2], -1)
    label = to_label(Polygons([points]), (160, 200))
    drawn = Image.new("L", (200, 160))
    ImageDraw.Draw(drawn).polygon([tuple(point) for point in points.tolist()], fill=1)
    differing = label != np.array(drawn)
    border = np.zeros_like(differing)
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            border |= np.roll(label, (down, across), (0, 1)) != label
    assert not (differing & ~border).any()


def test_all_outlines_together_are_marked():
    one, other = [(1, 1), (5, 1), (5, 4), (1, 4)], [(3, 2), (12, 2), (12, 9), (3, 9)]
    both = to_label(Polygons([one, other]), SIZE)
    np.testing.assert_array_equal(both, to_label(Polygons([one]), SIZE) | to_label(Polygons([other]), SIZE))


def test_outlines_are_kept_as_plain_numbers_whatever_they_were_given_as():
    points = [(1, 1), (5, 1), (5, 4)]
    assert Polygons([points]) == Polygons(np.array([points])) == Polygons(((tuple(map(float, p)) for p in points),))
    assert Polygons([points]).contours == (((1.0, 1.0), (5.0, 1.0), (5.0, 4.0)),)
    assert hash(Polygons([points])) == hash(Polygons([np.array(points)]))


@pytest.mark.parametrize(
    ("contours", "words"),
    [
        ([], "hold no outline"),
        ([[]], "outline 0 has 0 points"),
        ([[(1, 1), (5, 1)]], "outline 0 has 2 points"),
        ([(1, 1), (5, 1), (5, 4)], "hold something else than points"),
        ([[(1, 1), (5, 1), (5, 4)], [(1, 2, 3)] * 3], "outline 1 has a point that is not two numbers"),
        (np.zeros((1, 4, 1, 2)), "outline 0 has a point that is not two numbers"),
        (None, "hold something else than points"),
        ([[(1, 1), (5, math.nan), (5, 4)]], "y of outline 0 is nan"),
        ([[(1, 1), (1e7, 1), (5, 4)]], r"x of outline 0 is 1e\+07"),
        ([[("a", 1), (5, 1), (5, 4)]], "x of outline 0 is 'a'"),
    ],
)
def test_outlines_that_are_none_are_refused(contours, words):
    with pytest.raises(DataError, match=rf"^polygons: {words}; expected"):
        Polygons(contours)


@pytest.mark.parametrize("shift", [(-20, 0), (20, 0), (0, -20), (0, 20), (-5, 0), (13, 0)])
def test_an_outline_wholly_outside_the_image_is_refused_even_beside_others(shift):
    there = [(1, 1), (5, 1), (5, 4)]
    gone = [(x + shift[0], y + shift[1]) for x, y in there]
    with pytest.raises(DataError, match=r"cup: outline 1 lies outside the image, with x from .* the image has x from 0 to 14"):
        to_label(Polygons([there, gone]), SIZE, name="cup")


def test_outlines_in_fractions_of_the_image_are_told_that_pixels_are_expected():
    with pytest.raises(DataError, match=r"cup: the outlines mark nothing.*give pixels of it, not fractions"):
        to_label(Polygons([[(0.1, 0.1), (0.4, 0.1), (0.4, 0.4)]]), SIZE, name="cup")


def test_a_class_means_nothing_for_outlines_and_boxes():
    np.testing.assert_array_equal(to_label(Box(3, 2, 9, 5), SIZE, class_id=7), FOREGROUND)


def test_paths_may_be_any_object_that_stands_for_one(tmp_path):
    class Place:
        def __fspath__(self):
            return str(put(tmp_path / "mask.png", square()))

    np.testing.assert_array_equal(to_label(Place(), SIZE), FOREGROUND)
    assert to_image(Place()).shape == (*SIZE, 3)
    assert isinstance(Path(Place()), Path)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(0, 0), (9, 9), (9, 0)] * 400_000, "outline of 1,200,000 points; expected at most 1,000,000"),
        ([(0, 0), (9, 1e5)] * 50_000, "outline of 10,000,000,000 pixels of length; expected at most 8,388,608"),
    ],
)
def test_an_outline_that_would_take_all_memory_to_draw_is_refused(points, message):
    with pytest.raises(DataError, match=f"polygons: outline 0 has an {message}"):
        Polygons([points])


@pytest.mark.parametrize("class_id", [None, 1])
def test_a_mask_is_decided_in_a_few_bytes_a_pixel(class_id):
    values = np.zeros((4000, 3000), np.uint8)
    values[:2000] = 1
    assert most_memory(lambda: to_label(values, values.shape, class_id)) < 4 * values.size
