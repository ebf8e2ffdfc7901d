"""One browser for all tests of the page: Chromium, at the path in the environment variable BROWSER."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
LAPTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}

expect.set_options(timeout=30_000)  # a busy machine is no failure


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("BROWSER") or shutil.which("chromium")
    assert path, "BROWSER names no browser: `make test-browser` finds one"
    with sync_playwright() as playwright:
        # The sandbox needs rights that a container does not give; the page is our own.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A laptop's window. Whatever the page complains about (errors, refused by its policy) fails the test."""
    context = browser.new_context(viewport=LAPTOP, color_scheme="light", locale="en-GB", timezone_id="UTC")  # type: ignore[arg-type]
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    gone = "Failed to load resource: net::"  # the server ends before the page does
    opened.on(
        "console",
        lambda said: complaints.append(said.text) if said.type == "error" and gone not in said.text else None,
    )
    yield opened
    context.close()
    assert complaints == []


def save_picture(page: Page, name: str) -> None:
    """A screenshot for the documentation, if they are to be written anew (PICTURES=1)."""
    if os.environ.get("PICTURES"):
        IMAGES.mkdir(exist_ok=True)
        page.screenshot(path=IMAGES / f"ui-{name}.png")
