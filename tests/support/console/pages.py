"""What tests read from the console's open pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def text(opened: Page, selector: str) -> str:
    """The text of an element."""
    return opened.locator(selector).inner_text()


def shows(opened: Page, selector: str, said: str) -> None:
    """Wait until an element has a text."""
    opened.wait_for_function(
        "([selector, said]) => document.querySelector(selector)?.innerText.includes(said)",
        arg=[selector, said],
    )


def members(opened: Page) -> dict[str, str]:
    """Member → its active tasks, from the table beside the map."""
    if not opened.locator("#as-table[open]").count():
        opened.click("#as-table summary")
        opened.wait_for_selector("#table-holder tbody tr")
    rows = opened.locator("#table-holder tbody tr")
    cells = rows.evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.innerText))")
    return {row[0]: row[3] for row in cells}


def moves(opened: Page) -> list[list[str]]:
    """The moves of a plan: task, from → to, reason."""
    rows: list[list[str]] = opened.locator("#plan-answer .move").evaluate_all(
        "all => all.map(move => [...move.querySelectorAll('.move-head > *, .reason')]"
        ".map(part => part.textContent))"
    )
    return rows


def delays(opened: Page) -> list[int]:
    """Milliseconds from the publication of each record to the group's page, oldest first."""
    delays_ms: list[int] = opened.evaluate("muster.page.delays")
    return delays_ms
