"""Takes the pictures of docs/studio.md: plays a short story in a browser, on the demo's photographs.

    python examples/studio_pictures.py docs/images

A server is started on a folder of its own; coins are marked by smart clicks, all photos are segmented, reviewed, exported.
Needs the extras studio and demo, playwright and a Chromium.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from cyctr.studio.samples import sample_photos

SIZE = {"width": 1280, "height": 800}
QUALITY = 82
SCENES = ("coin", "galaxy", "saucer", "eye", "dahlia", "badge")
COINS = {
    "coin-1.jpg": [(0.5, 0.5)],
    "coin-4.jpg": [(0.16, 0.27), (0.46, 0.25), (0.79, 0.26), (0.17, 0.75), (0.47, 0.76), (0.81, 0.72)],
}
"""Where to click, as parts of a photo's width and height."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a studio."""
    command = [sys.executable, "-m", "cyctr", "studio", str(folder), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(found[1] for line in process.stdout if (found := re.search(r"open (http\S+)", line)))
        finally:
            process.terminate()


class Story:
    """A person at the page, and the pictures that are taken meanwhile."""

    def __init__(self, page: Page, output: Path) -> None:
        self.page, self.output = page, output

    def picture(self, name: str) -> None:
        self.page.wait_for_timeout(700)  # thumbnails that are on their way
        path = self.output / f"studio-{name}.jpg"
        self.page.screenshot(path=path, type="jpeg", quality=QUALITY)
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")

    def theme(self, wanted: str) -> None:
        if self.page.get_attribute("html", "data-theme") != wanted:
            self.page.click("#theme")

    def open(self, name: str) -> None:
        self.page.click(f".frame-button[title='{name}']")
        self.page.wait_for_selector(f"#stage[data-photo='{name}'][data-sharp=true]")

    def click(self, x: float, y: float) -> None:
        """A smart click at a part of the photo's width and height."""
        stage = self.page.locator("#stage")
        box, values = stage.bounding_box(), [float(stage.get_attribute(f"data-{name}") or 0) for name in ("scale", "x", "y")]
        width, height = map(int, (self.page.text_content("#photo-size") or "").split(" × "))
        assert box is not None
        with self.page.expect_response(lambda answer: answer.request.method == "PUT", timeout=120_000):
            self.page.mouse.click(box["x"] + values[1] + x * width * values[0], box["y"] + values[2] + y * height * values[0])

    def label(self) -> None:
        page = self.page
        page.fill("#first-class-name", "coin")
        page.press("#first-class-name", "Enter")
        page.wait_for_selector(".class-row")
        page.click("[data-tool=click]")
        if page.locator("#click-kind").is_visible():
            page.select_option("#click-kind", "plain")  # where SAM is, too, the pictures show what all have
        for name, places in COINS.items():
            self.open(name)
            for place in places:
                self.click(*place)
                page.keyboard.press("Enter")
            page.wait_for_selector("#photo-state[data-state=example]")
        self.settle()
        page.keyboard.press("b")
        box = page.locator("#stage").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.62 * box["width"], box["y"] + 0.5 * box["height"])

    def settle(self) -> None:
        """Waits until no preview is on its way."""
        self.page.wait_for_timeout(1000)
        self.page.wait_for_selector(".frame.stale", state="detached", timeout=240_000)

    def segment(self) -> None:
        self.page.click("#segment-all")
        self.page.click("dialog button.primary")
        self.page.wait_for_selector(".note:has-text('segmented')", timeout=600_000)
        self.page.click(".note button[aria-label=Dismiss]")


def play(page: Page, output: Path) -> None:
    """The story, from the first class to the export."""
    story = Story(page, output)
    story.theme("dark")
    story.label()
    story.picture("label")
    story.segment()
    story.theme("light")
    page.click("#go-review")
    page.wait_for_selector(".cell[data-photo]")
    for key in ("x", "x", "x"):
        page.keyboard.press(key)
        page.wait_for_timeout(300)
    story.picture("review")
    page.click("#go-export")
    page.wait_for_selector("#export-run[data-ready=true]")
    story.picture("export")
    story.theme("dark")
    page.click("#go-label")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    story.picture("keys")


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) == 2 else sys.exit("one folder is expected: where the pictures go")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium is found; install the package chromium")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "photos")
        sample_photos(folder)
        for path in folder.iterdir():
            if path.name.split("-")[0] not in SCENES:
                path.unlink()
        with served(folder) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE, device_scale_factor=1, reduced_motion="reduce")
            page.set_default_timeout(60_000)
            page.goto(address)
            page.wait_for_selector("body[data-ready=true]")
            play(page, output)
            browser.close()


if __name__ == "__main__":
    main()
