"""Stops a command in order at the first SIGTERM or Ctrl-C, and at once at the second."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Stopped(Exception):
    """A stop signal has arrived."""


def run_until_stopped(work: Callable[[], object]) -> bool:
    """Call `work`; return whether a stop signal ended it. A second signal kills the process."""

    def on_signal(_: int, __: FrameType | None) -> None:
        raise _Stopped

    for signum in STOP_SIGNALS:
        signal.signal(signum, on_signal)
    try:
        work()
    except _Stopped:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        return True
    return False
