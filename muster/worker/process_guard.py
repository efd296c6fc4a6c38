"""Supervises task processes, so that they stop in time whatever happens to the worker.

This file is a program, run by path with ``python -I -S``: it uses only the standard library and
starts in about 20 ms. The worker (`exec_tasks.py`) writes commands to it and reads events, each a
JSON object on a line. The guard starts every task as leader of a process group, and stops it

- on ``stop``: SIGTERM to the group, SIGKILL after the grace period. The grace period may be longer
  than the lease that runs now: as long as the worker extends it, no task is killed sooner;
- when the lease ends: SIGTERM, then SIGKILL before the member's session ends. The lease is on the
  boot-time clock, and only the worker extends it: a worker that hangs loses its tasks;
- when the worker has ended (the command pipe breaks): at once, in the same way.

A task has stopped when all processes of its group have, and all that left the group: the guard is
their subreaper (Linux), and ``MUSTER_TASK`` in their environment names the task. If the guard
itself is killed, the kernel kills the tasks (PR_SET_PDEATHSIG).

To stop hundreds of tasks in time, the guard first signals all groups, and reads the environment
only of children that lead no group. It starts a few tasks at a time: a lease and the deadlines do
not wait for the start of others.

Commands: ``lease`` (until_ms, kill_ms), ``start`` (task, role, member, command, environment,
generation, epoch, incarnation), ``stop`` (task, grace_ms), ``lose``. Events: ``started`` (task,
pid), ``ended`` (task, pid, code, asked: whether a command stopped it).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLOCK_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
LOOK_UP_MS = 250
"""Longest sleep while a task runs, so that the guard soon notices a suspended machine."""
LOOK_AGAIN_MS = 10
"""Between two checks of a group whose leader has ended."""
ORPHAN_GRACE_MS = 5_000
"""Between SIGTERM and SIGKILL when the worker has ended; the end of the lease may shorten it."""
REFUSED = 125
"""Exit code of a task that was not started because the lease is over."""
NOT_STARTED = 126
"""Exit code of a task for which the system made no process."""
TURN_MS = 20
"""The guard works on commands for so long before it looks at lease and processes again."""

Strays = Mapping[str, list[int]]
"""Task → processes of it that left its group."""


def boottime_ms() -> int:
    """Milliseconds since boot, including time the machine was suspended."""
    return time.clock_gettime_ns(CLOCK_BOOTTIME) // 1_000_000


class Process:
    """One task's process group.

    Attributes:
        command: the start command.
        pid: process id of its leader, which is also the group's id.
        code: exit code of the leader; None while it runs.
        asked: whether a command asked it to stop.
        kill_ms: when SIGKILL is due; None = it is not stopping.
    """

    def __init__(self, command: Mapping[str, Any], pid: int) -> None:
        self.command = command
        self.pid = pid
        self.code: int | None = None
        self.asked = False
        self.kill_ms: int | None = None
        self._terminated_strays: set[int] = set()

    @property
    def task(self) -> str:
        """Printed task id."""
        return str(self.command["task"])

    def signal(self, signum: signal.Signals) -> None:
        """Signal the whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def terminate_strays(self, strays: Strays) -> None:
        """Send SIGTERM once to each process that became the guard's child after the group's."""
        for pid in strays.get(self.task, ()):
            if pid not in self._terminated_strays:
                self._terminated_strays.add(pid)
                _kill(pid, signal.SIGTERM)

    def has_no_group(self) -> bool:
        """Whether its leader has been reaped and no process is left in its group."""
        if self.code is None:
            return False
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):  # macOS raises the latter for zombies
            return True
        return False


