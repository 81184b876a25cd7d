import gc
import io
import os
import random
import re
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from making import without_rights
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from cyctr.errors import DataError
from cyctr.images import imaging, safe_open
from cyctr.images.imaging import (
    EXTENSIONS,
    find_images,
    image_size,
    read_image,
    read_values,
    voc_palette,
    write_image,
    write_values,
)
from cyctr.limits import IMAGE_PIXELS, IMAGE_SIDE, JPEG_SIDE

ORIENTATION = 274
LOSSLESS = {"PNG": {}, "WEBP": {"lossless": True}, "BMP": {}, "TIFF": {}}
TURNABLE = {
    "jpeg": ("JPEG", {"quality": 100, "subsampling": 0}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {"lossless": True}),
    "tiff": ("TIFF", {}),
    "tiff_lzw": ("TIFF", {"compression": "tiff_lzw"}),
}


def noise(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


def smooth(height, width):
    """A picture that JPEG keeps well, no two corners alike."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows * 255 // height, columns * 255 // width, (rows + columns) * 255 // (height + width)], -1).astype(
        "uint8"
    )


def encoded(pixels, kind, **options):
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def put(path, content):
    path.write_bytes(content)
    return path


def plain(mode, colour, size=(3, 2)):
    return Image.new(mode, size, colour)


def exif(orientation, order="<"):
    """The smallest EXIF block: one entry."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order]
    entry = struct.pack(f"{order}HHIHH", ORIENTATION, 3, 1, orientation, 0)
    return b"Exif\0\0" + head + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(size, bits, colour_type, rows, *before):
    """A PNG written by hand, for what Pillow cannot write."""
    header = struct.pack(">IIBBBBB", *size, bits, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + b"".join([chunk(b"IHDR", header), *before, chunk(b"IDAT", pixels), chunk(b"IEND", b"")])


def tiff(size, bits, pixels, photometric=1, extra=()):
    """An uncompressed TIFF written by hand, for what Pillow cannot write."""
    tags = [(256, size[0]), (257, size[1]), (258, bits), (259, 1), (262, photometric)]
    tags += [(273, 0), (277, 1 + len(extra)), (278, size[1]), (279, len(pixels)), *((338, value) for value in extra)]
    start = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(
        struct.pack("<HHIHH", tag, 3, 2, value, value)
        if tag == 258 and extra
        else struct.pack("<HHII", tag, 4 if tag == 273 else 3, 1, start if tag == 273 else value)
        for tag, value in tags
    )
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + pixels


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_pictures_come_back_pixel_for_pixel(kind, tmp_path):
    pixels = noise(5, 7, 3)
    path = put(tmp_path / "photo", encoded(pixels, kind, **LOSSLESS[kind]))
    back = read_image(path)
    assert back.dtype == np.uint8 and np.array_equal(back, pixels)
    assert image_size(path) == (5, 7)


def test_a_jpeg_comes_back_nearly_as_it_was(tmp_path):
    pixels = smooth(40, 56)
    back = read_image(put(tmp_path / "photo.jpg", encoded(pixels, "JPEG", quality=100, subsampling=0)))
    assert np.abs(back.astype(int) - pixels).max() <= 4


@pytest.mark.parametrize("name", [*(f"a{ending}" for ending in EXTENSIONS), "a.JPG", "a.Tiff", "a.gif", "a"])
def test_a_file_is_read_by_its_content_whatever_its_name(name, tmp_path):
    pixels = noise(4, 3, 3)
    assert np.array_equal(read_image(put(tmp_path / name, encoded(pixels, "PNG"))), pixels)


def test_arrays_can_be_written_to_and_lie_in_one_piece(tmp_path):
    image = put(tmp_path / "a.png", encoded(noise(4, 3, 3), "PNG", exif=exif(6)))
    mask = put(tmp_path / "b.png", encoded(np.repeat(noise(4, 3, 1), 3, axis=2), "PNG", exif=exif(6)))
    for pixels in (read_image(image), read_values(mask), read_values(put(tmp_path / "c.png", encoded(noise(4, 3), "PNG")))):
        assert pixels.flags.writeable and pixels.flags.c_contiguous


def seen(stored, orientation):
    """The slow twin: where each seen pixel is stored, by the EXIF standard's words on row 0 and column 0."""
    height, width = stored.shape[:2]
    place = {
        1: lambda row, column: (row, column),  # top, left
        2: lambda row, column: (row, width - 1 - column),  # top, right
        3: lambda row, column: (height - 1 - row, width - 1 - column),  # bottom, right
        4: lambda row, column: (height - 1 - row, column),  # bottom, left
        5: lambda row, column: (column, row),  # left, top
        6: lambda row, column: (height - 1 - column, row),  # right, top
        7: lambda row, column: (height - 1 - column, width - 1 - row),  # right, bottom
        8: lambda row, column: (column, width - 1 - row),  # left, bottom
    }[orientation]
    size = (width, height) if orientation > 4 else (height, width)
    return np.array([[stored[place(row, column)] for column in range(size[1])] for row in range(size[0])])


def turned(pixels, name, orientation):
    kind, options = TURNABLE[name]
    how = {"tiffinfo": {ORIENTATION: orientation}} if kind == "TIFF" else {"exif": exif(orientation)}
    return encoded(pixels, kind, **options, **how)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", TURNABLE)
def test_pictures_are_turned_upright(name, orientation, tmp_path):
    pixels = smooth(16, 24)
    path = put(tmp_path / "photo", turned(pixels, name, orientation))
    back, expected = read_image(path), seen(pixels, orientation)
    assert back.shape == expected.shape and image_size(path) == expected.shape[:2]
    assert np.abs(back.astype(int) - expected).max() <= (4 if name == "jpeg" else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["png", "tiff", "tiff_lzw"])
def test_masks_are_turned_like_their_pictures(name, orientation, tmp_path):
    values = noise(4, 6)
    mask = Image.fromarray(values)
    mask.putpalette(voc_palette())
    assert np.array_equal(read_values(put(tmp_path / "mask", turned(mask, name, orientation))), seen(values, orientation))


@pytest.mark.parametrize("pixels", [noise(4, 6, dtype=np.uint16), noise(4, 6, dtype=np.uint16).astype(">u2")], ids=["<", ">"])
@pytest.mark.parametrize("name", ["png", "tiff"])
def test_grey_of_16_bits_is_turned_too(name, pixels, tmp_path):
    back = read_image(put(tmp_path / "photo", turned(pixels, name, 6)))
    assert np.array_equal(back[..., 0], np.round(seen(pixels, 6) / 257))


@pytest.mark.parametrize("order", "<>")
def test_the_orientation_is_read_in_either_byte_order(order, tmp_path):
    assert image_size(put(tmp_path / "photo.jpg", encoded(smooth(16, 24), "JPEG", exif=exif(8, order)))) == (24, 16)


def test_an_orientation_that_a_png_states_after_its_pixels_counts(tmp_path):
    pixels = noise(4, 6, 3)
    content = encoded(pixels, "PNG")
    path = put(tmp_path / "photo.png", content[:-12] + chunk(b"eXIf", exif(6).removeprefix(b"Exif\0\0")) + content[-12:])
    assert np.array_equal(read_image(path), seen(pixels, 6))
    assert image_size(path) == (6, 4)


def test_a_note_called_exif_is_no_orientation(tmp_path):
    pixels, note = noise(4, 6, 3), PngInfo()
    note.add_itxt("exif", "II*")
    path = put(tmp_path / "photo.png", encoded(pixels, "PNG", pnginfo=note))
    assert np.array_equal(read_image(path), pixels)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
@pytest.mark.parametrize("name", ["png", "tiff"])
def test_an_orientation_that_does_not_exist_turns_nothing(name, orientation, tmp_path):
    pixels = noise(4, 6, 3)
    path = put(tmp_path / "photo", turned(pixels, name, orientation))
    assert np.array_equal(read_image(path), pixels)
    assert image_size(path) == (4, 6)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_damaged_exif_block_costs_neither_the_picture_nor_a_warning(kind, tmp_path):
    rich = Image.Exif()
    rich.update({271: "a maker of cameras", 282: 72.0, 283: 72.0, 296: 2, 306: "2007:01:02 03:04:05"})
    whole, pixels = rich.tobytes(), smooth(16, 24)
    for length in range(7, len(whole), 3):
        path = put(tmp_path / "photo", encoded(pixels, kind, exif=whole[:length]))
        assert read_image(path).shape == (16, 24, 3)
        assert image_size(path) == (16, 24)


@pytest.mark.parametrize(
    ("kind", "type_"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2"), ("TIFF", "<i4")], ids=lambda value: str(value)
)
def test_grey_above_8_bits_is_divided_not_clipped(kind, type_, tmp_path):
    pixels = np.array([[0, 128, 129, 257], [300, 32767, 32768, 65535]], dtype=type_)
    back = read_image(put(tmp_path / "scan", encoded(pixels, kind)))
    expected = [[0, 0, 1, 1], [1, 127, 128, 255]]  # x / 257 to the nearest
    assert back.tolist() == [[[value] * 3 for value in row] for row in expected]


def test_grey_of_12_bits_spans_the_whole_range(tmp_path):
    path = put(tmp_path / "scan.tif", tiff((2, 1), 12, bytes([0xFF, 0xF8, 0x00])))  # 0xfff and 0x800
    assert read_image(path)[..., 0].tolist() == [[255, 128]]


@pytest.mark.parametrize(("value", "type_"), [(65536, "<i4"), (-1, "<i4"), (-3, "<i2")])
def test_a_grey_value_outside_16_bits_is_refused_by_name(value, type_, tmp_path):
    path = put(tmp_path / "scan.tif", tiff_of(np.array([[7, value]], dtype=type_)))
    with pytest.raises(DataError, match=rf"scan\.tif: holds the value {value}; expected 0 to 65535: save it with 8 bits"):
        read_image(path)


def tiff_of(pixels):
    """Signed 16-bit grey has no mode of its own in Pillow: the tag is written over an unsigned file."""
    if pixels.dtype != np.int16:
        return encoded(pixels, "TIFF")
    return encoded(pixels.view(np.uint16), "TIFF", tiffinfo={339: 2})


@pytest.mark.parametrize("read", [read_image, read_values])
def test_floating_point_pixels_are_refused(read, tmp_path):
    path = put(tmp_path / "depth.tif", encoded(np.ones((2, 3), np.float32), "TIFF"))
    with pytest.raises(DataError, match=r"depth\.tif: holds (floating-point|F) pixels.*; .*save .* 8 bits"):
        read(path)
    assert image_size(path) == (2, 3)


@pytest.mark.parametrize("kind", LOSSLESS)
def test_grey_becomes_three_equal_channels(kind, tmp_path):
    pixels = noise(3, 5)
    assert np.array_equal(read_image(put(tmp_path / "grey", encoded(pixels, kind, **LOSSLESS[kind]))), np.dstack([pixels] * 3))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_one_bit_is_black_and_white_to_see_and_0_and_1_to_count(kind, tmp_path):
    bits = noise(5, 9) > 127
    path = put(tmp_path / "bits", encoded(bits, kind))
    assert np.array_equal(read_image(path), np.dstack([bits * np.uint8(255)] * 3))
    assert np.array_equal(read_values(path), bits)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF"])
def test_a_palette_is_seen_in_its_colours_and_counted_by_its_indices(kind, tmp_path):
    indices = noise(4, 6) % 7
    image = Image.fromarray(indices)
    image.putpalette(voc_palette())
    path = put(tmp_path / "mask", encoded(image, kind, **({"optimize": False} if kind == "GIF" else {})))
    assert np.array_equal(read_image(path), np.array(voc_palette()).reshape(256, 3)[indices])
    assert np.array_equal(read_values(path), indices)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_palette_of_few_bits_is_counted_by_its_indices(bits, tmp_path):
    indices = noise(4, 5) % 2**bits
    image = Image.fromarray(indices)
    image.putpalette(voc_palette())
    assert np.array_equal(read_values(put(tmp_path / "mask.png", encoded(image, "PNG", bits=bits))), indices)


def over_white(colour, alpha):
    return [round((value * alpha + 255 * (255 - alpha)) / 255) for value in colour]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("alpha", [0, 1, 128, 254, 255])
def test_what_is_transparent_shows_white(kind, alpha, tmp_path):
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    path = put(tmp_path / "logo", encoded(plain("RGBA", (200, 100, 0, alpha)), kind, **options))
    assert np.abs(read_image(path) - np.array(over_white((200, 100, 0), alpha))).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("alpha", [0, 128, 255])
def test_transparent_grey_shows_white(kind, alpha, tmp_path):
    path = put(tmp_path / "logo", encoded(plain("LA", (60, alpha)), kind))
    assert np.abs(read_image(path) - np.array(over_white((60, 60, 60), alpha))).max() <= 1


def test_grey_already_multiplied_by_its_alpha_shows_white_too(tmp_path):
    path = put(tmp_path / "logo.tif", tiff((2, 1), 8, bytes([50, 100, 0, 0]), extra=(1,)))
    expected = 255 - 100 + 50  # the grey that came through, and white behind it
    assert np.abs(read_image(path) - np.array([[[expected] * 3, [255] * 3]])).max() <= 2


RED, GREEN, BLUE, WHITE = [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]


@pytest.mark.parametrize(
    ("transparency", "expected"),
    [(None, [RED, GREEN, BLUE]), (1, [RED, WHITE, BLUE]), (bytes([255, 0, 128]), [RED, WHITE, [127, 127, 255]])],
    ids=["opaque", "index", "bytes"],
)
def test_transparent_colours_of_a_palette_show_white_and_are_still_counted(transparency, expected, tmp_path):
    image = Image.fromarray(np.array([[0, 1, 2]], dtype=np.uint8))
    image.putpalette(RED + GREEN + BLUE)
    options = {} if transparency is None else {"transparency": transparency}
    path = put(tmp_path / "mask.png", encoded(image, "PNG", **options))
    assert read_image(path).tolist() == [expected]
    assert read_values(path).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("bits", "colour_type", "row", "transparent", "expected"),
    [
        (8, 0, bytes([48, 64]), (48,), [WHITE, [64] * 3]),
        (16, 0, struct.pack(">2H", 12289, 12288), (12289,), [WHITE, [48] * 3]),
        (8, 2, bytes([10, 20, 30, 10, 20, 31]), (10, 20, 30), [WHITE, [10, 20, 31]]),
    ],
    ids=["grey", "grey_16", "colour"],
)
def test_the_one_transparent_colour_of_a_png_shows_white(bits, colour_type, row, transparent, expected, tmp_path):
    clear = chunk(b"tRNS", struct.pack(f">{len(transparent)}H", *transparent))
    path = put(tmp_path / "logo.png", png((2, 1), bits, colour_type, [row], clear))
    assert read_image(path).tolist() == [expected]


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"), [("JPEG", {"quality": 100}, 3), ("TIFF", {}, 0)], ids=["jpeg", "tiff"]
)
@pytest.mark.parametrize(
    ("ink", "light"), [((255, 0, 0, 0), (0, 255, 255)), ((0, 255, 255, 0), (255, 0, 0)), ((0, 0, 0, 255), (0, 0, 0))]
)
def test_inks_become_light(kind, options, tolerance, ink, light, tmp_path):
    back = read_image(put(tmp_path / "print", encoded(plain("CMYK", ink, (16, 16)), kind, **options)))
    assert np.abs(back.astype(int) - light).max() <= tolerance


@pytest.mark.parametrize(
    ("mode", "stored", "light"),
    [
        ("YCbCr", (255, 128, 128), WHITE),
        ("YCbCr", (76, 85, 255), RED),
        ("LAB", (255, 128, 128), WHITE),
        ("LAB", (0, 128, 128), [0, 0, 0]),
        ("LAB", (138, 128 + 81, 128 + 70), RED),  # L 54, a 81, b 70 under the light of D50
    ],
)
def test_other_colour_spaces_become_rgb(mode, stored, light, tmp_path):
    back = read_image(put(tmp_path / "a.tif", encoded(plain(mode, stored), "TIFF")))
    assert np.abs(back.astype(int) - light).max() <= 6  # a step of 8-bit LAB is a few steps of RGB


def test_a_second_picture_behind_a_jpeg_is_passed_over(tmp_path):
    first, second = (encoded(plain("RGB", tuple(colour), (16, 8)), "JPEG") for colour in (RED, BLUE))  # as phones write them
    assert np.abs(read_image(put(tmp_path / "photo.jpg", first + second)).astype(int) - RED).max() <= 4


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_several_frames_the_first_is_read(kind, tmp_path):
    frames = [plain("RGB", tuple(colour), (16, 8)) for colour in (RED, GREEN, BLUE)]
    path = put(tmp_path / "film", encoded(frames[0], kind, save_all=True, append_images=frames[1:]))
    back = read_image(path)
    assert back.shape == (8, 16, 3) and image_size(path) == (8, 16)
    assert np.abs(back.astype(int) - RED).max() <= 4


@pytest.mark.parametrize("type_", ["<u2", ">u2", "<i4"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_a_mask_of_16_bits_keeps_its_values_up_to_255(kind, type_, tmp_path):
    values = noise(3, 4).astype(type_)
    values[0, 0] = 255
    content = encoded(values.astype("<u2") if kind == "PNG" else values, kind)
    assert np.array_equal(read_values(put(tmp_path / "mask", content)), values)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_a_mask_value_above_255_is_refused_by_name(kind, tmp_path):
    path = put(tmp_path / "mask.x", encoded(np.array([[0, 1], [1000, 2]], np.uint16), kind))
    with pytest.raises(
        DataError, match=r"mask\.x: holds the value 1000; expected 0 to 255: save the mask as a palette or grey"
    ):
        read_values(path)


@pytest.mark.parametrize("alpha", [None, 0, 200, 255])
@pytest.mark.parametrize("bands", [1, 3])
def test_a_mask_of_equal_channels_is_its_grey_value(bands, alpha, tmp_path):
    values = noise(3, 4)
    channels = [values] * bands + ([] if alpha is None else [np.full_like(values, alpha)])
    path = put(tmp_path / "mask.png", encoded(np.dstack(channels).squeeze(), "PNG"))
    assert np.array_equal(read_values(path), values)


def test_a_jpeg_mask_is_read_as_it_is(tmp_path):
    values = np.full((16, 16), 90, np.uint8)
    for pixels in (values, np.dstack([values] * 3)):
        assert np.array_equal(read_values(put(tmp_path / "mask.jpg", encoded(pixels, "JPEG", quality=100))), values)


@pytest.mark.parametrize("bands", [3, 4])
def test_a_mask_in_colours_is_refused_and_told_where(bands, tmp_path):
    values = np.full((3, 4, bands), 9, np.uint8)
    values[1, 2, :3] = 128, 0, 0
    match = r"mask\.png: shows the colour \(128, 0, 0\) at row 1, column 2; expected class numbers .*palette or grey PNG"
    with pytest.raises(DataError, match=match):
        read_values(put(tmp_path / "mask.png", encoded(values, "PNG")))


@pytest.mark.parametrize("bands", [2, 4])
def test_a_mask_that_hides_something_in_its_alpha_is_refused(bands, tmp_path):
    values = np.full((3, 4, bands), 255, np.uint8)
    values[2, 3, -1] = 0
    with pytest.raises(DataError, match=r"mask\.png: is transparent in places; expected class numbers .*palette or grey PNG"):
        read_values(put(tmp_path / "mask.png", encoded(values, "PNG")))


def test_a_mask_whose_values_would_lose_their_lower_half_is_refused(tmp_path):
    path = put(tmp_path / "mask.png", png((1, 1), 16, 2, [struct.pack(">3H", 7, 7, 7)]))
    with pytest.raises(DataError, match=r"mask\.png: holds 16-bit RGB pixels; expected class numbers from 0 to 255: save"):
        read_values(path)


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LAB"])
def test_a_mask_in_another_colour_space_is_refused(mode, tmp_path):
    with pytest.raises(DataError, match=rf"mask\.tif: holds {mode} pixels; expected class numbers from 0 to 255: save"):
        read_values(put(tmp_path / "mask.tif", encoded(plain(mode, 0), "TIFF")))


READERS = (read_image, read_values, image_size)


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_is_not_there_is_refused(read, tmp_path):
    with pytest.raises(DataError, match=r"missing\.png: no such file; expected an image: check the path$"):
        read(tmp_path / "missing.png")


@pytest.mark.parametrize("read", READERS)
def test_a_folder_is_refused(read, tmp_path):
    with pytest.raises(DataError, match=rf"^{re.escape(str(tmp_path))}: is a folder; expected an image file$"):
        read(tmp_path)


@pytest.mark.parametrize("read", READERS)
def test_an_empty_file_is_refused(read, tmp_path):
    with pytest.raises(DataError, match=r"empty\.jpg: holds 0 bytes; copy or download it again$"):
        read(put(tmp_path / "empty.jpg", b""))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_refused_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png: is not a regular file; expected an image file$"):
        read_image(tmp_path / "pipe.png")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="rights work otherwise here")
def test_a_file_one_may_not_read_is_refused(tmp_path):
    path = put(tmp_path / "secret.png", encoded(noise(3, 4), "PNG"))
    with (
        without_rights(tmp_path, 0),
        pytest.raises(DataError, match=r"secret\.png: cannot be read \(Permission denied\); expected a readable"),
    ):
        read_image(path)
    with (
        without_rights(tmp_path, 0),
        pytest.raises(DataError, match=r": cannot be listed \(Permission denied\); expected a folder of images"),
    ):
        find_images(tmp_path)
    assert read_image(path).shape == (3, 4, 3)


def test_other_refusals_of_the_system_are_passed_on_in_its_words(tmp_path):
    with pytest.raises(DataError, match=r"a+: cannot be read \(File name too long\)"):
        read_image(tmp_path / ("a" * 300))
    with pytest.raises(DataError, match=r"cannot be read \(Not a directory\)"):
        read_image(put(tmp_path / "file", b"x") / "a.png")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "content",
    [b"\0", b"<html>not found</html>", b"version https://git-lfs.github.com/spec/v1", bytes(1000), noise(2000).tobytes()],
    ids=["byte", "page", "pointer", "zeros", "noise"],
)
def test_what_is_not_an_image_is_refused(read, content, tmp_path):
    with pytest.raises(DataError, match=r"photo\.jpg: is not a JPEG, PNG, WebP, BMP, TIFF or GIF image, .*; convert it"):
        read(put(tmp_path / "photo.jpg", content))


WHOLE = {
    "jpeg": lambda: encoded(noise(40, 30, 3), "JPEG"),
    "progressive": lambda: encoded(noise(40, 30, 3), "JPEG", progressive=True),
    "png": lambda: encoded(noise(40, 30, 3), "PNG"),
    "png_16": lambda: encoded(noise(40, 30, dtype=np.uint16), "PNG"),
    "webp": lambda: encoded(noise(40, 30, 3), "WEBP"),
    "webp_lossless": lambda: encoded(noise(40, 30, 4), "WEBP", lossless=True),
    "bmp": lambda: encoded(noise(40, 30, 3), "BMP"),
    "tiff": lambda: encoded(noise(40, 30, 3), "TIFF"),
    "tiff_deflate": lambda: encoded(noise(40, 30, 3), "TIFF", compression="tiff_adobe_deflate"),
    "gif": lambda: encoded(noise(40, 30), "GIF"),
}


@pytest.mark.parametrize("part", [0.02, 0.1, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("name", WHOLE)
def test_a_file_cut_short_is_one_clear_error(name, part, tmp_path):
    whole = WHOLE[name]()
    path = put(tmp_path / "cut.img", whole[: max(12, int(part * len(whole)))])
    for read in (read_image, read_values):
        with pytest.raises(DataError, match=r"cut\.img: damaged or cut short \(.+\); copy or download it again$") as error:
            read(path)
        assert "\n" not in str(error.value)


def attempt(read, path):
    """What a file holds, or the words of the refusal."""
    try:
        return read(path)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("name", ["png", "webp", "bmp", "tiff"])
def test_a_file_cut_anywhere_gives_the_whole_picture_or_a_data_error(name, tmp_path):
    whole = WHOLE[name]()
    path = put(tmp_path / "cut.img", whole)
    pixels, refused = read_image(path), 0
    for length in [*range(1, len(whole), 97), *range(len(whole) - 20, len(whole))]:
        answer = attempt(read_image, put(path, whole[:length]))
        refused += isinstance(answer, str)
        assert isinstance(answer, str) or np.array_equal(answer, pixels)
    assert refused > len(whole) // 97


@pytest.mark.parametrize("name", WHOLE)
def test_damage_anywhere_raises_nothing_but_data_errors(name, tmp_path):
    whole, chance, path = WHOLE[name](), random.Random(0), tmp_path / "damaged.img"
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(chance.choice([1, 3, 20])):
            content[chance.randrange(chance.choice([60, 400, len(whole)]))] = chance.randrange(256)
        put(path, content)
        for read in READERS:
            answer = attempt(read, path)
            if isinstance(answer, str):
                assert answer.startswith(f"{path}: ") and "\n" not in answer
            else:
                assert isinstance(answer, tuple) or answer.dtype == np.uint8


@pytest.mark.parametrize("name", ["jpeg", "png", "bmp", "gif", "tiff"])
def test_the_size_is_known_without_the_pixels(name, tmp_path):
    path = put(tmp_path / "cut.img", WHOLE[name]()[:1200])
    assert image_size(path) == (40, 30)
    with pytest.raises(DataError):
        read_image(path)


@pytest.mark.parametrize("read", READERS)
def test_a_few_bytes_that_claim_to_be_a_huge_picture_are_refused(read, tmp_path):
    path = put(tmp_path / "bomb.png", png((50_000, 40_000), 8, 2, [b""]))
    with pytest.raises(
        DataError, match=rf"bomb\.png: has 40000 x 50000 pixels; expected at most {IMAGE_PIXELS}: make it smaller$"
    ):
        read(path)


@pytest.mark.parametrize("read", READERS)
def test_a_huge_canvas_of_a_webp_is_refused(read, tmp_path):
    content = bytearray(encoded(plain("RGBA", 0), "WEBP", exif=exif(1)))
    assert content[12:16] == b"VP8X"
    content[24:30] = b"\xff\x7f\0\xff\x7f\0"  # 32768 x 32768
    with pytest.raises(DataError, match=r"bomb\.webp: (has too many pixels|damaged)"):
        read(put(tmp_path / "bomb.webp", content))


LARGE = {**LOSSLESS, "JPEG": {}, "GIF": {}}


@pytest.fixture
def _small_warning_limit(monkeypatch):
    """Pillow warns above 100 pixels and refuses above 200, rather than at 89 and 179 million."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)


@pytest.mark.usefixtures("_small_warning_limit")
@pytest.mark.parametrize("kind", LARGE)
def test_pictures_of_which_pillow_would_warn_are_read_without_a_word(kind, tmp_path):
    path = put(tmp_path / "large", encoded(smooth(10, 15), kind, **LARGE[kind]))
    assert read_image(path).shape == (10, 15, 3)
    assert image_size(path) == (10, 15)
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(path).close()


@pytest.mark.usefixtures("_small_warning_limit")
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_a_large_tiff_on_its_side_is_read_without_a_word(compression, tmp_path):
    pixels = smooth(10, 15)
    content = encoded(pixels, "TIFF", compression=compression, tiffinfo={ORIENTATION: 6})
    assert np.array_equal(read_image(put(tmp_path / "large.tif", content)), seen(pixels, 6))


@pytest.mark.parametrize("read", READERS)
def test_a_picture_of_one_column_that_would_take_gigabytes_is_refused_by_its_header(read, tmp_path):
    path = put(tmp_path / "column.png", png((1, IMAGE_PIXELS), 8, 2, [b""]))
    with pytest.raises(DataError, match=rf"has {IMAGE_PIXELS} x 1 pixels; expected sides of at most {IMAGE_SIDE}: cut it in"):
        read(path)


@pytest.mark.parametrize("read", READERS[:2])
def test_a_png_that_cannot_hold_what_its_header_promises_is_refused_before_it_is_decoded(read, tmp_path):
    path = put(tmp_path / "short.png", png((10_000, 10_000), 8, 2, [bytes(1000)]))
    with pytest.raises(DataError, match=r"short\.png: damaged or cut short \(10000 x 10000 pixels in \d+ bytes\)"):
        read(path)


PEAK = """
import re, sys
from pathlib import Path
from cyctr.images import imaging
imaging.read_image(Path(sys.argv[1]))
# not getrusage, which also counts what the process that started this one has held
print(re.search("VmHWM:[ \\t]+([0-9]+)", Path("/proc/self/status").read_text())[1])
"""


def test_a_small_file_of_a_hundred_and_sixty_nine_megapixels_is_read_in_less_than_two_gigabytes(tmp_path):
    side, packer = 13_000, zlib.compressobj(1)
    row = bytes(1 + 4 * side)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", packed), chunk(b"IEND", b"")]
    path = put(tmp_path / "clear.png", b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    found = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    assert int(found.stdout) * 1024 < 2**31


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the system does not say what a process has held")
@pytest.mark.skipif(safe_open._libwebp() is None, reason="Pillow has its decoder of WebP inside")
def test_a_webp_takes_two_pictures_of_four_bytes_a_pixel_and_no_more(tmp_path):
    path, small = tmp_path / "large.webp", tmp_path / "small.webp"
    plain("RGBA", 7).resize((4000, 4000)).save(path, method=0, quality=1)
    plain("RGBA", 7).save(small)
    peaks = [
        int(subprocess.run([sys.executable, "-c", PEAK, one], capture_output=True, text=True, check=True).stdout)
        for one in (path, small)
    ]
    assert 1024 * (peaks[0] - peaks[1]) < 10 * 4000 * 4000


@pytest.mark.skipif(safe_open._libwebp() is None, reason="Pillow has its decoder of WebP inside")
@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_webp_decoded_without_pillows_animations_is_what_pillow_decodes(mode, lossless, tmp_path, monkeypatch):
    path = tmp_path / "picture.webp"
    pixels = np.random.default_rng(0).integers(0, 256, (301, 57, len(mode)), np.uint8)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray(pixels).save(path, lossless=lossless, exif=exif)
    with monkeypatch.context() as patch:
        patch.setattr(safe_open.WebPImageFile, "_get_next", lambda self: pytest.fail("asked for an animation"))
        found = read_image(path)
    monkeypatch.setattr(safe_open, "_libwebp", lambda: None)
    assert np.array_equal(found, read_image(path)) and found.shape == (57, 301, 3)


def test_of_an_animated_webp_the_first_frame_is_read(tmp_path):
    first, second = (plain(mode, 7).resize((30, 20)) for mode in ("RGB", "RGBA"))
    first.save(tmp_path / "moving.webp", save_all=True, append_images=[second.rotate(180)], lossless=True)
    assert np.array_equal(read_image(tmp_path / "moving.webp"), np.asarray(first))


@pytest.mark.parametrize("name", ["RGB", "RGBA", "LA", "L", "P", "1", "I;16", "CMYK"])
def test_a_picture_is_the_same_whether_it_is_converted_whole_or_in_strips(name, tmp_path, monkeypatch):
    path = tmp_path / ("picture.tif" if name == "CMYK" else "picture.png")
    if name == "I;16":
        Image.fromarray(np.random.default_rng(0).integers(0, 65536, (31, 17), np.uint16)).save(path)
    else:
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (31, 17, 4), np.uint8)).convert(name).save(path)
    whole = read_image(path)
    values = read_values(path) if name in ("L", "P", "1") else None
    monkeypatch.setattr(imaging, "_STRIP", 17 * 4)
    assert np.array_equal(read_image(path), whole)
    assert values is None or np.array_equal(read_values(path), values)


def test_a_mask_of_16_bits_that_is_black_and_white_is_one_of_0_and_255(tmp_path):
    marked = np.zeros((5, 7), np.uint16)
    marked[1:3, 2:6] = 65535
    Image.fromarray(marked).save(tmp_path / "mask.png")
    assert np.array_equal(read_values(tmp_path / "mask.png"), (marked // 257).astype(np.uint8))


def test_what_no_jpeg_can_hold_is_refused_with_a_way_out(tmp_path):
    with pytest.raises(DataError, match=rf"a JPEG has sides of at most {JPEG_SIDE}: end the name in \.png"):
        write_image(tmp_path / "long.jpg", np.zeros((8, JPEG_SIDE + 1, 3), np.uint8))
    write_image(tmp_path / "long.jpg", np.zeros((8, JPEG_SIDE, 3), np.uint8))


def test_sizes_up_to_the_limit_pass(tmp_path):
    assert image_size(put(tmp_path / "large.png", png((IMAGE_SIDE, 1365), 1, 0, [b""]))) == (1365, IMAGE_SIDE)
    with pytest.raises(DataError, match="expected at most"):
        image_size(put(tmp_path / "larger.png", png((IMAGE_PIXELS // 10 + 1, 10), 1, 0, [b""])))


def test_many_threads_read_the_same_files(tmp_path):
    paths = [put(tmp_path / name, make()) for name, make in WHOLE.items()]
    broken = put(tmp_path / "broken", WHOLE["png"]()[:500])
    expected = [read_image(path) for path in paths]

    def work(index):
        with pytest.raises(DataError, match="damaged or cut short"):
            read_image(broken)
        return np.array_equal(read_image(paths[index % len(paths)]), expected[index % len(paths)])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files cannot be counted here")
def test_every_file_is_closed_again(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    for name, make in WHOLE.items():
        whole = put(tmp_path / name, make())
        kept += [read_image(whole), image_size(whole)]
        for part in (0.1, 0.5):
            with pytest.raises(DataError) as error:
                read_image(put(tmp_path / "cut", whole.read_bytes()[: int(part * whole.stat().st_size)]))
            kept.append(error)  # its traceback keeps what the reader held
    assert len(os.listdir("/proc/self/fd")) == before


def test_images_of_a_folder_are_found_by_name(tmp_path):
    for name in (
        "b.PNG",
        "a.b.jpg",
        "c.jpeg",
        "d.webp",
        "Z.bmp",
        "e.tif",
        "f.TIFF",
        "notes.txt",
        ".hidden.png",
        "._b.png",
        "png",
    ):
        put(tmp_path / name, b"")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "deeper").mkdir()
    put(tmp_path / "deeper" / "g.png", b"")
    found = find_images(tmp_path)
    assert list(found) == ["Z", "a.b", "b", "c", "d", "e", "f"]
    assert found["b"] == tmp_path / "b.PNG" and found["a.b"] == tmp_path / "a.b.jpg"


def test_a_folder_without_images_gives_none(tmp_path):
    assert find_images(tmp_path) == {}


def test_a_link_to_nothing_is_found_so_that_reading_it_says_so(tmp_path):
    (tmp_path / "a.png").symlink_to(tmp_path / "gone.png")
    found = find_images(tmp_path)
    assert list(found) == ["a"]
    with pytest.raises(DataError, match=r"a\.png: no such file"):
        read_image(found["a"])


@pytest.mark.parametrize("names", [("a.jpg", "a.png"), ("a.JPG", "a.jpg")])
def test_two_images_of_one_name_are_refused(names, tmp_path):
    for name in (*names, "b.png"):
        put(tmp_path / name, b"")
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("this file system does not tell cases apart")
    match = rf"{re.escape(str(tmp_path))}: {names[0]} and {names[1]} share the name 'a'; rename or remove one$"
    with pytest.raises(DataError, match=match):
        find_images(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"missing: cannot be listed \(No such file or directory\); expected a folder of images"
    ):
        find_images(tmp_path / "missing")
    with pytest.raises(DataError, match=r"file: cannot be listed \(Not a directory\); expected a folder of images"):
        find_images(put(tmp_path / "file", b""))


@pytest.mark.parametrize("shape", [(16, 16), (1, 1), (3, 500), (7, 1)])
def test_written_values_come_back(shape, tmp_path):
    values = np.arange(shape[0] * shape[1]).reshape(shape).astype(np.uint8)
    path = tmp_path / "mask.png"
    write_values(path, values)
    assert np.array_equal(read_values(path), values)
    with Image.open(path) as image:
        assert (image.format, image.mode) == ("PNG", "P")
        assert image.getpalette() == voc_palette()


def test_values_in_any_order_of_memory_are_written(tmp_path):
    values = noise(6, 8)[::2, ::-1].T
    write_values(tmp_path / "mask.png", values)
    assert np.array_equal(read_values(tmp_path / "mask.png"), values)


def test_a_written_mask_is_seen_in_the_colours_of_voc(tmp_path):
    write_values(tmp_path / "mask.png", np.array([[0, 1, 2, 15, 255]], np.uint8))
    assert read_image(tmp_path / "mask.png").tolist() == [
        [[0, 0, 0], [128, 0, 0], [0, 128, 0], [192, 128, 128], [224, 224, 192]]
    ]


def test_writing_replaces_what_was_there_and_leaves_nothing_beside_it(tmp_path):
    path = put(tmp_path / "mask.png", b"old")
    write_values(path, noise(4, 4))
    assert os.listdir(tmp_path) == ["mask.png"]
    assert np.array_equal(read_values(path), noise(4, 4))


def test_a_mask_that_cannot_be_written_is_one_clear_error(tmp_path):
    put(tmp_path / "file", b"x")
    with pytest.raises(DataError, match=r"mask\.png: cannot be written \(.+\); choose another place$"):
        write_values(tmp_path / "file" / "mask.png", noise(4, 4))
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(DataError, match=r"folder\.png: cannot be written \(Is a directory\); choose another place$"):
        write_values(tmp_path / "folder.png", noise(4, 4))
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.png"]


@pytest.mark.parametrize("name", ["mask.jpg", "mask", "mask.tif"])
def test_masks_are_written_as_png_only(name, tmp_path):
    with pytest.raises(DataError, match=rf"{name}: masks are written as PNG, .*; end the name in \.png$"):
        write_values(tmp_path / name, noise(4, 4))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("values", [noise(4, 4).astype(np.int64), noise(4, 4, 3), noise(4), noise(0, 4), noise(4, 4) > 3])
def test_only_maps_of_bytes_are_written(values, tmp_path):
    match = rf"mask\.png: cannot hold {values.dtype} of shape {re.escape(str(values.shape))}; expected uint8 of shape \(H, W\)"
    with pytest.raises(DataError, match=match):
        write_values(tmp_path / "mask.png", values)


def test_the_palette_follows_the_bits_of_the_number():
    expected = []
    for index in range(256):  # as the VOC development kit writes it
        colour, rest = [0, 0, 0], index
        for bit in range(7, -1, -1):
            colour = [colour[channel] | (rest >> channel & 1) << bit for channel in range(3)]
            rest >>= 3
        expected += colour
    assert voc_palette() == expected
    assert voc_palette()[:9] == [0, 0, 0, 128, 0, 0, 0, 128, 0] and voc_palette()[-3:] == [224, 224, 192]
    assert len({tuple(colour) for colour in np.reshape(voc_palette(), (256, 3)).tolist()}) == 256


def test_reading_pictures_does_not_wait_for_torch():
    code = "import sys, cyctr.images.imaging; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


TALKATIVE = """
import sys
from pathlib import Path
from cyctr import cli
from cyctr.errors import DataError
from cyctr.images.imaging import read_image
for path in sys.argv[1:]:
    try:
        read_image(Path(path))
    except DataError:
        pass
"""


def test_damaged_tiffs_leave_no_lines_of_libtiff_on_the_screen(tmp_path):
    whole = encoded(noise(40, 50, 3), "TIFF", compression="tiff_lzw")
    chance, paths = random.Random(0), []
    for number in range(20):
        content = bytearray(whole)
        for _ in range(3):
            content[chance.randrange(8, len(content))] = chance.randrange(256)
        paths.append(put(tmp_path / f"{number}.tif", content))
    command = [sys.executable, "-W", "ignore", "-c", TALKATIVE, *paths]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""
