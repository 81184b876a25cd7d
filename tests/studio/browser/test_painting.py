"""Marking photos by hand, with each tool, at each zoom: what the files hold afterwards."""

import numpy as np
import pytest
from browsing import Sight, begin, painted, saved, shows, size_brush, stroke, under_brush, wait, zoom
from PIL import Image
from segmenting import scene

HEIGHT, WIDTH = 240, 320


@pytest.fixture
def folder(tmp_path):
    """Two photos; on the first, one small square is bright."""
    root = tmp_path / "photos"
    root.mkdir()
    pixels = np.full((HEIGHT, WIDTH, 3), 20, np.uint8)
    pixels[118:122, 158:162] = 250
    Image.fromarray(pixels).save(root / "0.png")
    Image.fromarray(scene((HEIGHT, WIDTH), 1)[0]).save(root / "1.png")
    return root


@pytest.mark.parametrize("ratio", [1, 2])
def test_a_stroke_marks_exactly_the_pixels_that_are_seen_under_the_brush(desk, ratio, tmp_path):
    page = desk.window(device_scale_factor=ratio)
    begin(page)
    page.locator("#opacity").fill("1")
    for percent in (30, 100, 750):
        paint_and_look(page, desk, percent, ratio, tmp_path)
        page.keyboard.press("Control+z")
        page.keyboard.press("Control+z")
        wait(lambda: desk.mask("0") is None)


