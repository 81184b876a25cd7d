"""What holds for any input, tried by Hypothesis: parsers give back what was written, geometry loses no pixel."""

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from cyctr import json_files
from cyctr.config import InputConfig
from cyctr.datasets import folds
from cyctr.datasets.coco_json import MarkedImage, shapes_of
from cyctr.datasets.dataset import Dataset
from cyctr.datasets.index import Index, Survey
from cyctr.datasets.instances import Content
from cyctr.episodes.sampler import Sampler
from cyctr.errors import DataError
from cyctr.formats.coco_writer import CocoWriter
from cyctr.formats.contours import contours, rings
from cyctr.images.geometry import content_size, fit_image, fit_label, restore, restore_rows
from cyctr.images.safe_open import orientation_of, upright
from cyctr.inference.inputs import to_label
from cyctr.inference.shapes import Polygons
from cyctr.inference.supports.outlines import coco_outlines
from cyctr.inference.tiles import Canvas, Window, windows

settings.register_profile(
    "cyctr", deadline=None, derandomize=True, max_examples=60, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("cyctr")

sides = st.integers(1, 40)
sizes = st.tuples(sides, sides)
masks = sizes.flatmap(lambda size: arrays(np.bool_, size))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


# parsers


@given(values)
def test_a_document_comes_back_as_it_was_written(document):
    assert json_files.parse(json.dumps(document)) == document


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_a_value_error(content):
    try:
        json_files.parse(content)
    except ValueError:
        assert json_files.parse_line(content + b"\n") is None


@given(st.lists(values, max_size=4), st.data())
def test_a_sealed_line_comes_back_and_one_that_was_altered_does_not(parts, data):
    line = json_files.sealed(parts)
    assert json_files.unsealed(json_files.parse_line(line), len(parts)) == parts
    place = data.draw(st.integers(0, len(line) - 1))
    altered = line[:place] + bytes([line[place] ^ data.draw(st.integers(1, 255))]) + line[place + 1 :]
    found = json_files.unsealed(json_files.parse_line(altered), len(parts))
    assert found in (None, parts)  # capitals of an escape, say, mean the same


@given(st.binary(max_size=80))
def test_any_bytes_are_exif_of_some_orientation(content):
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for start in (b"", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08"):
        assert sorted(upright(pixels, orientation_of(start + content)).ravel()) == list(range(6))


# outlines and runs


@given(masks)
def test_the_outlines_of_a_mask_fill_to_that_mask_with_its_holes_closed(mask):
    closed = ndimage.binary_fill_holes(mask)
    if not mask.any():
        assert contours(mask, tolerance=0) == []
        return
    drawn = to_label(Polygons([ring.tolist() for ring in contours(mask, tolerance=0)]), mask.shape)
    assert np.array_equal(drawn == 1, closed)


@given(masks)
def test_one_boundary_after_the_other_goes_round_each_pixel_once(mask):
    odd = np.zeros(mask.shape, np.uint8)
    for ring in rings(mask):
        odd ^= _crossings(ring, mask.shape)
    assert np.array_equal(odd == 1, mask)


def _crossings(ring, size):
    """A slow twin: of each pixel, whether a ray to the left meets an odd number of edges."""
    inside = np.zeros(size, np.uint8)
    for (x, y), (next_x, next_y) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        if x == next_x:
            inside[min(y, next_y) : max(y, next_y), x:] ^= 1
    return inside


@given(mask=masks, as_list=st.booleans())
def test_the_run_lengths_of_a_mask_are_read_as_that_mask(mask, as_list, tmp_path_factory):
    if not mask.any():
        return
    writer = CocoWriter(tmp_path_factory.getbasetemp() / "none", ["cup"], instances=False, polygons=False)
    outline = writer._outline(mask, (0, 0), mask.shape)
    if as_list:
        columns = mask.T.ravel().astype(np.int8)
        outline["counts"] = np.diff(np.flatnonzero(np.diff(columns, prepend=0)), prepend=0, append=columns.size).tolist()
    (shape,) = shapes_of(outline, mask.shape)
    inside = np.repeat(np.arange(len(shape["counts"])) % 2 == 1, shape["counts"]).reshape(mask.shape[::-1]).T
    assert np.array_equal(inside, mask)
    picture, problems = MarkedImage("a.png", mask.shape, [("annotation 1", 0, False, outline)]), []
    (drawn,) = coco_outlines(
        tmp_path_factory.getbasetemp(), tmp_path_factory.getbasetemp(), picture, ["cup"], problems
    ).values()
    assert np.array_equal(to_label(drawn, mask.shape) == 1, mask) and not problems


@given(st.text(max_size=12) | st.lists(st.integers(-3, 90), max_size=6), sizes)
def test_any_counts_are_the_runs_of_the_whole_image_or_refused(counts, size):
    try:
        (shape,) = shapes_of({"size": list(size), "counts": counts}, size)
    except DataError:
        return
    assert shape["counts"].sum() == size[0] * size[1] and (shape["counts"] >= 0).all()


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 9)), max_size=5))
def test_the_index_of_a_content_says_what_its_pairs_say(images):
    pairs = [(i, number, pixels, b"", b"") for i, held in enumerate(images) for number, pixels in sorted(held.items())]
    content = Content.of("abcd", [MarkedImage(f"{i}.png", (3, 3)) for i in range(len(images))], pairs, [])
    again = Content.unpacked(content.packed())
    assert again.files == content.files and again.index.digest == content.index.digest
    assert len(content.index.image) == sum(map(len, images))


