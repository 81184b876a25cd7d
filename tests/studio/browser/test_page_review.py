"""Looking through what was found: many accepted at once, what a run changed, and why."""

import shutil

import numpy as np
import pytest
from browsing import Sight, begin, previewed, saved, seated, segment_all, shows, stroke, wait
from segmenting import photos


@pytest.fixture(scope="module")
def segmented(browser, network, tmp_path_factory):
    """A folder in which one photo is an example and all others are segmented."""
    folder = photos(tmp_path_factory.mktemp("review") / "photos", 10)
    with seated(browser, folder, lambda: network) as desk:
        page = desk.window()
        begin(page)
        sight = Sight(page)
        stroke(page, [sight.screen(20, 20), sight.screen(30, 22)])
        page.wait_for_selector("#photo-state[data-state=example]")
        segment_all(page)
    return folder


@pytest.fixture
def folder(segmented, tmp_path):
    """A copy, with the times of its files, so that nothing has changed for the project."""
    return shutil.copytree(segmented, tmp_path / "photos")


@pytest.fixture
def page(desk):
    page = desk.window()
    page.wait_for_selector("#stage[data-photo='0.jpg']")
    return page


def test_a_range_chooses_photos_and_many_are_accepted_after_their_number_was_told(page):
    page.keyboard.press("Shift+2")
    page.wait_for_selector("#review-total:text('10 photos')")
    page.locator("#review-max").fill("0")
    page.wait_for_selector("#review-total:not(:text('10 photos'))")
    page.locator("#review-max").fill("100")
    page.wait_for_selector("#review-total:text('10 photos')")
    page.fill("#accept-min", "0")
    page.wait_for_selector("#accept-many:text('Accept 10')")
    page.click("#accept-many")
    page.wait_for_selector("dialog:has-text('Accept 10 photos?')")
    assert page.text_content("#count-accepted") == "0"
    page.click("dialog button.primary")
    page.wait_for_selector("#count-accepted:text('10')")
    page.select_option("#review-state", "accepted")
    page.wait_for_selector("#review-total:text('10 photos')")
    page.select_option("#review-state", "open")
    page.wait_for_selector("#review-empty:not([hidden])")


def test_keys_that_follow_each_other_quickly_decide_one_photo_each(page):
    page.keyboard.press("Shift+2")
    page.wait_for_selector("#cell-9[data-photo]")
    for _ in range(4):
        page.keyboard.press("x")
    page.wait_for_selector("#count-rejected:text('4')")
    wait(lambda: all(page.get_attribute(f"#cell-{place}", "data-state") in ("rejected", "example") for place in range(4)))


def test_a_key_on_an_accepted_photo_keeps_it_accepted_and_its_button_takes_that_back(page):
    page.keyboard.press("Shift+2")
    page.wait_for_selector("#cell-9[data-photo]")
    for _ in range(2):
        page.locator("#cell-1").click()
        page.keyboard.press("Enter")
        page.wait_for_selector("#cell-1[data-state=accepted]")
        page.wait_for_selector("#cell-2[aria-selected=true]")
    page.locator("#cell-1").click()
    page.click("#loupe-accept")
    page.wait_for_selector("#cell-1[data-state=open]")
    page.wait_for_selector("#count-accepted:text('0')")


def test_the_review_is_sorted_again_after_a_run(page):
    page.keyboard.press("Shift+2")
    page.wait_for_selector("#cell-9[data-photo]")
    page.keyboard.press("Shift+1")
    stroke(page, [Sight(page).screen(x, y) for x, y in ((5, 5), (45, 5), (45, 30), (5, 30))])
    saved(page)
    segment_all(page)
    with page.expect_request("**/api/photos?sort=confidence*"):
        page.keyboard.press("Shift+2")


def test_after_another_run_the_page_says_how_many_masks_differ_and_shows_them(page, desk):
    stroke(page, [Sight(page).screen(x, y) for x, y in ((5, 5), (45, 5), (45, 30), (5, 30))])
    saved(page)
    previewed(page)
    stems = [str(number) for number in range(1, 10)]
    before = {stem: desk.mask(stem) for stem in stems}
    segment_all(page)
    after = {stem: desk.mask(stem) for stem in stems}
    overlap = {stem: (before[stem] & after[stem]).sum() / max(1, (before[stem] | after[stem]).sum()) for stem in stems}
    differ = {stem for stem, value in overlap.items() if value < 0.98}
    assert differ, "the example was changed much, and some photos have no preview"
    page.click(".note button:has-text('Look at them')")
    page.wait_for_selector(f"#changes-text:has-text('{len(differ)} mask')")
    names = page.locator(".cell .cell-name")
    wait(lambda: {name.removesuffix(".jpg") for name in names.all_text_contents()} == differ)
    assert page.locator("#loupe-before").is_visible()
    page.keyboard.press("e")
    wait(lambda: page.get_attribute("#compare", "aria-pressed") == "true")
    page.keyboard.press("c")
    wait(lambda: page.get_attribute("#compare", "aria-pressed") == "false")


def test_a_click_shows_why_a_place_was_marked(page):
    page.keyboard.press("d")
    shows(page, "1.jpg")
    page.keyboard.press("i")
    page.mouse.click(*Sight(page).screen(20, 20))
    page.wait_for_selector("dialog:has-text('Why cup here?')")
    figures = page.locator("dialog figure img")
    assert figures.count() >= 2
    wait(lambda: figures.evaluate_all("(all) => all.every((one) => one.naturalWidth > 0)"))


def test_not_this_erases_and_makes_the_photo_an_example(page, desk):
    page.keyboard.press("d")
    shows(page, "1.jpg")
    sight = Sight(page)
    page.keyboard.press("b")
    stroke(page, [sight.screen(10, 10), sight.screen(40, 30)])
    saved(page)
    wait(lambda: desk.mask("1")[30, 40])
    before = desk.mask("1")
    page.keyboard.press("n")
    stroke(page, [sight.screen(40, 30)])
    page.wait_for_selector("#photo-state[data-state=example]")
    wait(lambda: (desk.project / "images" / "1.jpg").exists())
    assert not desk.mask("1")[30, 40] and not (desk.mask("1") & ~before).any()
    stroke(
        page,
        [
            sight.screen(5, 5),
            sight.screen(45, 5),
            sight.screen(45, 35),
            sight.screen(5, 35),
            sight.screen(5, 20),
            sight.screen(45, 20),
        ],
    )
    saved(page)
    page.wait_for_selector("#photo-masks:has-text('nothing marked')")
    page.wait_for_selector("#photo-state:not([data-state=example])")
    wait(lambda: (desk.project / "negatives" / "cup" / "1.jpg").exists())
    assert not np.any(desk.mask("1"))
