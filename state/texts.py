"""Texts for people with names from outside in them: short, and of characters that print."""

from __future__ import annotations

TEXT_CHARS_MAX = 1_000


def cut(text: str, most: int = TEXT_CHARS_MAX) -> str:
    """A text of at most `most` characters, its beginning, with what does not print escaped."""
    return printable(text if len(text) <= most else f"{text[: most - 1]}…")


def printable(text: str) -> str:
    """The text with what does not print escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
