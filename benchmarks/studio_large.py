"""How a photo of 50 megapixels feels in the studio: time between frames while it is moved and painted on, time to save, memory.

    python benchmarks/studio_large.py

Makes one noisy photo, serves it, and opens it in a headless Chromium at 1280 x 800: zooms by the wheel, pans, paints in detail
and across the whole photo, takes that back. The memory is that of the page's own process, and of the server.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from studio_grid import FRAMES, READ, page_mib

SIZE = (5800, 8700)


def make_photo(folder: Path, size: tuple[int, int]) -> None:
    folder.mkdir()
    small = np.random.default_rng(0).integers(0, 256, (size[0] // 20, size[1] // 20, 3), dtype=np.uint8)
    Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC).save(folder / "0.jpg", quality=90)


class Hand:
    """What a person does on the stage."""

    def __init__(self, page: Page) -> None:
        self.page = page
        box = page.locator("#stage").bounding_box()
        assert box is not None
        self.x, self.y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def zoom(self) -> None:
        self.page.mouse.move(self.x, self.y)
        for _ in range(20):
            self.page.mouse.wheel(0, -120)

    def pan(self) -> None:
        self.page.keyboard.down(" ")
        self._drag(0, -8, 4)
        self.page.keyboard.up(" ")

    def detail(self) -> None:
        self._drag(0, 3, 100)

    def across(self) -> None:
        self._drag(-300, 10, 150)

    def undo(self) -> None:
        self.page.keyboard.press("Control+z")

    def _drag(self, start: float, step: float, swing: float) -> None:
        self.page.mouse.move(self.x + start, self.y)
        self.page.mouse.down()
        for count in range(60):
            self.page.mouse.move(self.x + start + step * count, self.y + swing * float(np.sin(count / 5)))
        self.page.mouse.up()


def frames_of(page: Page, act: Callable[[], None], saves: bool) -> dict[str, Any]:
    """Frames while something is done, and the seconds until it is on disk."""
    before = len(page.evaluate(READ)["frames"])
    act()
    started = time.perf_counter()
    if saves:
        page.wait_for_selector("#save-state[data-state=saved]")
    saved = time.perf_counter() - started
    page.wait_for_timeout(200)
    middle, late, worst = np.percentile(page.evaluate(READ)["frames"][before + 1 :], [50, 95, 100])
    found = {"median_ms": round(middle, 1), "95_percent_ms": round(late, 1), "longest_ms": round(worst)}
    return found | ({"saved_after_seconds": round(saved, 2)} if saves else {})


def measure(page: Page) -> dict[str, Any]:
    started = time.perf_counter()
    page.fill("#first-class-name", "thing")
    page.press("#first-class-name", "Enter")
    page.wait_for_selector("#stage:focus")
    page.wait_for_selector("#stage[data-sharp=true]")
    hand, found = Hand(page), {"sharp_after_seconds": round(time.perf_counter() - started, 2)}
    page.evaluate(FRAMES)
    result: dict[str, Any] = dict(found)
    for name in ("zoom", "pan", "detail", "across", "undo"):
        if name == "across":
            page.keyboard.press("f")
        if name in ("detail", "across"):
            page.locator("#brush-size").fill("400")
            page.locator("#stage").focus()
        page.wait_for_selector("#stage[data-sharp=true]")
        result[name] = frames_of(page, getattr(hand, name), name in ("detail", "across", "undo"))
    return result


def case(size: tuple[int, int], chromium: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        make_photo(Path(place, "photos"), size)
        command = [sys.executable, "-m", "cyctr", "studio", str(Path(place, "photos")), "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, sync_playwright() as playwright:
            assert process.stdout is not None
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            try:
                address = next(found[1] for line in process.stdout if (found := re.search(r"open (http\S+)", line)))
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.set_default_timeout(120_000)
                page.goto(address)
                page.wait_for_selector("body[data-ready=true]")
                page.wait_for_selector("#model-state[data-state=ready]", state="attached")
                found = {"photo": f"{size[1]} x {size[0]}"} | measure(page)
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = re.search(r"VmHWM:\s+(\d+)", status)
                return found | {"page_mib": page_mib(browser), "server_peak_mib": peak and round(int(peak[1]) / 1024, 1)}
            finally:
                browser.close()
                process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("studio-large-cpu.json"))
    given = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium is found; install the package chromium")
    report = case(SIZE, chromium)
    given.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
