"""A query starts again if Spark's Python process was late, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from muster.streams import query
from muster.streams.errors import QueryFailed

LATE = "[STREAM_FAILED] Query [id = 1] terminated: Python worker failed to connect back."


def starts(*stories: str | None) -> int:
    """How often a query starts whose runs end like this: with an error, or in order (None)."""
    ends = iter(stories)
    started = 1

    def again() -> Any:
        nonlocal started
        started += 1

    def wait(_: object) -> None:
        if story := next(ends):
            raise QueryFailed(story)

    query.wait_with_restarts(None, again, wait)  # type: ignore[arg-type]  # the query is not looked at
    return started


def test_a_late_python_is_no_end() -> None:
    """Twice is not too often."""
    assert starts(None) == 1
    assert starts(LATE, None) == 2
    assert starts(LATE, LATE, None) == 3


def test_other_errors_end_the_job() -> None:
    """A query that fails again and again does, too."""
    with pytest.raises(QueryFailed, match="no space left"):
        starts("no space left", None)
    with pytest.raises(QueryFailed, match="connect back"):
        starts(LATE, LATE, LATE, None)
