"""A real browser: Chromium from the system's packages, driven by Playwright."""

import os
import shutil
import time

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-dev-shm-usage",
]


def find_chromium() -> str | None:
    asked = os.environ.get("CDFL_CHROMIUM")
    return asked or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser():
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or set CDFL_CHROMIUM to its path")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


class Tab:
    """A page in a profile of its own, and everything it complained about or asked for."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def heard(self, message):
        expected = any(words in message.text for words in ("401", "503", "ERR_CONNECTION", "ERR_INCOMPLETE"))
        if message.type in ("error", "warning") and not expected:  # the browser itself logs refused requests
            self.complaints.append(message.text)

    def value(self, script: str):
        return self.page.evaluate(script)

    def wait(self, script: str, seconds: float = 15):
        end = time.monotonic() + seconds
        while not self.page.evaluate(script):  # wait_for_function would need `eval`, which the page forbids
            assert time.monotonic() < end, f"it did not happen in time: {script}"
            self.page.wait_for_timeout(30)


@pytest.fixture
def tab(browser):
    """A tab that has asked only one host and complained about nothing."""
    yield from checked(browser)


@pytest.fixture
def phone(browser):
    """The same on a phone."""
    yield from checked(browser, viewport={"width": 390, "height": 800}, is_mobile=True, has_touch=True)


def checked(browser, **options):
    viewport = options.pop("viewport", None)
    tab = Tab(browser, **options)
    if viewport:
        tab.page.set_viewport_size(viewport)
    yield tab
    tab.context.close()
    assert tab.complaints == []
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in tab.requests), tab.requests
