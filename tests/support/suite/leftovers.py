"""Checks at the end of the test session that no process of a test still runs.

Every session writes a mark into its environment. Each process that it starts inherits the mark, and
so do its children. A process that has the mark after all fixtures are closed was left behind:
the session fails, names it, and ends it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

MARK = "MUSTER_TEST_SESSION"
GRACE_S = 20.0
"""Processes that are ending may take a moment."""
TRACKER = "multiprocessing.resource_tracker"
"""Python's own, one a process that used multiprocessing; it ends with that process."""


def marked(mark: str) -> list[psutil.Process]:
    """Running processes that inherited a mark, without this one."""
    return [process for process in psutil.process_iter() if _bears(process, mark)]


def _bears(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error, OSError):
        is_other = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
        is_ours = is_other and process.environ().get(MARK) == mark
        return is_ours and not any(TRACKER in word for word in process.cmdline())
    return False


def ended(mark: str, grace_s: float = GRACE_S) -> list[str]:
    """Wait for the processes with a mark, then kill the rest.

    Returns:
        The command lines of those that did not end by themselves.
    """
    _, left = psutil.wait_procs(marked(mark), timeout=grace_s)
    lines = []
    for process in left:
        with suppress(psutil.Error):
            lines.append(f"{process.pid}: {' '.join(process.cmdline())[:300]}")
            process.kill()
    return lines


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the session if a process it started still runs; set up first, so it is closed last."""
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    yield
    left = ended(mark)
    assert not left, "left behind:\n" + "\n".join(left)
