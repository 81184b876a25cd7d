"""How the studio's grid feels in a browser: time to its first pictures, time between frames while it scrolls, and memory.

    python benchmarks/studio_grid.py                     # 500 and 5,000 photos
    python benchmarks/studio_grid.py --photos 500

Makes noisy photos in a folder of its own, serves them, and opens the review in a headless Chromium at 1280 x 800. A wheel
turns from top to bottom, or 400 times. The memory is that of the page's own process, and of its JavaScript.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

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
PICTURES = """() => {
  const canvases = [...document.querySelectorAll('.cell canvas')];
  return canvases.length > 0 && canvases.every((one) => one.width !== 300);  // as wide as no canvas that was drawn on
}"""


def make_photos(folder: Path, count: int) -> None:
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        small = random.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(small).resize((800, 600), Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg")


def measure(address: str, browser: Browser) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector("body[data-ready=true]")
    page.evaluate("history.replaceState(null, '', '#review')")
    started = time.perf_counter()
    page.reload()
    page.wait_for_selector("#cell-0[data-photo]")
    cells = time.perf_counter() - started
    page.wait_for_function(PICTURES)
    pictures = time.perf_counter() - started
    page.mouse.move(500, 500)
    page.evaluate(FRAMES)
    for _ in range(400):
        page.mouse.wheel(0, 120)
        page.wait_for_timeout(16)
        if page.locator("#review-scroller").evaluate("(one) => one.scrollTop + one.clientHeight >= one.scrollHeight - 2"):
            break
    found = page.evaluate(READ)
    middle, late, worst = np.percentile(np.array(found["frames"]), [50, 95, 100])
    return {
        "first_cells_seconds": round(cells, 2),
        "first_pictures_seconds": round(pictures, 2),
        "frames": len(found["frames"]),
        "frame_median_ms": round(middle, 1),
        "frame_95_percent_ms": round(late, 1),
        "frame_longest_ms": round(worst),
        "cells": found["cells"],
        "elements": found["elements"],
        "page_mib": page_mib(browser),
        "javascript_mib": round(found["heap"] / 2**20, 1),
    }


def page_mib(browser: Browser) -> float | None:
    """Memory of the largest process that shows a page; none where the system does not say."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    try:
        texts = [Path(f"/proc/{one['id']}/status").read_text() for one in processes if one["type"] == "renderer"]
    except OSError:
        return None
    return max(round(int(found[1]) / 1024, 1) for text in texts if (found := re.search(r"VmRSS:\s+(\d+)", text)))


def case(count: int, chromium: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        make_photos(Path(place, "photos"), count)
        command = [sys.executable, "-m", "cyctr", "studio", str(Path(place, "photos")), "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, sync_playwright() as playwright:
            assert process.stdout is not None
            arguments = ["--no-sandbox", "--enable-precise-memory-info"]
            browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
            try:
                address = next(found[1] for line in process.stdout if (found := re.search(r"open (http\S+)", line)))
                return {"photos": count} | measure(address, browser)
            finally:
                browser.close()
                process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--photos", type=int, nargs="+", default=[500, 5000])
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("studio-grid-cpu.json"))
    given = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium is found; install the package chromium")
    report = [case(count, chromium) for count in given.photos]
    given.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
