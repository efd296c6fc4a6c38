"""Watches over task processes, so that they stop in time whatever becomes of the worker.

A program of its own, run by path with ``python -I -S``: standard library only, up in some 20 ms.
The worker (`processes.py`) writes commands to it, one JSON object a line, and reads events back.
The guard, in a session of its own, starts every task as leader of a process group, and ends it

- when told: SIGTERM to the group, SIGKILL after the grace;
- when the lease is over: SIGTERM, then SIGKILL before the session is. The lease is on the boot-time
  clock, and the guard renews nothing by itself: a worker that hangs or is frozen loses its tasks;
- when the worker is gone (the command pipe breaks): likewise, at once.

A task has stopped when its whole group has, and everything that escaped the group: the guard is
the subreaper of its tasks (Linux), so what they leave behind becomes its child, and is known by
``MUSTER_TASK`` in its environment. If the guard itself is killed, the kernel kills the tasks
(PR_SET_PDEATHSIG).

Commands: ``lease`` (until_ms, kill_ms), ``start`` (task, role, command, environment, generation,
epoch, incarnation), ``stop`` (task, grace_ms), ``lose``. Events: ``started`` (task, pid), ``ended``
(task, pid, code, asked: whether it was told to end).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLOCK_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
LOOK_UP_MS = 250
"""Longest sleep while something runs: a machine that was suspended is noticed within it."""
LOOK_AGAIN_MS = 10
"""Between two looks at what is left of a group whose leader has ended."""
ORPHAN_GRACE_MS = 5_000
"""Between SIGTERM and SIGKILL when the worker is gone; the lease may cut it short."""
REFUSED = 125
"""Exit code of a task that was not started because the lease is over."""


def boottime_ms() -> int:
    """Milliseconds since boot, time asleep included."""
    return time.clock_gettime_ns(CLOCK_BOOTTIME) // 1_000_000


class Process:
    """One task's process group.

    Attributes:
        told: the start command it came from.
        pid: its leader's process id, which is the group's id.
        code: exit code of the leader; None while it runs.
        asked: whether it was told to end.
        kill_ms: when SIGKILL is due; None = not ending.
    """

    def __init__(self, told: Mapping[str, Any], pid: int) -> None:
        self.told = told
        self.pid = pid
        self.code: int | None = None
        self.asked = False
        self.kill_ms: int | None = None
        self._asked_strays: set[int] = set()

    @property
    def task(self) -> str:
        """Printed task id."""
        return str(self.told["task"])

    def signal(self, signum: signal.Signals) -> None:
        """To the whole group, and to what escaped it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)
        for pid in self.strays():
            _kill(pid, signum)

    def ask_strays(self) -> None:
        """SIGTERM once to what has become our child since the group was asked to end."""
        for pid in self.strays():
            if pid not in self._asked_strays:
                self._asked_strays.add(pid)
                _kill(pid, signal.SIGTERM)

    def gone(self) -> bool:
        """Whether nothing of it is left."""
        if self.code is None:
            return False
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return not any(self.strays())
        except PermissionError:  # macOS says so of zombies
            return True
        return False

    def strays(self) -> Iterator[int]:
        """Children of ours that carry its name but left its group."""
        mark = f"MUSTER_TASK={self.task}".encode()
        for pid in _children():
            if pid != self.pid and mark in _environment(pid).split(b"\0"):
                yield pid


