"""A real browser on a real server: Debian's Chromium, driven by Playwright.

Every page that is opened here notes what it must never do: ask a third party for anything, or fail in its own code.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from web_server import DEADLINE, Served

from holdfast.web.page import FOLDER

#: The folder for pictures of the screens, for a person who changes the page to look at.
SCREENS = Path(os.environ.get("HOLDFAST_SCREENS", Path(__file__).parents[2] / "build" / "screens"))
WIDE = {"width": 1360, "height": 820}
PHONE = {"width": 390, "height": 800}

# On a machine with much to do, five seconds, Playwright's default, are too short to draw a page.
expect.set_options(timeout=DEADLINE * 1000)


class Tab:
    """A tab of a browser that was let in, and what happened in it."""

    def __init__(self, page: Page, served: Served) -> None:
        self.page = page
        self.served = served
        self.asked: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console", lambda message: self.errors.append(message.text) if _is_fault(message.text) else None
        )

    def open(self, where: str) -> Page:
        """Open a view, by the part of its address after the #."""
        self.page.goto(f"{self.served.url}/#/{where}")
        return self.page

    def shot(self, name: str) -> None:
        """Save a picture."""
        SCREENS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENS / f"{name}.png")

    def check(self) -> None:
        """Nothing was asked of a third party, nothing failed."""
        strangers = [url for url in self.asked if not url.startswith((self.served.url, "data:", "blob:"))]
        assert not strangers
        assert not self.errors


def _is_fault(text: str) -> bool:
    """Is this more than the browser's own note that an answer was no 200, or that a server is gone?"""
    return "Content Security Policy" in text or "Uncaught" in text


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium here: make setup installs it where apt is there")
    if not (FOLDER / "index.html").is_file():
        pytest.skip("the page is not built here: make page (needs Node.js)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def tab(browser: Browser, served: Served, *, scheme: str = "light", phone: bool = False) -> Iterator[Tab]:
    """A tab in a browser of its own, let in by the address that the server prints."""
    context = browser.new_context(
        viewport=PHONE if phone else WIDE,  # type: ignore[arg-type]
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.set_default_timeout(DEADLINE * 1000)
    found = Tab(context.new_page(), served)
    found.page.goto(served.server.launch())
    try:
        yield found
    finally:
        context.close()
