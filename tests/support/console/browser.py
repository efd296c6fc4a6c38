"""A real browser for tests of pages: the machine's Chromium, through Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WIDE, NARROW = (1280, 860), (390, 844)
PATIENCE_MS = 30_000


def chromium() -> str | None:
    """The machine's browser: ``MUSTER_CHROMIUM``, or one on the path; None = there is none."""
    paths = (shutil.which(name) for name in NAMES)
    return os.environ.get("MUSTER_CHROMIUM") or next(filter(None, paths), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser; the test is skipped where there is none."""
    path = chromium()
    if path is None:
        pytest.skip("no Chromium (Debian has it in the package chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield made
        finally:
            made.close()


@contextmanager
def page(
    made: Browser, size: tuple[int, int] = WIDE, scheme: Any = "light", **more: Any
) -> Iterator[Page]:
    """A page that fails if a script fails, or if the page's policy stops something.

    Args:
        made: the browser.
        size: width and height in pixels.
        scheme: light or dark.
        more: of Playwright's `new_context`.
    """
    faults: list[str] = []
    context = made.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, **more
    )
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("dialog", lambda dialog: faults.append(dialog.message))
    opened.on(
        "console",
        lambda said: faults.append(said.text) if "Content Security" in said.text else None,
    )
    try:
        yield opened
    finally:
        context.close()
    assert faults == []


def serious(opened: Page) -> list[str]:
    """What axe finds on a page that is serious or critical, with the elements."""
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(opened).response["violations"]
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes']][:3]}"
        for each in violations
        if each["impact"] in ("serious", "critical")
    ]
