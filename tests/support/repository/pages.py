"""Parts of pages that are made from tables of the code, between two marks.

``UPDATE_DOCS=1`` writes them anew; without it a test compares.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def made(page: str, mark: str, expected: str) -> tuple[str, str]:
    """What stands in a page of docs/ between ``<!-- MARK -->`` and its end, and what should.

    Args:
        page: name of the file.
        mark: what the part is called and what it is made from, as ``acls: from muster.kafka.acls``.
        expected: the part as the code has it; ends with a line feed.
    """
    file = DOCS / page
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark.partition(':')[0]} -->"
    before, rest = file.read_text().split(begin)
    current, after = rest.split(end)
    if os.environ.get("UPDATE_DOCS"):
        current = expected
        file.write_text(f"{before}{begin}{current}{end}{after}")
    return current, expected


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