class Guard:
    """The loop: commands in, events out, processes between."""

    def __init__(self, commands: int, events: int, log: str) -> None:
        self._commands = commands
        self._events = events
        self._unread = b""
        self._unsent = b""
        self._log = log
        self._processes: dict[int, Process] = {}
        self._until_ms = 0
        self._kill_ms = 0
        self._orphaned = False
        self._die_with_us = _linux_control()

    def run(self) -> None:
        """Until the worker is gone and every task with it."""
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A terminal or service manager stops the worker; it stops us.
            signal.signal(ignored, signal.SIG_IGN)
        while not self._orphaned or self._processes:
            inputs = [woken] if self._orphaned else [woken, self._commands]
            outputs = [self._events] if self._unsent else []
            ready, writable, _ = select.select(inputs, outputs, [], self._wait_s())
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
            self._look_at_lease()  # before anything else: we may have been asleep
            if self._commands in ready:
                self._take_commands()
            self._reap()
            self._end_overdue()
            if writable:
                self._flush()

    def _wait_s(self) -> float | None:
        if not self._processes:
            return None
        wait_ms = LOOK_UP_MS
        now_ms = boottime_ms()
        for process in self._processes.values():
            if process.code is not None:
                wait_ms = min(wait_ms, LOOK_AGAIN_MS)
            due_ms = self._until_ms if process.kill_ms is None else process.kill_ms
            wait_ms = min(wait_ms, due_ms - now_ms if due_ms > now_ms else LOOK_AGAIN_MS)
        return wait_ms / 1000

    # ----------------------------------------------------------------------------------- commands

    def _take_commands(self) -> None:
        data = os.read(self._commands, 65536)
        if not data:
            self._orphaned = True
            for process in self._processes.values():
                self._end(process, ORPHAN_GRACE_MS)
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            {
                "lease": self._renew,
                "start": self._start,
                "stop": self._stop,
                "lose": self._lose,
            }[told["do"]](told)

    def _renew(self, told: Mapping[str, Any]) -> None:
        self._until_ms = told["until_ms"]
        self._kill_ms = told["kill_ms"]

    def _start(self, told: Mapping[str, Any]) -> None:
        if boottime_ms() >= self._until_ms:
            self._say(event="ended", task=told["task"], pid=0, code=REFUSED, asked=False)
            return
        note(self._log, "start", told)
        environment = {**os.environ, **told["environment"]}
        pid = _spawn(told["command"], environment, self._die_with_us)
        self._processes[pid] = Process(told, pid)
        self._say(event="started", task=told["task"], pid=pid)

    def _stop(self, told: Mapping[str, Any]) -> None:
        for process in self._processes.values():
            if process.task == told["task"]:
                process.asked = True
                self._end(process, told["grace_ms"])

    def _lose(self, told: Mapping[str, Any]) -> None:
        # When the lease is over they have been asked to end and are killed in time. When it is
        # not, the coordinator has taken them from us: another member may have them this moment.
        lease_over = boottime_ms() >= self._until_ms
        for process in self._processes.values():
            process.asked = True
            if not lease_over:
                self._end(process, 0)

    # ------------------------------------------------------------------------------------- ending

    def _end(self, process: Process, grace_ms: int) -> None:
        kill_ms = min(boottime_ms() + grace_ms, max(self._kill_ms, self._until_ms))
        if process.kill_ms is None or kill_ms < process.kill_ms:
            if process.kill_ms is None:
                process.signal(signal.SIGTERM)
            process.kill_ms = kill_ms

    def _look_at_lease(self) -> None:
        if boottime_ms() >= self._until_ms:
            for process in self._processes.values():
                self._end(process, self._kill_ms - self._until_ms)

    def _end_overdue(self) -> None:
        now_ms = boottime_ms()
        for process in list(self._processes.values()):
            if process.gone():
                self._forget(process)
            elif process.kill_ms is not None and now_ms >= process.kill_ms:
                process.signal(signal.SIGKILL)
            elif process.code is not None and process.kill_ms is None:
                # The leader died by itself; what it left behind is not the task any more.
                self._end(process, ORPHAN_GRACE_MS)
            elif process.code is not None:
                process.ask_strays()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._processes:
                self._processes[pid].code = os.waitstatus_to_exitcode(status)

    def _forget(self, process: Process) -> None:
        del self._processes[process.pid]
        note(self._log, "stop", process.told)
        self._say(
            event="ended",
            task=process.task,
            pid=process.pid,
            code=process.code,
            asked=process.asked,
        )

    # ------------------------------------------------------------------------------------- telling

    def _say(self, **event: object) -> None:
        self._unsent += json.dumps(event).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        # Never wait for a worker that does not read: it may be frozen, which is our business.
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._events, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = b""


def note(log: str, event: str, told: Mapping[str, Any]) -> None:
    """Append a line about a task to the log file; none is kept when `log` is empty.

    A start is noted before the process begins, a stop when all of it has ended, so that what the
    lines say never is shorter than the truth.
    """
    if not log:
        return
    names = ("task", "role", "member", "incarnation", "generation", "epoch")
    line = {
        "event": event,
        **{name: told[name] for name in names},
        "at_ms": time.time_ns() // 1_000_000,
        "boottime_ms": boottime_ms(),
    }
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


def _spawn(command: list[str], environment: dict[str, str], prepare: Callable[[], None]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does so too; in either order no signal is missed
        return pid
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        prepare()
        if os.getppid() != guard:  # it died before the kernel was asked to kill us with it
            return 0
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execvpe(command[0], command, environment)  # noqa: S606  # a list, no shell of ours
    except OSError as error:
        os.write(2, f"muster: {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _linux_control() -> Callable[[], None]:
    """Become the subreaper; the answer is what a task does before it runs."""
    if sys.platform != "linux":
        return lambda: None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _kill(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            return [int(pid) for pid in children.read().split()]
    except OSError:
        return []


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return environment.read()
    except OSError:
        return b""


def main() -> NoReturn:
    """``guard.py COMMANDS_FD EVENTS_FD [LOG]``."""
    commands, events = int(sys.argv[1]), int(sys.argv[2])
    for end in (commands, events):
        os.set_inheritable(end, False)
    os.set_blocking(events, False)
    Guard(commands, events, sys.argv[3] if len(sys.argv) > 3 else "").run()
    sys.exit(0)


if __name__ == "__main__":
    main()
