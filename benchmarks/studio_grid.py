"""How smoothly the studio's grid scrolls: the time between frames while a person turns the wheel.

    python benchmarks/studio_grid.py --photos 500

Makes noisy photos in a folder of its own, serves them, scrolls the review from top to bottom in a headless Chromium at
1280 x 800, and prints the intervals between animation frames, the elements that exist, and the page's memory.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

FRAMES = """() => {
  window.frames_ = [];
  let last = performance.now();
  const next = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""
READ = """() => ({
  frames: window.frames_,
  cells: document.querySelectorAll('.cell').length,
  elements: document.querySelectorAll('*').length,
  heap: performance.memory ? performance.memory.usedJSHeapSize : 0,
})"""


def make_photos(folder: Path, count: int) -> None:
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        small = random.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(small).resize((800, 600), Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg")


def measure(address: str, chromium: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--enable-precise-memory-info"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector("body[data-ready=true]")
        page.click("#go-review")
        page.wait_for_selector("#cell-0[data-photo]")
        page.mouse.move(500, 500)
        page.evaluate(FRAMES)
        for _ in range(400):
            page.mouse.wheel(0, 120)
            page.wait_for_timeout(16)
            if page.locator("#review-scroller").evaluate("(one) => one.scrollTop + one.clientHeight >= one.scrollHeight - 2"):
                break
        found = page.evaluate(READ)
        frames = np.array(found["frames"])
        middle, late, worst = np.percentile(frames, [50, 95, 100])
        print(f"{len(frames)} frames: median {middle:.1f} ms, 95 % under {late:.1f} ms, longest {worst:.0f} ms")
        print(f"{found['cells']} cells, {found['elements']} elements, {found['heap'] / 1e6:.0f} MB of JavaScript")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--photos", type=int, default=500)
    count = parser.parse_args().photos
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium is found; install the package chromium")
    with tempfile.TemporaryDirectory() as place:
        make_photos(Path(place, "photos"), count)
        command = [sys.executable, "-m", "cyctr", "studio", str(Path(place, "photos")), "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                measure(next(found[1] for line in process.stdout if (found := re.search(r"open (http\S+)", line))), chromium)
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