def paint_and_look(page, desk, percent, ratio, tmp_path):
    """Marks a pixel and a stroke at a zoom, on a photo without a mask."""
    zoom(page, percent)
    page.wait_for_selector("#stage[data-sharp=true]")
    # where the bright square is seen, a brush of one pixel marks one of its pixels
    size_brush(page, 1)
    box = page.locator("#stage").bounding_box()
    seen = looked_at(page, box, tmp_path).mean(axis=2)
    middle = [side // 2 for side in seen.shape]
    near = seen[tuple(slice(at - 60 * ratio, at + 60 * ratio) for at in middle)]
    rows, columns = np.nonzero(near > (60 if percent < 100 else 200))
    x, y = ((found.mean() + 0.5 + at - 60 * ratio) / ratio for found, at in ((columns, middle[1]), (rows, middle[0])))
    page.mouse.click(box["x"] + x + 0.1, box["y"] + y + 0.1)
    wait(lambda: desk.mask("0") is not None)
    ((row, column),) = np.argwhere(desk.mask("0"))
    assert 118 <= row < 122 and 158 <= column < 162
    sight = Sight(page)
    assert sight.scale == pytest.approx(percent / 100)
    if percent >= 100:  # below, a pixel is smaller than those of the screen
        left, top = sight.screen(column, row)
        shown = looked_at(page, box, tmp_path)[int((top - box["y"]) * ratio), int((left - box["x"]) * ratio)]
        assert tuple(shown) == (255, 122, 26), "the outline of the mask has the colour of its class"
    # and a stroke marks the pixels that a loop over all of them finds
    size_brush(page, 7)
    x, y = (round(value) for value in sight.middle)
    places = [(x - 40, y - 20), (x + 17, y - 3), (x + 21, y + 30), (x - 9, y + 22)]
    stroke(page, places)
    expected = under_brush((HEIGHT, WIDTH), [sight.pixel(*place) for place in places], 7)
    expected[row, column] = True
    wait(lambda: np.array_equal(desk.mask("0"), expected))
    saved(page)


def looked_at(page, box, folder):
    """(H, W, 3) what is seen of the stage, without the brush's ring."""
    page.mouse.move(5, 5)
    painted(page)
    page.screenshot(path=folder / "screen.png", clip=box)
    return np.asarray(Image.open(folder / "screen.png").convert("RGB")).astype(int)


def test_undo_and_redo_go_stroke_by_stroke_and_each_is_on_disk(desk):
    page = desk.window()
    begin(page)
    sight = Sight(page)
    strokes = [[sight.screen(60, 60), sight.screen(120, 80)], [sight.screen(200, 150), sight.screen(240, 160)]]
    covered = [under_brush((HEIGHT, WIDTH), [sight.pixel(*place) for place in places], 25) for places in strokes]
    both = covered[0] | covered[1]
    for places in strokes:
        stroke(page, places)
    wait(lambda: np.array_equal(desk.mask("0"), both))
    page.keyboard.press("Control+z")
    wait(lambda: np.array_equal(desk.mask("0"), covered[0]))
    page.keyboard.press("Control+Shift+z")
    wait(lambda: np.array_equal(desk.mask("0"), both))
    page.click("#undo")
    page.click("#undo")
    wait(lambda: desk.mask("0") is None)
    assert page.locator("#undo").is_disabled()
    page.keyboard.press("Control+y")
    wait(lambda: np.array_equal(desk.mask("0"), covered[0]))
    assert page.get_attribute("[data-tool=brush]", "aria-pressed") == "true"


def test_undo_never_reaches_another_photo(desk):
    page = desk.window()
    begin(page)
    stroke(page, [Sight(page).screen(100, 100)])
    saved(page)
    wait(lambda: desk.mask("0") is not None)
    before = desk.mask("0")
    page.keyboard.press("d")
    shows(page, "1.png")
    wait(lambda: page.locator("#undo").is_disabled())
    page.keyboard.press("Control+z")
    page.keyboard.press("a")
    shows(page, "0.png")
    wait(lambda: page.locator("#undo").is_enabled())
    assert np.array_equal(desk.mask("0"), before)
    page.keyboard.press("Control+z")
    wait(lambda: desk.mask("0") is None)


def test_reloading_brings_back_the_photo_and_its_masks(desk):
    page = desk.window()
    begin(page)
    page.keyboard.press("d")
    shows(page, "1.png")
    stroke(page, [Sight(page).screen(100, 100), Sight(page).screen(140, 100)])
    saved(page)
    wait(lambda: desk.mask("1") is not None)
    before = desk.mask("1")
    page.reload()
    page.wait_for_selector("body[data-ready=true]")
    assert page.text_content("#photo-name") == "1.png"
    assert page.locator("#undo").is_disabled()
    page.keyboard.press("e")
    stroke(page, [Sight(page).screen(100, 100)])
    wait(lambda: desk.mask("1").sum() < before.sum())
    assert not (desk.mask("1") & ~before).any()


def test_the_right_button_and_ctrl_erase_and_shift_draws_a_straight_line(desk):
    page = desk.window()
    begin(page)
    size_brush(page, 21)
    sight = Sight(page)
    size = (HEIGHT, WIDTH)
    page.mouse.click(*sight.screen(50, 120))
    page.keyboard.down("Shift")
    page.mouse.click(*sight.screen(250, 120))
    page.keyboard.up("Shift")
    line = under_brush(size, [(50, 120), (250, 120)], 21)
    wait(lambda: np.array_equal(desk.mask("0"), line))
    stroke(page, [sight.screen(100, 120)], button="right")
    page.keyboard.down("Control")
    page.mouse.click(*sight.screen(200, 120))
    page.keyboard.up("Control")
    expected = line & ~under_brush(size, [(100, 120)], 21) & ~under_brush(size, [(200, 120)], 21)
    wait(lambda: np.array_equal(desk.mask("0"), expected))


def test_boxes_and_polygons_fill_whole_pixels_and_take_them_away(desk):
    page = desk.window()
    begin(page)
    sight = Sight(page)
    page.keyboard.press("r")
    page.mouse.click(*sight.screen(40, 50))  # two clicks, no dragging
    page.mouse.click(*sight.screen(139, 109))
    expected = np.zeros((HEIGHT, WIDTH), bool)
    expected[50:110, 40:140] = True
    wait(lambda: np.array_equal(desk.mask("0"), expected))
    stroke(page, [sight.screen(60, 60), sight.screen(79, 79)], button="right")
    expected[60:80, 60:80] = False
    wait(lambda: np.array_equal(desk.mask("0"), expected))
    page.keyboard.press("p")
    for corner in ((200, 100), (260, 100), (300, 200)):
        page.mouse.click(*sight.screen(*corner))
    page.keyboard.press("Backspace")  # the last corner was a mistake
    page.mouse.click(*sight.screen(200, 160))
    page.mouse.click(*sight.screen(200, 100))
    columns, rows = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    slope = (columns - 200) / 60 + (rows - 100) / 60
    within = (columns > 201) & (rows > 101) & (slope < 0.96)
    beyond = (columns < 199) | (rows < 99) | (slope > 1.04)
    wait(lambda: desk.mask("0")[within].all())
    assert np.array_equal(desk.mask("0") & beyond, expected)


def test_painting_one_class_takes_pixels_from_another_only_when_asked(desk):
    page = desk.window()
    begin(page)
    page.keyboard.press("Shift+n")
    page.fill("dialog input", "saucer")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="detached")  # the new class is there, and is the one being painted
    sight = Sight(page)
    page.keyboard.press("1")
    stroke(page, [sight.screen(100, 100), sight.screen(200, 100)])
    page.keyboard.press("2")
    stroke(page, [sight.screen(100, 100), sight.screen(120, 100)])
    saved(page)
    cup, saucer = desk.mask("0"), desk.mask("0", "saucer")
    assert (cup & saucer).any()
    page.check("#take-others")
    stroke(page, [sight.screen(200, 100)])
    wait(lambda: not desk.mask("0")[100, 200] and desk.mask("0", "saucer")[100, 200])
    more = desk.mask("0", "saucer") & ~saucer
    assert np.array_equal(desk.mask("0"), cup & ~more)


