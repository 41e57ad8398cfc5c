"""A real browser, offline, for the tests of pages."""

import os
import shutil
from importlib.util import find_spec

import pytest

# The heatmap's labels are painted on a canvas, so the only way to read them is to listen to the painter.
LISTEN = """
window.painted = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  window.painted.push(String(text));
  return fillText.call(this, text, ...place);
};
"""

# The large heatmap: grown to its size, and painted on.
DRAWN = """
() => {
  const canvas = [...document.querySelectorAll("canvas")].pop();
  if (canvas.clientWidth < 200) return false;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.filter((value, i) => i % 4 === 3 && value > 0).length > pixels.length / 4 / 3;
}
"""


def lacks(what):
    """Skips a test for what is not installed here; where CI is set, it fails instead, for all is installed there."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def find_browser():
    """Return the path of Chromium, or ``None`` if it or playwright is not installed."""
    if find_spec("playwright") is None:
        return None
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def need_browser():
    """Return the path of the browser; skip the test if there is none."""
    if (path := find_browser()) is None:
        lacks("no chromium or no playwright: apt-get install chromium, pip install playwright")
    return path


@pytest.fixture(scope="module")
def browser():
    executable = need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        for name in ("new_context", "new_page"):
            setattr(chromium, name, patient(getattr(chromium, name)))
        yield chromium
        chromium.close()


def patient(make):
    """Let what a function makes wait as long as a test may take, also on a busy machine."""

    def made(**options):
        context = make(**options)
        context.set_default_timeout(600_000)
        return context

    return made


@pytest.fixture
def open_page(browser):
    """Opens a file, and waits until its attention ``view`` is drawn.

    Afterwards no error and no request but for the file itself may have been seen.
    """
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 1400})
    context.add_init_script(LISTEN)
    page, seen, trouble = context.new_page(), [], []
    page.on("request", lambda request: seen.append(request.url))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)

    def open_(path, view=True):
        page.goto(path.as_uri())
        if view:
            page.wait_for_selector("canvas")
            page.wait_for_function(DRAWN)
        return page

    yield open_
    context.close()
    assert trouble == []
    assert len(seen) == 1, seen


@pytest.fixture(scope="session")
def drawn():
    """JavaScript: whether the large heatmap of an attention view is drawn."""
    return DRAWN


@pytest.fixture(scope="module")
def opened(browser, sandbox_file):
    """The module's sandbox page, opened once for all tests, and what went wrong in it or was asked of a network."""
    context = browser.new_context(offline=True, viewport={"width": 1440, "height": 900})
    page, trouble = context.new_page(), []
    page.on("request", lambda request: trouble.append(request.url) if request.url != sandbox_file.as_uri() else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.goto(sandbox_file.as_uri())
    page.wait_for_function("() => window.sandbox")
    yield page, trouble
    context.close()


@pytest.fixture
def at_start(opened):
    """That page at its first frame, nothing pointed at; afterwards no error and no request may have been seen."""
    page, trouble = opened
    page.locator("h1").click()
    for key in ("Escape", "Home"):
        page.keyboard.press(key)
    yield page
    assert trouble == []


@pytest.fixture
def trouble_of(browser):
    """``trouble_of(path)`` opens a page, unfolds all that is folded in it, and gives its errors and requests."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 1400})
    page, found, asked = context.new_page(), [], set()
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: found.append(request.url) if request.url not in asked else None)

    def open_(path):
        asked.add(path.as_uri())
        page.goto(path.as_uri(), wait_until="load")
        for folded in page.locator("details > summary").all():
            folded.click()
        page.wait_for_timeout(300)
        return found

    yield open_
    context.close()
