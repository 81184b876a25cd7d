"""The network behind the page: while it loads, when there is none, and how clicks and boxes ask it."""

import base64
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from browsing import Sight, begin, painted, previewed, saved, seated, shows, stroke, wait
from paging import png
from PIL import Image
from segmenting import scene

from cyctr.backbones.weights import REFINERS, cache
from cyctr.errors import WeightsError

SIZE = (240, 320)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "photos"
    root.mkdir()
    for number in range(3):
        Image.fromarray(scene(SIZE, number)[0]).save(root / f"{number}.png")
    return root


def middle_of(number):
    """(column, row) the middle of the disc of a scene."""
    rows, columns = np.nonzero(scene(SIZE, number)[1])
    return round(columns.mean()), round(rows.mean())


def test_the_page_says_that_the_network_is_loading_and_does_what_was_asked_when_it_is_ready(browser, folder, network):
    gate = threading.Event()

    def slow():
        gate.wait(60)
        return network

    with seated(browser, folder, slow) as desk:
        try:
            page = desk.window()
            page.wait_for_selector("#model-state[data-state=loading]:has-text('Loading network')")
            begin(page)
            stroke(page, [Sight(page).screen(*middle_of(0))])
            saved(page)
            assert desk.mask("0") is not None, "painting needs no network"
            page.wait_for_selector(".note:has-text('The network is still loading')")
            page.keyboard.press("d")
            shows(page, "1.png")
            page.keyboard.press("s")
            page.mouse.click(*Sight(page).screen(*middle_of(1)))
            page.wait_for_selector("#stage.thinking")
        finally:
            gate.set()
        page.wait_for_selector("#model-state[data-state=ready]:has-text('Network ready')")
        wait(lambda: desk.mask("1") is not None and desk.mask("1")[middle_of(1)[::-1]])
        previewed(page)
        assert desk.mask("2") is not None, "a preview that was asked for early comes"
        later = desk.window()
        assert later.get_attribute("#model-state", "data-state") == "ready"
        assert later.locator("#model-state").is_hidden()


def test_without_a_network_the_page_says_why_and_painting_goes_on(browser, folder):
    def none():
        raise WeightsError("the weights are damaged; fetch them again")

    with seated(browser, folder, none) as desk:
        page = desk.window()
        page.wait_for_selector("#model-state[data-state=problem][title='the weights are damaged; fetch them again']")
        begin(page)
        stroke(page, [Sight(page).screen(*middle_of(0))])
        page.wait_for_selector("#photo-state[data-state=example]")
        saved(page)
        previewed(page)
        page.click("#segment-all")
        page.click("dialog button.primary")
        page.wait_for_selector(".note.problem:has-text('fetch them again')")
        assert page.locator("#job").is_hidden()


class Seen:
    """What is drawn on the pointer's canvas at a pixel of the photo."""

    def __init__(self, page):
        self.page = page

    def __call__(self, column, row):
        painted(self.page)
        sight = Sight(self.page)
        left, top = sight.screen(column, row)
        place = [round(left - sight.box["x"]), round(top - sight.box["y"]), 1, 1]
        alpha = "(one, place) => one.getContext('2d').getImageData(...place).data[3]"
        return self.page.locator("#pointer-layer").evaluate(alpha, place) > 0


def answer(area, value=True):
    """What a smart click answers: a whole rectangle."""
    x, y, width, height = area
    mask = np.full((height, width), value)
    return {"kind": "plain", "x": x, "y": y, "width": width, "height": height, "png": base64.b64encode(png(mask)).decode()}


def test_hovering_shows_the_candidate_of_the_newest_place_and_marks_nothing(desk):
    page = desk.window()
    begin(page)
    page.wait_for_selector("#model-state[data-state=ready]", state="attached")
    page.keyboard.press("s")
    sight, seen, held = Sight(page), Seen(page), []

    def reply(route):
        (column, row, _), *_ = route.request.post_data_json["points"]
        if column < 100:
            held.append(route)  # an answer that comes late
        else:
            route.fulfill(json=answer((column - 20, row - 20, 41, 41)))

    page.route("**/click", reply)
    for column in range(20, 40, 5):  # a pointer that moves asks once, when it rests
        page.mouse.move(*sight.screen(column, 40))
    wait(lambda: page.title() and held)
    page.mouse.move(*sight.screen(200, 120))
    wait(lambda: seen(185, 105))
    assert len(held) == 1
    assert not seen(35, 40) and not seen(230, 120)
    page.mouse.move(*sight.screen(240, 160))
    wait(lambda: seen(230, 150) and not seen(185, 105))
    page.mouse.move(5, 5)
    wait(lambda: not seen(230, 150))
    assert page.locator("#undo").is_disabled() and desk.mask("0") is None
    page.unroute("**/click")
    column, row = middle_of(0)
    page.mouse.move(*sight.screen(column, row))  # and what the network says is shown, too
    wait(lambda: seen(column + 8, row + 8))


