"""Waits for the end of a process; one that hangs fails the test with the stacks of its threads."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

from support.suite.waiting import PATIENCE_S

from muster.broker.ends_with_parent import Tethered

DUMP_S = 5.0


def ends(process: Tethered, output: Path, dump: signal.Signals) -> int:
    """Wait until a process ends; return the exit code.

    Args:
        process: which has been told to end, or ends by itself.
        output: what it prints goes there.
        dump: the signal at which it prints its stacks: SIGABRT for Python with
            PYTHONFAULTHANDLER, SIGQUIT for Java.
    """
    with suppress(TimeoutError):
        return process.wait(PATIENCE_S)
    process.send(dump)
    with suppress(TimeoutError):
        process.wait(DUMP_S)
    process.kill()
    lines = output.read_text(errors="replace").splitlines()[-300:]
    raise AssertionError("\n".join(["it has been told to end, and hangs:", *lines]))
