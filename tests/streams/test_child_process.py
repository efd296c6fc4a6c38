"""Work in a child process: the parent survives any end of the child and says how it ended."""

from __future__ import annotations

import os
import re
import signal

import pytest
from support.suite.ends import abort

from muster.streams.batch import child_process
from muster.streams.batch.child_process import ChildFailed, run_in_child


def test_the_answer_comes_back() -> None:
    """The parent gets the child's return value and none of its side effects."""
    seen: list[int] = []

    def work() -> dict[str, bytes]:
        seen.append(os.getpid())
        return {"a": b"x" * 1_000_000}

    assert run_in_child(work, 10) == {"a": b"x" * 1_000_000}
    assert seen == []


def _raise(error: BaseException) -> None:
    raise error


def _loop() -> None:
    """Keep C code busy; Python runs no signal handler meanwhile."""
    re.match(r"(a+)+$", "a" * 40 + "b")


@pytest.mark.parametrize(
    ("work", "story"),
    [
        (abort, "ended by SIGABRT"),
        (lambda: os._exit(3), "ended its process with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed"),
        (_loop, "took more than 1 s of CPU time"),
        (lambda: _raise(ZeroDivisionError("oops")), "raised ZeroDivisionError: oops"),
        (lambda: _raise(SystemExit(3)), "raised SystemExit: 3"),
        (lambda: _raise(MemoryError()), "needs more memory"),
    ],
    ids=["abort", "exit", "kill", "loop", "raise", "sys.exit", "memory"],
)
def test_a_child_without_an_answer(work, story: str) -> None:
    """The error says how the child ended."""
    with pytest.raises(ChildFailed, match=re.escape(story)):
        run_in_child(work, 1)


def test_an_answer_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer above the size limit raises an error that gives its size."""
    monkeypatch.setattr(child_process, "ANSWER_BYTES_MAX", 1_000)
    with pytest.raises(ChildFailed, match=r"its answer has \d+ bytes"):
        run_in_child(lambda: b"x" * 2_000, 1)


def test_a_child_that_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that uses no CPU time is also ended after a time limit."""
    monkeypatch.setattr(child_process, "_WAIT_FACTOR", 0.1)
    with pytest.raises(ChildFailed, match="did not end within"):
        run_in_child(signal.pause, 1)