def test_a_smart_box_finds_the_thing_within_by_two_clicks_or_a_drag(desk, monkeypatch):
    monkeypatch.setattr("cyctr.studio.sam.Sam.ready", False)  # also where its weights are
    page = desk.window()
    begin(page)
    page.keyboard.press("g")
    disc = scene(SIZE, 0)[1]
    rows, columns = np.nonzero(disc)
    corners = [(columns.min() - 6, rows.min() - 6), (columns.max() + 6, rows.max() + 6)]
    sight = Sight(page)
    for corner in corners:
        page.mouse.click(*sight.screen(*corner))
    wait(lambda: desk.mask("0") is not None)
    saved(page)
    first = desk.mask("0")
    assert (first & disc).sum() > 0.95 * first.sum(), "what is marked is on the thing"
    assert (first & disc).sum() > 0.2 * disc.sum(), "a network that learned nothing finds a part of it"
    page.keyboard.press("Control+z")
    wait(lambda: desk.mask("0") is None)
    stroke(page, [sight.screen(*corner) for corner in corners])
    wait(lambda: desk.mask("0") is not None and np.array_equal(desk.mask("0"), first))


def overlap(one, other):
    return (one & other).sum() / (one | other).sum()


class Clicker:
    """In SAM's place: marks a square around each point, or what a box holds."""

    def __init__(self):
        self.encoded, self.asked = 0, []

    def encode(self, pixels):
        self.encoded += 1
        return pixels.shape[:2]

    def masks(self, image, *, points=(), outside=(), box=None):
        self.asked.append((len(points), len(outside), box))
        mask = np.zeros(image, bool)
        if box is not None:
            left, top, right, bottom = map(int, box)
            mask[top + 5 : bottom - 5, left + 5 : right - 5] = True
        for value, places in ((True, points), (False, outside)):
            for x, y in places:
                mask[int(y) - 10 : int(y) + 11, int(x) - 10 : int(x) + 11] = value
        return [SimpleNamespace(mask=mask, score=0.9)]


def square(column, row):
    mask = np.zeros(SIZE, bool)
    mask[row - 10 : row + 11, column - 10 : column + 11] = True
    return mask


def test_clicks_and_boxes_go_to_sam_where_it_is_and_to_features_where_that_is_chosen(desk, monkeypatch):
    sam = Clicker()
    monkeypatch.setattr("cyctr.studio.sam.Sam.ready", True)
    monkeypatch.setattr("cyctr.studio.sam.shared", lambda name: sam)
    page = desk.window()
    begin(page)
    page.keyboard.press("s")
    assert page.locator("#sam-offer").is_hidden() and page.locator("#click-kind").is_visible()
    sight = Sight(page)
    page.mouse.click(*sight.screen(60, 60))
    wait(lambda: desk.mask("0") is not None and np.array_equal(desk.mask("0"), square(60, 60)))
    page.mouse.click(*sight.screen(100, 60))
    both = square(60, 60) | square(100, 60)
    wait(lambda: np.array_equal(desk.mask("0"), both))
    page.mouse.click(*sight.screen(68, 68), button="right")
    wait(lambda: np.array_equal(desk.mask("0"), both & ~square(68, 68)))
    saved(page)
    page.mouse.click(*sight.screen(68, 68))  # a click on a point deletes it
    wait(lambda: np.array_equal(desk.mask("0"), both))
    page.keyboard.press("Enter")
    page.keyboard.press("g")
    stroke(page, [sight.screen(200, 100), sight.screen(259, 159)])
    both[105:155, 205:255] = True
    wait(lambda: np.array_equal(desk.mask("0"), both))
    assert sam.encoded == 1, "a photo is encoded once"
    assert (2, 1, None) in sam.asked and sam.asked[-1] == (0, 0, (200.0, 100.0, 260.0, 160.0))
    count = len(sam.asked)
    page.keyboard.press("d")
    shows(page, "1.png")
    page.keyboard.press("s")
    page.select_option("#click-kind", "plain")
    with page.expect_response("**/click") as told:
        page.mouse.click(*Sight(page).screen(*middle_of(1)))
    assert told.value.json()["kind"] == "plain" and len(sam.asked) == count
    assert told.value.request.post_data_json["box"] is None, "the box of the photo before has nothing to do with this one"
    wait(lambda: desk.mask("1") is not None)
    assert np.array_equal(desk.mask("0"), both)


@pytest.mark.slow
@pytest.mark.skipif(cache.cached(REFINERS["sam2-tiny"]) is None, reason="needs: cyctr weights get sam2-tiny")
def test_one_click_with_sam_s_weights_finds_the_disc(desk):
    pytest.importorskip("onnxruntime")
    page = desk.window()
    page.set_default_timeout(120_000)
    begin(page)
    page.keyboard.press("s")
    with page.expect_response("**/click") as told:
        page.mouse.click(*Sight(page).screen(*middle_of(0)))
    assert told.value.json()["kind"] == "sam"
    wait(lambda: desk.mask("0") is not None)
    assert overlap(desk.mask("0"), scene(SIZE, 0)[1]) > 0.8
