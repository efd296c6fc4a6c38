"""When the guard sends SIGTERM and SIGKILL, on a clock that the test moves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from muster.worker import process_guard

GRACE_MS = 10_000
TASK = "0_0"
PID = 1_000
LEASE_MS, KILL_MS = 1_100, 80
"""A lease that is shorter than the grace period, and SIGKILL so long after its end.

It ends, and SIGKILL is due, between two of the guard's regular looks (`LOOK_UP_MS`).
"""


class Turns:
    """A guard with one task that ignores SIGTERM.

    Attributes:
        now_ms: the guard's clock; it moves only while the guard sleeps.
        told: the first time of each signal.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.told: dict[signal.Signals, int] = {}
        self.commands, self.worker = os.pipe()
        self.guard = process_guard.Guard(self.commands, self.commands, "")
        self.guard._processes[PID] = process_guard.Process({"task": TASK}, PID)

    def tell(self, pid: int, signum: signal.Signals) -> None:
        """What the guard calls to signal the task."""
        assert pid == PID
        self.told.setdefault(signum, self.now_ms)

    def renew(self) -> None:
        """The worker extends the lease."""
        until_ms = self.now_ms + LEASE_MS
        self.guard._renew({"until_ms": until_ms, "kill_ms": until_ms + KILL_MS})

    def stop(self) -> None:
        """The worker stops the task."""
        self.guard._stop({"task": TASK, "grace_ms": GRACE_MS})

    def turn(self) -> None:
        """What the loop does when no command arrives: sleep, then look at deadlines."""
        wait_s = self.guard._wait_s()
        assert wait_s is not None
        self.now_ms += round(wait_s * 1000)
        self.guard._check_lease()
        self.guard._end_overdue()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """A guard that runs for the system's clock and processes."""
    monkeypatch.setattr(process_guard, "_linux_control", lambda: lambda: None)
    monkeypatch.setattr(process_guard, "_children", list)
    made = Turns()
    monkeypatch.setattr(process_guard, "boottime_ms", lambda: made.now_ms)
    monkeypatch.setattr(os, "killpg", made.tell)
    yield made
    for end in (made.commands, made.worker):
        os.close(end)


def test_a_renewed_lease_leaves_a_task_its_grace_period(turns: Turns) -> None:
    """A stop that takes longer than a lease: SIGKILL comes when the grace period has ended.

    It once came at the end of the lease that ran when the stop began.
    """
    turns.renew()
    turns.stop()
    while signal.SIGKILL not in turns.told:
        turns.renew()
        turns.turn()
    assert turns.told == {signal.SIGTERM: 0, signal.SIGKILL: GRACE_MS}


@pytest.mark.parametrize("is_stopping", [True, False])
def test_the_end_of_the_lease_kills_a_task_that_has_a_grace_period(
    turns: Turns, is_stopping: bool
) -> None:
    """The lease is not extended any more: SIGKILL comes in time, whatever the grace period is."""
    turns.renew()
    if is_stopping:
        turns.stop()
    while signal.SIGKILL not in turns.told:
        turns.turn()
    told_ms = 0 if is_stopping else LEASE_MS
    assert turns.told == {signal.SIGTERM: told_ms, signal.SIGKILL: LEASE_MS + KILL_MS}


def test_a_machine_that_was_suspended_kills_a_stopping_task_at_once(turns: Turns) -> None:
    """The session may be over: the grace period counts no more."""
    turns.renew()
    turns.stop()
    turns.now_ms = LEASE_MS + KILL_MS + 1
    turns.guard._check_lease()
    turns.guard._end_overdue()
    assert turns.told == {signal.SIGTERM: 0, signal.SIGKILL: turns.now_ms}


def test_a_killed_worker_leaves_a_task_its_lease_at_most(turns: Turns) -> None:
    """The task stops already, and its grace period is longer than the lease."""
    turns.renew()
    turns.stop()
    os.close(turns.worker)
    turns.worker = os.dup(turns.commands)
    turns.guard._read_commands()
    while signal.SIGKILL not in turns.told:
        turns.turn()
    assert turns.told == {signal.SIGTERM: 0, signal.SIGKILL: LEASE_MS + KILL_MS}
