"""Number of examples of a property test: a third in `make fast`, all of them in `make test`.

Hypothesis makes the same examples each time (`conftest`), so `make test` tries that third, too.
"""

from __future__ import annotations

import os

ALL = os.environ.get("MUSTER_EXAMPLES") == "all"
FEWEST = 15


def examples(count: int) -> int:
    """The number of examples in this run, of `count` in a full run."""
    return count if ALL else max(count // 3, min(count, FEWEST))
