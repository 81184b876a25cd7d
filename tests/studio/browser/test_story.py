"""From the first stroke to the export, as a person works; the files are looked at."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from browsing import Sight, begin, previewed, saved, segment_all, shows, stroke, wait
from paging import read
from PIL import Image
from pycocotools.coco import COCO
from segmenting import photos

COUNT = 6


@pytest.fixture
def folder(tmp_path):
    return photos(tmp_path / "photos", COUNT)


def mark(page, column=25, row=20):
    """Paints a spot on the open photo."""
    sight = Sight(page)
    stroke(page, [sight.screen(column, row), sight.screen(column + 4, row + 2)])
    saved(page)


def choose(page):
    """Chooses the first photo of the review that nobody looked at, and gives its name."""
    other = page.locator(".cell[data-state=open]").first
    name = other.locator(".cell-name").text_content()
    other.click()
    wait(lambda: page.text_content("#loupe-name") == name)
    return name


def test_a_correction_becomes_an_example_and_accepted_masks_stay_as_they_are(desk):
    page = desk.window()
    begin(page)
    mark(page)
    page.wait_for_selector("#photo-state[data-state=example]")
    segment_all(page)
    wait(lambda: all(desk.mask(str(number)) is not None for number in range(COUNT)))
    # the review begins with the least certain photo; its mask is accepted
    page.keyboard.press("Shift+2")
    accepted = choose(page)
    page.keyboard.press("Enter")
    page.wait_for_selector("#count-accepted:text('1')")
    kept = (desk.project / "found" / "cup" / f"{Path(accepted).stem}.png").read_bytes()
    # another is corrected with the same tools, and becomes an example
    page.wait_for_selector(".cell[data-state=accepted]")
    chosen = choose(page)
    page.keyboard.press("e")
    shows(page, chosen)
    wait(lambda: page.locator("#stage[data-sharp=true]").count() == 1)
    mark(page, 10, 30)
    assert not (desk.project / "images" / chosen).exists()
    page.keyboard.press("u")
    page.wait_for_selector("#photo-state[data-state=example]")
    wait(lambda: (desk.project / "images" / chosen).exists())
    wait(lambda: (desk.project / "masks" / "cup" / f"{Path(chosen).stem}.png").exists())
    corrected = desk.mask(Path(chosen).stem)
    segment_all(page)
    assert (desk.project / "found" / "cup" / f"{Path(accepted).stem}.png").read_bytes() == kept
    assert np.array_equal(desk.mask(Path(chosen).stem), corrected)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools with NumPy 2
def test_everything_can_be_done_with_the_keyboard_and_coco_reads_the_export(desk):
    page = desk.window()
    keys = page.keyboard
    wait(lambda: page.evaluate("document.activeElement.id") == "first-class-name")
    keys.type("cup")
    keys.press("Enter")
    wait(lambda: page.evaluate("document.activeElement.id") == "stage")
    keys.press("k")  # the keyboard's pointer
    keys.press("Space")
    for _ in range(4):
        keys.press("ArrowRight")
    keys.press("Space")
    keys.press("Escape")
    page.wait_for_selector("#photo-state[data-state=example]")
    saved(page)
    keys.press("Control+Enter")
    page.wait_for_selector("dialog[open]")
    keys.press("Enter")
    page.wait_for_selector(".note:has-text('segmented'), .note:has-text('differ')")
    previewed(page)
    keys.press("Shift+2")
    page.wait_for_selector(".cell[data-state=open]")
    keys.press("Enter")
    page.wait_for_selector("#count-accepted:text('1')")
    keys.press("x")
    page.wait_for_selector("#count-rejected:text('1')")
    keys.press("Shift+3")
    page.wait_for_selector("#export-run[data-ready=true]")
    for _ in range(30):
        if page.evaluate("document.activeElement.value") == "png":
            break
        keys.press("Tab")
    keys.press("ArrowDown")
    page.wait_for_selector("#export-tree:has-text('annotations.json')")
    for _ in range(30):
        if page.evaluate("document.activeElement.id") == "export-run":
            break
        keys.press("Tab")
    keys.press("Enter")
    page.wait_for_selector("#export-done:not([hidden])")
    folder = Path(page.text_content("#export-folder"))
    data = COCO(folder / "annotations.json")
    assert folder.parent == desk.project / "exports"
    assert [item["name"] for item in data.loadCats(data.getCatIds())] == ["cup"]
    count = 0
    for image in data.loadImgs(data.getImgIds()):
        expected = desk.mask(Path(image["file_name"]).stem)
        found = [data.annToMask(one) for one in data.loadAnns(data.getAnnIds(image["id"]))]
        count += len(found)
        if found:
            assert np.array_equal(np.any(found, axis=0), expected)
    assert count == int(page.text_content("#export-done-text").split(" and ")[1].split()[0])


def test_a_photo_without_the_thing_is_rejected_and_stays_without_a_mask_in_the_export(desk):
    page = desk.window()
    begin(page)
    mark(page)
    page.wait_for_selector("#photo-state[data-state=example]")
    page.keyboard.press("d")
    shows(page, "1.jpg")
    page.keyboard.press("x")
    shows(page, "2.jpg")
    page.keyboard.press("Shift+3")
    page.wait_for_selector("#export-run[data-ready=true]:enabled")
    page.click("#export-run")
    page.wait_for_selector("#export-done:not([hidden])")
    written = {path.stem: np.asarray(Image.open(path)) for path in Path(page.text_content("#export-folder")).rglob("*.png")}
    assert written["0"].any() and not written["1"].any()


def test_what_a_person_decided_is_there_after_all_pages_are_closed(desk):
    page = desk.window()
    begin(page)
    mark(page)
    page.keyboard.press("Enter")
    shows(page, "1.jpg")
    desk.close()
    again = desk.window()
    again.wait_for_selector("#count-accepted:text('1')")
    assert json.loads((desk.project / "project.json").read_text())["classes"][0]["name"] == "cup"


def test_a_region_is_segmented_on_its_own_and_nothing_beyond_it_changes(desk):
    page = desk.window()
    begin(page)
    mark(page)
    page.wait_for_selector("#photo-state[data-state=example]")
    page.keyboard.press("d")
    shows(page, "1.jpg")
    sight = Sight(page)
    page.keyboard.press("p")
    for corner in ((2, 2), (6, 2), (2, 6), (2, 2)):
        page.mouse.click(*sight.screen(*corner))
    saved(page)
    wait(lambda: desk.mask("1") is not None and desk.mask("1")[3, 3])
    before = desk.mask("1")
    page.keyboard.press("q")
    with page.expect_response("**/region") as answer:
        stroke(page, [sight.screen(12, 10), sight.screen(41, 34)])
    (found,) = answer.value.json()["masks"]
    assert (found["x"], found["y"], found["width"], found["height"]) == (12, 10, 30, 25)
    expected = before.copy()
    expected[10:35, 12:42] = read(base64.b64decode(found["png"]))
    wait(lambda: np.array_equal(desk.mask("1"), expected))