class Guard:
    """The loop that takes commands, watches the lease and the processes, and writes events."""

    def __init__(self, commands: int, events: int, log: str) -> None:
        self._commands = commands
        self._events = events
        self._unread = b""
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._unsent = b""
        self._log = log
        self._processes: dict[int, Process] = {}
        self._until_ms = 0
        self._kill_ms = 0
        self._orphaned = False
        self._die_with_guard = _linux_control()

    def run(self) -> None:
        """Run until the worker and every task have ended."""
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A terminal or service manager stops the worker, and the worker stops the guard.
            signal.signal(ignored, signal.SIG_IGN)
        while not self._orphaned or self._processes:
            inputs = [woken] if self._orphaned else [woken, self._commands]
            outputs = [self._events] if self._unsent else []
            ready, writable, _ = select.select(inputs, outputs, [], self._wait_s())
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
            self._check_lease()  # before anything else: the machine may have been suspended
            if self._commands in ready:
                self._read_commands()
            self._take_commands()
            self._reap()
            self._end_overdue()
            if writable:
                self._flush()

    def _wait_s(self) -> float | None:
        if self._waiting:
            return 0
        if not self._processes:
            return None
        wait_ms = LOOK_UP_MS
        now_ms = boottime_ms()
        for process in self._processes.values():
            if process.code is not None:
                wait_ms = min(wait_ms, LOOK_AGAIN_MS)
            due_ms = self._until_ms  # when `_check_lease` brings a later SIGKILL forward
            if process.kill_ms is not None and process.kill_ms <= self._kill_ms:
                due_ms = process.kill_ms
            wait_ms = min(wait_ms, due_ms - now_ms if due_ms > now_ms else LOOK_AGAIN_MS)
        return wait_ms / 1000

    # ----------------------------------------------------------------------------------- commands

    def _read_commands(self) -> None:
        data = os.read(self._commands, 65536)
        if not data:
            self._orphaned = True
            self._waiting.clear()
            self._end_all(self._processes.values(), boottime_ms() + ORPHAN_GRACE_MS)
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for command in map(json.loads, lines):
            if command["do"] == "lease":
                self._renew(command)
            else:
                self._waiting.append(command)

    def _take_commands(self) -> None:
        until_ms = boottime_ms() + TURN_MS
        while self._waiting and boottime_ms() < until_ms:
            command = self._waiting.popleft()
            {"start": self._start, "stop": self._stop, "lose": self._lose}[command["do"]](command)

    def _renew(self, command: Mapping[str, Any]) -> None:
        self._until_ms = command["until_ms"]
        self._kill_ms = command["kill_ms"]

    def _start(self, command: Mapping[str, Any]) -> None:
        if boottime_ms() >= self._until_ms:
            self._write(event="ended", task=command["task"], pid=0, code=REFUSED, asked=False)
            return
        environment = {**os.environ, **command["environment"]}
        try:
            pid, release = _spawn(command["command"], environment, self._die_with_guard)
        except OSError as error:  # too many processes or files: the tasks that run go on
            _say(f"cannot start {command['task']}: {error.strerror}")
            self._write(event="ended", task=command["task"], pid=0, code=NOT_STARTED, asked=False)
            return
        self._processes[pid] = Process(command, pid)
        # The worker must know the group of every command that runs, to end it if the guard is
        # killed: the command waits until its start has been sent and noted.
        self._write(event="started", task=command["task"], pid=pid)
        note(self._log, "start", command)
        release()

    def _stop(self, command: Mapping[str, Any]) -> None:
        stopped = [p for p in self._processes.values() if p.task == command["task"]]
        for process in stopped:
            process.asked = True
        self._end_all(stopped, boottime_ms() + command["grace_ms"])

    def _lose(self, command: Mapping[str, Any]) -> None:
        # If the lease has ended, the tasks got SIGTERM then and are killed in time. If it has not,
        # the coordinator took them away, and another member may already run them.
        lease_over = boottime_ms() >= self._until_ms
        for process in self._processes.values():
            process.asked = True
        if not lease_over:
            self._end_all(self._processes.values(), boottime_ms())

    # ------------------------------------------------------------------------------------- ending

    def _end_all(self, processes: Iterable[Process], kill_ms: int) -> None:
        """Send SIGTERM, once. SIGKILL is due at `kill_ms`, or at an earlier time given before.

        The end of the lease is no limit here, because it moves: `_check_lease` sees to it.
        """
        first: list[Process] = []
        for process in processes:
            if process.kill_ms is None:
                first.append(process)
                process.signal(signal.SIGTERM)
            process.kill_ms = min(kill_ms, process.kill_ms or kill_ms)
        if first:
            strays = self._strays()
            for process in first:
                process.terminate_strays(strays)

    def _check_lease(self) -> None:
        if self._processes and boottime_ms() >= self._until_ms:
            self._end_all(self._processes.values(), self._kill_ms)

    def _end_overdue(self) -> None:
        now_ms = boottime_ms()
        overdue = [
            p for p in self._processes.values() if p.kill_ms is not None and now_ms >= p.kill_ms
        ]
        for process in overdue:
            process.signal(signal.SIGKILL)
        ended = [p for p in self._processes.values() if p.code is not None]
        if not (overdue or ended):
            return
        # Before the strays are listed, so that the list has what a group leaves behind.
        empty = {p.pid for p in ended if p.has_no_group()}
        strays = self._strays()
        for process in overdue:
            for pid in strays.get(process.task, ()):
                _kill(pid, signal.SIGKILL)
        for process in ended:
            if process.pid in empty and process.task not in strays:
                self._forget(process)
            elif process.kill_ms is None:
                # The leader died by itself: end the processes it left behind.
                self._end_all([process], boottime_ms() + ORPHAN_GRACE_MS)
            else:
                process.terminate_strays(strays)

    def _strays(self) -> Strays:
        """The children of the guard that lead no group, by their tasks."""
        strays: dict[str, list[int]] = {}
        for pid in _children():
            if pid in self._processes:
                continue
            for name in _environment(pid).split(b"\0"):
                if name.startswith(b"MUSTER_TASK="):
                    strays.setdefault(os.fsdecode(name.partition(b"=")[2]), []).append(pid)
        return strays

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
        note(self._log, "stop", process.command)
        self._write(
            event="ended",
            task=process.task,
            pid=process.pid,
            code=process.code,
            asked=process.asked,
        )

    # -------------------------------------------------------------------------------------- events

    def _write(self, **event: object) -> None:
        self._unsent += json.dumps(event).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        # Never wait for a worker that does not read: its lease must be watched even if it hangs.
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._events, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = b""


