from itertools import pairwise

import numpy as np
import pytest
from PIL import ImageFont

from cyctr.visual.contact import Block, contact_sheet, tile
from cyctr.visual.draw import BLUE, PAPER, RED

SIDE = 40


def plain(value=90, size=(30, 60)):
    return np.full((*size, 3), value, np.uint8)


def is_paper(pixels):
    return (pixels == PAPER).all(-1)


def solid(colour, side=SIDE):
    return np.full((side, side, 3), colour, np.uint8)


def place_of(page, colour):
    """(top, left, bottom, right) of the pixels of one colour."""
    rows, columns = np.nonzero((np.asarray(page) == colour).all(-1))
    return rows.min(), columns.min(), rows.max() + 1, columns.max() + 1


@pytest.mark.parametrize("size", [(30, 60), (60, 30), (50, 50), (7, 300), (300, 7), (401, 299)])
def test_a_tile_shows_the_whole_image_as_large_as_fits_and_centred(size):
    shown = tile(plain(size=size), None, side=100)
    assert shown.shape == (100, 100, 3)
    rows, columns = np.nonzero(~is_paper(shown))
    height, width = rows.max() + 1 - rows.min(), columns.max() + 1 - columns.min()
    assert max(height, width) == 100
    assert abs(height - 100 * size[0] / max(size)) <= 0.5
    assert abs(width - 100 * size[1] / max(size)) <= 0.5
    assert abs(rows.min() - (100 - rows.max() - 1)) <= 1
    assert abs(columns.min() - (100 - columns.max() - 1)) <= 1


def test_an_image_without_a_mask_keeps_its_colours():
    assert (tile(plain(90, (100, 100)), None, side=50) == 90).all()


@pytest.mark.parametrize("side", [50, 200])
def test_a_tile_marks_what_the_mask_marks(side):
    mask = np.zeros((100, 100), bool)
    mask[20:60, 40:80] = True
    shown = tile(plain(90, (100, 100)), mask, side, BLUE)
    scale = side / 100
    top, left, bottom, right = place_of(shown, BLUE)
    assert np.abs(np.array([top, left, bottom, right]) - np.array([20, 40, 60, 80]) * scale).max() <= 1
    assert (shown[int(40 * scale), int(60 * scale)] == 90).all()  # inside: as it was
    outside = shown[int(80 * scale), int(20 * scale)]
    assert (outside > 120).all() and (outside < 255).all()  # pale


def test_the_mask_moves_with_the_image_when_the_sides_differ():
    image, mask = plain(0, (20, 80)), np.zeros((20, 80), bool)
    mask[:, :40] = True
    shown = tile(image, mask, side=160)
    assert np.flatnonzero((~is_paper(shown)).any(1)).tolist() == list(range(60, 100))
    assert (shown[70:90, 10:70] == 0).all()
    assert (shown[70:90, 90:150] > 0).all()


def test_an_empty_mask_and_a_full_one_are_drawn():
    image = plain(90, (20, 20))
    empty = tile(image, np.zeros((20, 20), bool), side=20)
    full = tile(image, np.ones((20, 20), bool), side=20)
    assert (empty > 90).all()
    assert (full == 90).all()


def sheet_of(count, tiles=2, title="t", footer="f", caption="c", side=SIDE, across=6):
    """A sheet whose tiles are each of a colour of their own."""
    blocks = [
        Block([solid((10 + block, 20 + j, 200), side) for j in range(tiles)], caption if block else "first")
        for block in range(count)
    ]
    return contact_sheet(blocks, title, footer, across)


@pytest.mark.parametrize(
    ("count", "tiles", "per_row"), [(1, 2, 1), (2, 2, 2), (3, 2, 3), (7, 2, 3), (4, 6, 1), (3, 9, 1), (5, 1, 5)]
)
def test_every_tile_is_on_the_sheet_whole_and_in_its_place(count, tiles, per_row):
    page = sheet_of(count, tiles)
    places = {}
    for block in range(count):
        for j in range(tiles):
            top, left, bottom, right = place_of(page, (10 + block, 20 + j, 200))
            assert (bottom - top, right - left) == (SIDE, SIDE)
            places[block, j] = top, left
    tops = [places[block, 0][0] for block in range(count)]
    assert tops == sorted(tops)
    assert [tops.count(top) for top in sorted(set(tops))][:-1] == [per_row] * ((count - 1) // per_row)
    for block in range(count):
        assert len({places[block, j][0] for j in range(tiles)}) == 1
        lefts = [places[block, j][1] for j in range(tiles)]
        assert all(later - earlier > SIDE for earlier, later in pairwise(lefts))


def test_a_sheet_grows_by_one_row_and_by_one_column():
    one, two, three, four = (sheet_of(count) for count in (1, 2, 3, 4))
    assert one.height == two.height == three.height
    assert three.width - two.width == two.width - one.width > 2 * SIDE
    assert four.width == three.width
    seven = sheet_of(7)
    assert seven.height - four.height == four.height - three.height > SIDE


def ink(page, rows=slice(None)):
    return ~is_paper(np.asarray(page)[rows])


def test_title_captions_and_footer_are_written_inside_the_page():
    page = sheet_of(1, title="a rather long title " * 4, footer="and an even longer line below " * 9)
    assert page.width > ImageFont.load_default(13).getlength("and an even longer line below " * 9)
    marks = ink(page)
    assert not marks[:, -20:].any()
    assert not marks[:, :20].any()
    top, _, bottom, _ = place_of(page, (10, 20, 200))
    assert marks[:top].any()
    assert marks[bottom : bottom + 22].any()
    assert marks[-40:].any()


def test_a_caption_that_is_too_long_is_shortened_to_the_width_of_its_block():
    usual, long = sheet_of(3, caption="short"), sheet_of(3, caption="a caption that goes on and on " * 20)
    assert long.size == usual.size
    _, _, bottom, _ = place_of(long, (11, 20, 200))
    below = slice(bottom + 1, bottom + 22)
    left, right = place_of(long, (11, 20, 200))[1], place_of(long, (11, 21, 200))[3]
    columns = np.flatnonzero(ink(long, below)[:, left - 8 : right + 12].any(0))
    assert columns.max() < right - left + 8  # it ends before the next block begins
    assert columns.max() > 0.6 * (right - left)  # and uses the room it has
    assert np.array_equal(ink(long, below)[:, : left - 12], ink(usual, below)[:, : left - 12])


def test_a_caption_that_fits_is_written_to_its_end():
    pages = [np.asarray(sheet_of(2, tiles=4, caption=caption)) for caption in ("1: cat, query a", "1: cat, query b")]
    assert not np.array_equal(*pages)


def test_red_is_the_usual_colour_of_an_outline():
    mask = np.zeros((40, 40), bool)
    mask[10:30, 10:30] = True
    assert (tile(plain(90, (40, 40)), mask, 40) == RED).all(-1).sum() > 50
