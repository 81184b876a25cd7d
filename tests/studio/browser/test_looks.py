"""What everybody can use: no serious violation of the accessibility rules, long lists, keys that are shown and changed."""

import pytest
from browsing import Sight, begin, painted, saved, shows, stroke, wait
from segmenting import photos

COUNT = 500
IN_SIGHT = """() => {
    const box = document.getElementById('review-scroller').getBoundingClientRect();
    const cells = [...document.querySelectorAll('.cell')].filter((one) => {
        const { top, bottom } = one.getBoundingClientRect();
        return bottom > box.top && top < box.bottom;
    });
    return cells.length > 0 && cells.every((one) => !one.classList.contains('loading'));
}"""


@pytest.fixture
def folder(tmp_path):
    return photos(tmp_path / "photos", 4)


def violations(page):
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


def test_axe_finds_no_serious_violation_on_any_screen(desk):
    page = desk.window(color_scheme="light")

    def fine_in_both_themes():
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.evaluate("(scheme) => { document.documentElement.dataset.theme = scheme; }", scheme)
            painted(page)
            assert violations(page) == [], scheme

    assert page.get_attribute("html", "data-theme") == "light"
    fine_in_both_themes()
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "dark"
    begin(page)
    stroke(page, [Sight(page).screen(20, 20)])
    saved(page)
    page.wait_for_selector("#photo-state[data-state=example]")
    fine_in_both_themes()
    for screen, there in (("Shift+2", ".cell[data-state=example]"), ("Shift+3", "#export-run[data-ready=true]")):
        page.keyboard.press(screen)
        page.wait_for_selector(there)
        fine_in_both_themes()
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    fine_in_both_themes()


def test_every_button_has_a_name_and_is_large_enough(desk):
    page = desk.window()
    begin(page)
    script = """() => [...document.querySelectorAll('button, input, select, summary, a')]
        .filter((one) => one.checkVisibility())
        .map((one) => [one.outerHTML.slice(0, 90), one.getBoundingClientRect(), one.ariaLabel || one.textContent.trim()])
        .map(([html, box, name]) => [html, box.width, box.height, name])"""
    for screen in ("Shift+1", "Shift+2", "Shift+3"):
        page.keyboard.press(screen)
        for html, width, height, name in page.evaluate(script):
            small = 'type="radio"' in html or 'type="checkbox"' in html  # their labels are the targets
            assert small or (width >= 24 and height >= 24), html
            assert name or "<input" in html or "<select" in html, html


def test_a_key_that_is_changed_works_and_a_conflict_is_told(desk):
    page = desk.window()
    begin(page)
    page.keyboard.press("?")
    page.click("[aria-label^='Change the key of: Brush']")
    page.keyboard.press("e")
    page.wait_for_selector("dialog:has-text('E has a meaning already')")
    page.click("dialog button:has-text('Leave it')")
    page.click("[aria-label^='Change the key of: Brush']")
    page.keyboard.press("y")
    page.wait_for_selector("[aria-label='Change the key of: Brush. Now Y']")
    page.click("dialog button.primary")
    page.keyboard.press("p")
    page.keyboard.press("y")
    assert page.get_attribute("[data-tool=brush]", "aria-pressed") == "true"
    page.reload()
    page.wait_for_selector("body[data-ready=true]")
    page.locator("#stage").focus()
    page.keyboard.press("p")
    page.keyboard.press("y")
    assert page.get_attribute("[data-tool=brush]", "aria-pressed") == "true"


def test_the_offer_to_fetch_sam_names_its_size_and_licence(desk, monkeypatch):
    monkeypatch.setattr("cyctr.studio.sam.Sam.ready", False)
    page = desk.window()
    page.click("[data-tool=click]")
    page.wait_for_selector("#sam-fetch:text('184 MB, Apache-2.0')")


def test_single_keys_can_be_switched_off(desk):
    page = desk.window()
    begin(page)
    page.keyboard.press("?")
    page.uncheck("dialog input[type=checkbox]")
    page.click("dialog button.primary")
    page.keyboard.press("p")
    assert page.get_attribute("[data-tool=brush]", "aria-pressed") == "true"


@pytest.fixture
def many(folder):
    """More photos than a screen has room for."""
    for number in range(4, COUNT):
        (folder / f"{number}.jpg").hardlink_to(folder / f"{number % 4}.jpg")
    return folder


def test_a_long_grid_has_elements_only_for_what_is_in_sight(many, desk):
    page = desk.window()

    def at_the_end():
        page.locator("#filmstrip").evaluate("(strip) => { strip.scrollLeft = 1e9; }")
        painted(page)
        return page.locator(".frame-button[title='99.jpg']").count()

    wait(at_the_end)  # the strip has its length, and brings the open photo into sight, some time after the page is ready
    page.click(".frame-button[title='99.jpg']")
    shows(page, "99.jpg")
    page.reload()
    page.wait_for_selector("body[data-ready=true]")
    shows(page, "99.jpg")
    assert page.locator(".frame").count() <= 20
    page.click("#go-review")
    page.wait_for_selector(f"#review-total:text('{COUNT} photos')")
    page.wait_for_selector("#cell-0[data-photo]")
    seen = set()
    for _ in range(12):
        page.evaluate("document.getElementById('review-scroller').scrollTop += 2500")
        page.wait_for_function(IN_SIGHT)
        assert page.locator(".cell").count() <= 60
        seen.update(page.locator(".cell[data-photo]").evaluate_all("(cells) => cells.map((one) => one.dataset.index)"))
    page.evaluate("document.getElementById('review-scroller').scrollTop = 1e9")
    wait(lambda: page.locator(f"#cell-{COUNT - 1}[data-photo]").count() == 1)
    assert len(seen) > 100
    page.click("#as-list")
    page.evaluate("document.getElementById('review-scroller').scrollTop = 0")
    wait(lambda: page.locator("#cell-0 .cell-facts").text_content() == "no mask yet")