# sizes


@given(st.integers(1, 300), st.integers(1, 300), st.integers(8, 97))
def test_what_was_fitted_is_restored_to_its_size_and_a_plain_image_to_itself(height, width, side):
    config = InputConfig(side)
    fitted = fit_image(torch.full((3, height, width), 77, dtype=torch.uint8), config)
    inner = content_size((height, width), config)
    assert fitted.shape == (3, side, side) and (fitted[:, : inner[0], : inner[1]] == 77).all()
    back = restore(fitted.float(), (height, width), config)
    assert back.shape == (3, height, width) and torch.allclose(back, torch.tensor(77.0))


@given(st.integers(1, 200), st.integers(1, 200), st.data())
def test_rows_of_a_restored_map_are_those_of_the_whole(height, width, data):
    config, maps = InputConfig(65), torch.rand(2, 65, 65, generator=torch.Generator().manual_seed(0))
    first = data.draw(st.integers(0, height - 1))
    rows = slice(first, data.draw(st.integers(first + 1, height)))
    torch.testing.assert_close(
        restore_rows(maps, (height, width), config, rows), restore(maps, (height, width), config)[:, rows], atol=2e-5, rtol=0
    )


@given(st.integers(1, 200), st.integers(1, 200), st.data())
def test_an_object_of_one_pixel_is_never_lost(height, width, data):
    label = torch.zeros(height, width, dtype=torch.uint8)
    label[data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))] = 1
    fitted = fit_label(label, InputConfig(33))
    inner = content_size((height, width), InputConfig(33))
    assert (fitted[: inner[0], : inner[1]] == 1).any() and (fitted[inner[0] :] == 255).all()


# tiles


@given(st.integers(1, 150), st.integers(1, 150), st.integers(8, 64) | st.none(), st.floats(0, 0.9), st.data())
def test_tiles_cover_an_image_and_what_is_laid_over_it_evenly_comes_back(height, width, side, overlap, data):
    truth = torch.rand(1, height, width, generator=torch.Generator().manual_seed(0))
    canvas = Canvas((height, width), 1, torch.device("cpu"))
    for window in windows((height, width), side, overlap):
        assert window.height > 0 and window.width > 0
        part = truth[0][window.slices]
        for rows in _parts(window, data):
            canvas.add(window, [part[rows]], rows)
    torch.testing.assert_close(canvas.means()[0], truth[0])


def _parts(window: Window, data):
    """The rows of a window, in one part or two."""
    cut = data.draw(st.integers(0, window.height))
    return [slice(None)] if cut in (0, window.height) else [slice(0, cut), slice(cut, window.height)]


# episodes


@pytest.mark.parametrize("order", ["images", "shuffled", "pairs", "classes"])
@given(data=st.data())
def test_an_episode_shows_one_class_in_different_images_and_depends_on_its_number_alone(order, data):
    count = data.draw(st.integers(2, 5))
    held = data.draw(st.lists(st.sets(st.integers(0, count - 1)), min_size=6, max_size=20))
    dataset = Dataset("world", tuple(map(str, range(count))), {}, folds.everything(count), 1)
    index = Index.of(Survey((9, 9), dict.fromkeys(classes, 5)) for classes in held)
    shots, seed = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2**31 - 1))
    try:
        sampler = Sampler(dataset, index, shots=shots, seed=seed, order=order)
    except DataError:
        assert min(sum(number in classes for classes in held) for number in range(count)) <= shots
        return
    number = data.draw(st.integers(0, 10**6))
    draw = sampler(number)
    images = (draw.query, *draw.supports)
    assert len(set(images)) == shots + 1 and all(draw.category in held[image] for image in images)
    assert Sampler(dataset, index, shots=shots, seed=seed, order=order)(number) == draw
