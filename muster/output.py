"""How values are printed: tables as Kafka's own tools print them, JSON lines, spans of time."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from muster.state.printable import printable

MISSING = "-"
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))
_LONGEST = 2_000
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_END_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest time that a date can show."""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The lines of a table; a column is as wide as its widest cell, the last is not padded."""
    cells = [list(columns), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    widths[-1] = 0
    padded = (" ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in padded)


def cell(value: object) -> str:
    """The text of one cell."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return printable(",".join(map(str, value))) or MISSING
    return printable(str(value))


def json_line(value: Mapping[str, object]) -> str:
    """One object, one line, in the order of its keys."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def span(spent_ms: int) -> str:
    """A span in the largest unit that it has at least two of; below 0 counts as 0."""
    for unit_ms, unit in _UNITS:
        if spent_ms >= 2 * unit_ms:
            return f"{spent_ms // unit_ms} {unit}"
    return f"{max(spent_ms, 0) // 1000} s"


def ago(now_ms: int, at_ms: int) -> str:
    """The span from `at_ms` to `now_ms`, both epoch milliseconds; "0 s ago" if `at_ms` is later."""
    return f"{span(now_ms - at_ms)} ago"


def wall_ms() -> int:
    """This machine's time, epoch milliseconds."""
    return time.time_ns() // 1_000_000


def date_of(at_ms: int) -> datetime:
    """Epoch milliseconds as a date in UTC; of those before 1970 or after 9999 the nearest one.

    A setting may mean "never", and a record may have any timestamp.
    """
    return _BEGINNING + timedelta(milliseconds=min(max(at_ms, 0), _END_MS))


def utc(at_ms: int | None) -> str | None:
    """Epoch milliseconds as UTC in ISO 8601, to the second."""
    return None if at_ms is None else date_of(at_ms).strftime("%Y-%m-%dT%H:%M:%SZ")


def one_line(message: str) -> str:
    """A message as one line of bounded length; characters that are not printable are escaped."""
    cut = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shown(value: object, most: int = 40) -> str:
    """A user's value for a message: quoted, and cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