def test_a_new_class_is_there_before_the_page_takes_the_next_key(desk):
    page = desk.window()
    begin(page)
    held = []
    page.keyboard.press("Shift+n")
    page.fill("dialog input", "cup")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog [role=alert]:has-text('there is a class')")
    page.route("**/api/classes", lambda route: held.append(route))
    page.fill("dialog input", "saucer")
    page.keyboard.press("Enter")
    page.keyboard.press("1")
    wait(lambda: page.locator("dialog[open]").count() == 1 and held)
    held[0].continue_()
    page.wait_for_selector("dialog", state="detached")
    stroke(page, [Sight(page).screen(100, 100)])
    saved(page)
    assert desk.mask("0") is None and desk.mask("0", "saucer") is not None


def test_an_undo_is_not_overtaken_by_the_stroke_that_it_takes_back(desk):
    page = desk.window()
    begin(page)
    late = []
    page.route("**/example", lambda route: route.continue_() if late else late.append((route, route.fetch())))
    stroke(page, [Sight(page).screen(100, 100)])
    wait(lambda: page.title() and late)
    page.keyboard.press("Control+z")
    wait(lambda: desk.mask("0") is None)
    page.wait_for_selector("#photo-masks:has-text('no mask')")
    ((route, answer),) = late
    route.fulfill(response=answer)
    wait(lambda: page.text_content("#photo-state") == "not looked at" and not (desk.project / "images" / "0.png").exists())
    assert page.locator(".note.problem").count() == 0


def test_the_wand_takes_the_region_of_one_colour(desk):
    page = desk.window()
    begin(page)
    page.keyboard.press("w")
    page.mouse.click(*Sight(page).screen(160, 120))
    expected = np.zeros((HEIGHT, WIDTH), bool)
    expected[118:122, 158:162] = True
    wait(lambda: desk.mask("0") is not None and np.array_equal(desk.mask("0"), expected))


def test_one_smart_click_is_one_step_and_undo_takes_its_point_back(desk):
    page = desk.window()
    begin(page)
    page.keyboard.press("d")
    shows(page, "1.png")
    sight, disc = Sight(page), scene((HEIGHT, WIDTH), 1)[1]
    row, column = (round(found.mean()) for found in np.nonzero(disc))
    page.keyboard.press("s")
    page.mouse.click(*sight.screen(column, row))
    wait(lambda: desk.mask("1") is not None)
    first = desk.mask("1")
    assert first[row, column]
    page.mouse.click(*sight.screen(5, 5), button="right")
    wait(lambda: page.locator("#stage.thinking").count() == 0)
    saved(page)
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    wait(lambda: desk.mask("1") is None)


def test_a_photo_that_exif_turns_is_marked_where_it_is_seen(desk):
    pixels = np.full((90, 160, 3), 30, np.uint8)
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(pixels).save(desk.folder / "0.png", exif=exif)
    page = desk.window()
    begin(page)
    stroke(page, [Sight(page).screen(10, 150)])
    wait(lambda: desk.mask("0") is not None)
    assert desk.mask("0").shape == (160, 90) and desk.mask("0")[150, 10]


def test_a_photo_of_50_megapixels_comes_in_tiles_and_its_mask_is_of_full_size(desk):
    Image.new("RGB", (8700, 5800), (20, 60, 20)).save(desk.folder / "0.png", compress_level=1)
    page = desk.window()
    begin(page)
    wait(lambda: page.get_attribute("#stage", "data-sharp") == "true")
    sight = Sight(page)
    page.mouse.move(*sight.screen(8050, 5050))
    while (before := Sight(page).scale) < 1:
        page.mouse.wheel(0, -600)
        wait(lambda before=before: Sight(page).scale > before)
    sight = Sight(page)
    place = tuple(map(round, sight.screen(8050, 5050)))
    size_brush(page, 101)
    stroke(page, [place])
    column, row = sight.pixel(*place)
    wait(lambda: any(desk.project.glob("*/cup/0.png")))  # not read again and again: it is large
    mask = desk.mask("0")
    assert mask.shape == (5800, 8700)
    window = mask[row - 60 : row + 60, column - 60 : column + 60]
    assert np.array_equal(window, under_brush((120, 120), [(60, 60)], 101)) and mask.sum() == window.sum()
    tiles = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/tile/')).length"
    wait(lambda: page.evaluate(tiles) > 4)
