"""Nothing a person has done is lost: two windows, no connection, a killed server, a full disk, odd names."""

import errno
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from browsing import Desk, Sight, begin, saved, shows, stroke, under_brush, wait
from segmenting import checkpoint, photo

SIZE = (120, 160)
ODD = "<img src=x onerror=document.title='taken'>\"'&.png"


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        photo(tmp_path / "photos" / f"{number}.png", number, SIZE)
    photo(tmp_path / "photos" / ODD, 3, SIZE)
    return tmp_path / "photos"


def spot(page, column, row):
    """Clicks on a pixel; the pixels that this marks."""
    sight = Sight(page)
    page.mouse.click(*sight.screen(column, row))
    return under_brush(SIZE, [(column, row)], 25)


@pytest.mark.parametrize("choice", ["Keep mine as the newest", "Take the other mask"])
def test_a_stale_window_is_told_and_nothing_is_lost(desk, choice):
    first = desk.window()
    begin(first)
    second = desk.window()
    second.context.set_offline(True)
    mine = spot(second, 30, 30)
    second.wait_for_selector("#save-state[data-state=problem]")
    theirs = spot(first, 100, 80)
    saved(first)
    wait(lambda: np.array_equal(desk.mask("0"), theirs))
    second.context.set_offline(False)
    second.wait_for_selector("dialog:has-text('changed elsewhere')")
    assert np.array_equal(desk.mask("0"), theirs)
    second.click(f"dialog button:has-text('{choice}')")
    saved(second)
    wait(lambda: np.array_equal(desk.mask("0"), mine if choice.startswith("Keep") else theirs))
    more = spot(second, 60, 60)
    saved(second)
    wait(lambda: (desk.mask("0") & more).sum() == more.sum())


def test_two_windows_on_one_photo_see_what_the_other_has_painted(desk):
    first = desk.window()
    begin(first)
    second = desk.window()
    one = spot(first, 30, 30)
    saved(first)
    sight = Sight(second)
    left, top = sight.screen(30, 30)
    place = [round(left - sight.box["x"]), round(top - sight.box["y"]), 1, 1]
    alpha = "(one, place) => one.getContext('2d').getImageData(...place).data[3]"
    wait(lambda: second.locator("#mask-layer").evaluate(alpha, place) > 0)
    two = spot(second, 100, 80)
    saved(second)
    wait(lambda: np.array_equal(desk.mask("0"), one | two))


def test_without_a_connection_strokes_stay_and_are_saved_when_it_is_back(desk):
    page = desk.window()
    begin(page)
    page.context.set_offline(True)
    marked = spot(page, 30, 30) | spot(page, 90, 60)
    page.wait_for_selector("#save-state[data-state=problem]")
    assert desk.mask("0") is None
    page.keyboard.press("d")
    page.context.set_offline(False)
    saved(page)
    wait(lambda: np.array_equal(desk.mask("0"), marked))


def test_a_full_disk_is_told_and_tried_again(desk, monkeypatch):
    page = desk.window()
    begin(page)
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*arguments, **options):
        raise full

    with monkeypatch.context() as patch:
        patch.setattr("cyctr.studio.masks.write_atomically", refuse)
        marked = spot(page, 50, 50)
        page.wait_for_selector("#save-state[data-state=problem]")
        assert "space" in page.text_content("#trouble")
        assert desk.mask("0") is None
    page.locator("#save-retry").dispatch_event("click")  # the page may try again by itself, and hide the button, at any time
    saved(page)
    wait(lambda: np.array_equal(desk.mask("0"), marked))


def start(folder, model, port):
    command = [sys.executable, "-m", "cyctr", "studio", folder, "--no-browser", "--port", str(port), "--model", model]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if found := re.search(r"open (http\S+)", line):
            return process, found[1]
    raise AssertionError("the server did not start")


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_a_server_that_is_killed_between_strokes_loses_none(browser, folder, tmp_path):
    model = checkpoint(tmp_path / "tiny.safetensors")
    process, address = start(folder, model, 0)
    desk = Desk(browser, folder, address)
    try:
        page = desk.window()
        begin(page)
        one = spot(page, 30, 30)
        saved(page)
        place = Sight(page).box
        kill(process)
        assert np.array_equal(desk.mask("0"), one)
        two = spot(page, 100, 80)
        page.wait_for_selector("#save-state[data-state=problem]")
        page.wait_for_selector("#trouble", state="visible")
        assert Sight(page).box == place  # what is said must not move the photo under a stroke
        process, again = start(folder, model, re.search(r":(\d+)/", address)[1])
        other = page.context.new_page()  # the new server has a new token, which its address brings
        other.goto(again)
        other.close()
        saved(page)
        page.wait_for_selector("#trouble", state="hidden")
        wait(lambda: np.array_equal(desk.mask("0"), one | two))
    finally:
        desk.close()
        kill(process)


def test_names_with_markup_and_quotes_are_shown_as_text(desk):
    page = desk.window()
    class_name = '<b onclick=x>"cup"\'&</b>'
    begin(page, class_name)
    for _ in range(3):
        page.keyboard.press("d")
    shows(page, ODD)
    assert page.text_content("#photo-name") == ODD
    stroke(page, [Sight(page).screen(30, 30)])
    saved(page)
    page.wait_for_selector("#photo-state[data-state=example]")
    assert class_name in page.text_content(".class-row")
    assert class_name in page.text_content("#photo-masks")
    assert class_name in page.text_content("#review-class")
    page.keyboard.press("Shift+2")
    page.wait_for_selector(".cell[data-state=example]")
    shown = page.text_content(".cell[data-state=example]")
    assert ODD in shown and class_name in shown
    for screen in ("Shift+1", "Shift+2", "Shift+3"):
        page.keyboard.press(screen)
        assert page.locator("main b, header b, main img").count() == 0
    assert "taken" not in page.title()


def test_a_photo_that_is_removed_while_it_is_open_is_told_of(desk):
    page = desk.window()
    begin(page)
    (desk.folder / "0.png").unlink()
    spot(page, 30, 30)
    page.wait_for_selector("#save-state[data-state=problem]")
    assert "0.png" in page.text_content("#trouble")
    page.keyboard.press("d")
    shows(page, "1.png")
