"""How Spark is stopped when the job ends, and with which exit code if Spark hangs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError

from muster.streams import stopping
from muster.streams.job import DONE, FAILURE, stop_spark
from muster.streams.stopping import Stop

WAIT_S = 60.0


class Spark:
    """A session of which only `stop` is called."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self.stop = stop


def stopped(stop_session: Callable[[], object], stop: Stop | None = None) -> None:
    """Stop a session as the job does."""
    stop_spark(cast("Any", Spark(stop_session)), stop or Stop())


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), Py4JError("gone")])
def test_a_jvm_that_has_ended_does_not_hide_why(error: Exception) -> None:
    """The error that ended the job stands, and the process is not ended later."""
    timers = threading.active_count()

    def refused() -> None:
        raise error

    stopped(refused)
    until_ended(timers)


def test_another_error_is_not_hidden() -> None:
    """An error that does not come from the JVM is raised; the process is not ended later."""
    timers = threading.active_count()

    def wrong() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stopped(wrong)
    until_ended(timers)


def until_ended(before: int) -> None:
    """Wait until no more threads run than before: the timer was cancelled."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(WAIT_S)
            assert thread.finished.is_set()
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("is_signalled", "is_set", "code"),
    [(True, True, DONE), (False, True, FAILURE), (False, False, FAILURE)],
)
def test_a_jvm_that_hangs(
    is_signalled: bool, is_set: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends with 0 after a signal, with 1 when superseded or failed."""
    codes: list[int] = []
    ended = threading.Event()

    def end(number: int) -> None:
        codes.append(number)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(stopping, "RUN_GRACE_S", 0.0)
    stop = Stop()
    stop.is_signalled = is_signalled
    if is_set:
        stop.set()
    stopped(lambda: ended.wait(WAIT_S), stop)
    assert codes == [code]
