"""Makes texts with names from outside safe to print: bounded length, printable characters."""

from __future__ import annotations

TEXT_CHARS_MAX = 1_000


def cut(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """The first `chars_max` characters of a text, with unprintable characters escaped."""
    return printable(text if len(text) <= chars_max else f"{text[: chars_max - 1]}…")


def printable(text: str) -> str:
    """The text with unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
