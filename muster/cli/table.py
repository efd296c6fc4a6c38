"""Tables as Kafka's own tools print them: upper case, padded with spaces, ``-`` for missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from muster.state.printable import printable

MISSING = "-"


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
