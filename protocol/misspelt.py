"""What to say of a name that nothing is known of: the names there are, those spelt alike first."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NAMED = 5
"""So many names are told, and how many more there are."""


def there_are(name: str, known: Iterable[str]) -> str:
    """The known names in a row, those spelt much like `name` first; "none" where there are none."""
    others = sorted({*known} - {name})
    alike = get_close_matches(name, others, NAMED)
    named = [*alike, *(each for each in others if each not in alike)]
    more = len(named) - NAMED
    return (", ".join(named[:NAMED]) or "none") + (f" and {more} more" if more > 0 else "")


def no_tasks_beside(group: str, configured: Iterable[str]) -> str:
    """For a person who may have misspelt a group: it has no tasks, these groups have some."""
    return (
        f"group {group!r} has no tasks; configured groups: {there_are(group, configured)}; "
        f"muster config set --group {group} --tasks FILE gives it some"
    )