def note(log: str, event: str, command: Mapping[str, Any]) -> None:
    """Append a line about a task to the log file; an empty `log` means no file.

    A start is noted before the process starts, a stop when all its processes have ended, so the
    task never ran outside the time between the two lines.
    """
    if not log:
        return
    names = ("task", "role", "member", "incarnation", "generation", "epoch")
    line = {
        "event": event,
        **{name: command[name] for name in names},
        "at_ms": time.time_ns() // 1_000_000,
        "boottime_ms": boottime_ms(),
    }
    try:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)
    except OSError as error:  # the tasks matter more than the log
        _say(f"cannot write to {log}: {error.strerror}")


def _say(text: str) -> None:
    """Write a line to stderr, each text once."""
    if text not in _said:
        _said.add(text)
        with contextlib.suppress(OSError):
            os.write(2, f"muster: {text}\n".encode())


_said: set[str] = set()


def _spawn(
    command: list[str], environment: dict[str, str], prepare: Callable[[], None]
) -> tuple[int, Callable[[], None]]:
    """Fork a process that runs the command once it is released; its id, and what releases it."""
    guard = os.getpid()
    waiting, opening = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(waiting)
        os.close(opening)
        raise
    if pid:
        os.close(waiting)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does it too: in either order no signal is missed

        def release() -> None:
            with contextlib.suppress(BrokenPipeError):  # it has been killed
                os.write(opening, b".")
            os.close(opening)

        return pid, release
    try:
        os.close(opening)
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        prepare()
        # If the guard died before the prctl call of `prepare`, the first is true; then the second.
        if os.getppid() != guard or not os.read(waiting, 1):
            os._exit(127)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execvpe(command[0], command, environment)  # noqa: S606  # a list, no shell
    except OSError as error:
        os.write(2, f"muster: {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _linux_control() -> Callable[[], None]:
    """Become the subreaper; return what a task's process calls before it runs the command."""
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
    """``process_guard.py COMMANDS_FD EVENTS_FD [LOG]``."""
    commands, events = int(sys.argv[1]), int(sys.argv[2])
    for end in (commands, events):
        os.set_inheritable(end, False)
    os.set_blocking(events, False)
    Guard(commands, events, sys.argv[3] if len(sys.argv) > 3 else "").run()
    sys.exit(0)


if __name__ == "__main__":
    main()
