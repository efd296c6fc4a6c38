"""Messages about unknown names: they list the known names, similar ones first."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NAMED = 5
"""At most this many names are listed, then the number of the others."""


def there_are(name: str, known: Iterable[str]) -> str:
    """The known names as text, those similar to `name` first; "none" if there are none."""
    others = sorted({*known} - {name})
    similar = get_close_matches(name, others, NAMED)
    named = [*similar, *(other for other in others if other not in similar)]
    more = len(named) - NAMED
    return (", ".join(named[:NAMED]) or "none") + (f" and {more} more" if more > 0 else "")


def no_tasks_beside(group: str, configured: Iterable[str]) -> str:
    """Message for a group without tasks, whose name may be misspelt: it lists configured groups."""
    return (
        f"group {group!r} has no tasks; configured groups: {there_are(group, configured)}; "
        f"muster config set --group {group} --tasks FILE gives it some"
    )
