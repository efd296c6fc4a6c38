"""No process that a test started may outlive the session: looked for at its very end.

Every session writes a mark into its environment, which whatever it starts inherits, however deep
below and whatever process its parent is by then. What bears the mark after all fixtures are closed
has been
left behind: the session fails, says which, and ends them.
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
"""What was told to end may take a moment."""
TRACKER = "multiprocessing.resource_tracker"
"""Python's own, one a process that used multiprocessing; it ends with that process."""


def marked(mark: str) -> list[psutil.Process]:
    """Running processes that inherited a mark; not our own."""
    return [process for process in psutil.process_iter() if _bears(process, mark)]


def _bears(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error, OSError):
        is_other = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
        is_ours = is_other and process.environ().get(MARK) == mark
        return is_ours and not any(TRACKER in word for word in process.cmdline())
    return False


def ended(mark: str, grace_s: float = GRACE_S) -> list[str]:
    """Wait for what bears a mark, then end it.

    Returns:
        The command lines of what did not end by itself.
    """
    _, left = psutil.wait_procs(marked(mark), timeout=grace_s)
    told = []
    for process in left:
        with suppress(psutil.Error):
            told.append(f"{process.pid}: {' '.join(process.cmdline())[:300]}")
            process.kill()
    return told


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the session when a process it started still runs; set up first, hence closed last."""
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    yield
    left = ended(mark)
    assert not left, "left behind:\n" + "\n".join(left)
