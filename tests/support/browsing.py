"""A real browser in front of a running studio; tests act as a person does and look at the files."""

import io
import os
import shutil
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

TOKEN = "a-token-of-the-tests"
SAVED = "#save-state[data-state=saved]"
_LEFT_OUT = "browser tests left out"


def _executable():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _refuse(reason):
    if os.environ.get("CYCTR_REQUIRE_BROWSER") == "1":
        pytest.fail(f"the browser tests are required here, but {reason}")
    pytest.skip(f"{_LEFT_OUT}: {reason}")


def pytest_terminal_summary(terminalreporter):
    """Says once how many tests had no browser, and why."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)]
    left_out = [reason for reason in reasons if _LEFT_OUT in reason]
    for reason in sorted(set(left_out)):
        terminalreporter.write_line(f"{left_out.count(reason)} {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests of a worker."""
    if _executable() is None:
        _refuse("no Chromium is found; install the package chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _refuse("playwright is not installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=_executable(), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def served(studio):
    """The address of a studio that answers in a thread of this process, as its command line would serve it."""
    import uvicorn

    from cyctr.studio.serving import application

    listener = uvicorn.Config(lambda: None, host="127.0.0.1", port=0, log_level="error").bind_socket()
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        application(studio, TOKEN, port), log_level="error", lifespan="off", timeout_graceful_shutdown=1, access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    studio.worker.start()
    try:
        yield f"http://127.0.0.1:{port}/?token={TOKEN}"
    finally:
        studio.events.end()
        server.should_exit = True
        thread.join()
        listener.close()


class Desk:
    """A person at a browser: opens windows on a studio, and knows where the files are."""

    def __init__(self, browser, folder, address):
        self.browser, self.folder, self.address = browser, Path(folder), address
        self.project = self.folder / "cyctr-studio"
        self.strangers, self.errors, self._open = [], [], ExitStack()

    def window(self, expect_ready=True, **options):
        """A page in a window of its own; requests to other hosts and errors of the page's code are noted."""
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self._open.callback(context.close)
        context.on("request", self._look)
        page = context.new_page()
        page.set_default_timeout(40_000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(self.address)
        if expect_ready:
            page.wait_for_selector("body[data-ready=true]")
        return page

    def _look(self, request):
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.netloc != urlsplit(self.address).netloc:
            self.strangers.append(request.url)

    def mask(self, stem, name="cup"):
        """(H, W) what the one file with the mask of a photo holds, or none; the server may just be moving it."""
        with_examples, other = (self.project / place / name / f"{stem}.png" for place in ("masks", "found"))
        seen = []

        def settled():
            seen[:] = [_content(path) for path in (with_examples, other, with_examples)]
            return seen[0] == seen[2] and None in seen

        wait(settled, 10)  # two files for one mask never settle
        content = seen[0] or seen[1]
        if content is None:
            return None
        values = np.asarray(Image.open(io.BytesIO(content)))
        assert ((values == 0) | (values == 255)).all()
        return values > 0

    def close(self):
        self._open.close()


def _content(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextmanager
def seated(browser, folder, open_network):
    """A person in front of a studio with the photos of a folder; nothing may leave the host, and the page's code not fail."""
    from cyctr.studio.serving import opened

    with opened(folder, None, open_network) as studio:
        with served(studio) as address:
            desk = Desk(browser, folder, address)
            yield desk
            desk.close()
        studio.worker.end()
    assert not desk.strangers, "a request left the host"
    assert not desk.errors, "the page's code failed"


@pytest.fixture
def desk(browser, folder, network):
    """A person in front of a studio with the photos of `folder`."""
    with seated(browser, folder, lambda: network) as desk:
        yield desk


def wait(true, seconds=40):
    """Waits until something holds that a request in the background brings about."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def saved(page):
    """Waits until the page says that all is on disk."""
    page.wait_for_selector(SAVED)


def begin(page, name="cup"):
    """Names the first class."""
    page.fill("#first-class-name", name)
    page.press("#first-class-name", "Enter")
    page.wait_for_selector(".class-row [aria-pressed=true]")
    page.wait_for_selector("#stage:focus")


def shows(page, name):
    """Waits until a photo is open and can be marked."""
    wait(lambda: page.get_attribute("#stage", "data-photo") == name)


def previewed(page):
    """Waits for all previews that the steps so far bring about: they make newer masks."""
    page.wait_for_selector("#filmstrip[aria-busy=false]", state="attached")


def dismiss(page):
    """Closes all notes."""
    page.locator(".note button[aria-label=Dismiss]").evaluate_all("(buttons) => buttons.forEach((one) => one.click())")


def segment_all(page):
    """Segments all photos and waits for the end, and for previews."""
    dismiss(page)
    page.click("#segment-all")
    page.click("dialog button.primary")
    page.wait_for_selector(".note:has-text('segmented'), .note:has-text('differ')")
    previewed(page)


def painted(page):
    """Waits until the page shows what was asked for: the second frame from now begins when the first is on the screen."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def zoom(page, percent):
    page.fill("#zoom", str(percent))
    page.press("#zoom", "Enter")
    page.locator("#stage").focus()


def size_brush(page, size):
    """Sets the size of the brush as a person does who knows the number."""
    page.locator("#brush-size").fill(str(size))
    page.locator("#stage").focus()


class Sight:
    """Where the photo is on the screen now."""

    def __init__(self, page):
        stage = page.locator("#stage")
        self.box = stage.bounding_box()
        self.scale, self.x, self.y = (float(stage.get_attribute(f"data-{name}")) for name in ("scale", "x", "y"))

    @property
    def middle(self):
        return self.box["x"] + self.box["width"] / 2, self.box["y"] + self.box["height"] / 2

    def screen(self, column, row):
        """The middle of a pixel of the photo, on the page."""
        left, top = self.box["x"] + self.x, self.box["y"] + self.y
        return left + (column + 0.5) * self.scale, top + (row + 0.5) * self.scale

    def pixel(self, x, y):
        """(column, row) the pixel of the photo at a place of the page."""
        left, top = self.box["x"] + self.x, self.box["y"] + self.y
        return int(np.floor((x - left) / self.scale)), int(np.floor((y - top) / self.scale))


def stroke(page, places, button="left"):
    """Presses the button at the first place, moves through the others, and lets go."""
    page.mouse.move(*places[0])
    page.mouse.down(button=button)
    for place in places[1:]:
        page.mouse.move(*place)
    page.mouse.up(button=button)


def under_brush(size, pixels, diameter):
    """(H, W) the pixels a stroke covers, one by one: those whose centre is near enough to the line between two places."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    covered = np.zeros(size, bool)
    for (x0, y0), (x1, y1) in zip(pixels, [*pixels[1:], pixels[-1]], strict=True):
        dx, dy = x1 - x0, y1 - y0
        along = np.clip(((columns - x0) * dx + (rows - y0) * dy) / max(dx * dx + dy * dy, 1), 0, 1)
        covered |= (columns - x0 - along * dx) ** 2 + (rows - y0 - along * dy) ** 2 <= diameter**2 / 4 + 1e-9
    return covered
