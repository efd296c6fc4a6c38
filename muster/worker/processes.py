"""One process per active task: the callbacks of ``muster worker --exec``.

A child of the guard (`process_guard.py`) runs each task's command with ``/bin/sh -c``. A command
that ends is started again after a growing pause. A task is released only when all its processes
have stopped. If the guard itself is killed or hangs, its tasks are killed, and a new guard starts
them again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tenacity import wait_random_exponential

from muster.protocol.ids import Role, Task
from muster.worker import process_guard
from muster.worker.assignment import Assignment
from muster.worker.retry_pauses import pause_s_of

log = logging.getLogger("muster.worker.exec")

PLACE: Final = "{task}"
_ABOUT: Final = ("group", "member", "generation", "task")
"""Fields of a log line about a process."""
STOP_TIMEOUT_S: Final = 10.0
"""Between SIGTERM and SIGKILL, by default."""
GUARD_PATIENCE_S: Final = 5.0
"""How long after the last deadline a guard may fail to answer before it is replaced."""
PIPE_PATIENCE_S: Final = 2.0
"""How long the guard may take to read a command."""
STEADY_S: Final = 30.0
"""A process that ran this long has started well: the next pause is short again."""
_PAUSE = wait_random_exponential(multiplier=0.5, max=30)


@dataclass(slots=True)
class _Running:
    """A task and its process.

    Attributes:
        command: the guard's start command.
        started_s: when it was last started.
        pid: its process group; 0 = not known yet, or none runs.
        alive: whether a process of it may still run.
        wanted: whether it is started again when it ends.
        attempt: number of deaths in a row.
        again_s: when it is started again; None = it is not.
    """

    command: Mapping[str, Any]
    started_s: float
    pid: int = 0
    alive: bool = True
    wanted: bool = True
    attempt: int = 0
    again_s: float | None = None


@dataclass(slots=True)
class _Pipe:
    """A guard and the worker's ends of the two pipes to it."""

    process: subprocess.Popen[bytes]
    commands: int
    events: int
    unread: bytes = field(default=b"")


class Processes:
    """Callbacks for `Worker` that run a command per active task. Close it after the worker.

    Attributes:
        released: called with each revoked task as soon as its process has stopped, before
            `on_revoked` returns; must return at once.
    """

    def __init__(
        self,
        command: str,
        *,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        log_file: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the guard.

        Args:
            command: a shell command; ``{task}`` in it is the task's id, quoted.
            stop_timeout_s: between SIGTERM and SIGKILL when a task must stop.
            log_file: starts and stops are appended here, one JSON object a line.
            environment: of the tasks, beside ``MUSTER_*``; None = that of this process.
        """
        self._command = command
        self._stop_timeout_s = stop_timeout_s
        self._log_file = "" if log_file is None else str(log_file)
        self._environment = None if environment is None else dict(environment)
        self._running: dict[str, _Running] = {}
        self._changed = threading.Condition()
        self._lease: dict[str, object] = {}
        self._closing = False
        self.released: Callable[[str], object] = lambda task: None
        self._pipe = self._new_guard()
        self._thread = threading.Thread(target=self._watch, name="muster-guard", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------------- callbacks

    def on_assigned(self, tasks: tuple[Task, ...], assignment: Assignment) -> None:
        """Start a process for each task."""
        with self._changed:
            for task in tasks:
                command = self._start_command(str(task), assignment)
                self._running[str(task)] = _Running(command, time.monotonic())
                self._send(command)

    def on_revoked(self, tasks: tuple[Task, ...], assignment: Assignment) -> None:
        """Stop the tasks' processes; returns when all of them have stopped."""
        names = {str(task) for task in tasks}
        with self._changed:
            for name in names & self._running.keys():
                running = self._running[name]
                running.wanted = False
                running.again_s = None
                self._send(
                    {"do": "stop", "task": name, "grace_ms": int(self._stop_timeout_s * 1000)}
                )
            self._await_end(names, self._stop_timeout_s + GUARD_PATIENCE_S, self.released)

    def on_lost(self, tasks: tuple[Task, ...], assignment: Assignment) -> None:
        """Kill all tasks; returns when none runs any more."""
        with self._changed:
            for running in self._running.values():
                running.wanted = False
                running.again_s = None
            self._send({"do": "lose"})
            self._await_end(set(self._running), GUARD_PATIENCE_S)

    def on_lease(self, until_ms: int, stop_ms: int) -> None:
        """Send the guard how long the tasks may run."""
        with self._changed:
            # A fifth of the time for stopping is a reserve for a loaded machine.
            kill_ms = until_ms + stop_ms * 4 // 5
            self._lease = {"do": "lease", "until_ms": until_ms, "kill_ms": kill_ms}
            self._send(self._lease)

    def close(self) -> None:
        """End the guard and every task."""
        with self._changed:
            self._closing = True
            os.close(self._pipe.commands)
        try:
            self._pipe.process.wait(process_guard.ORPHAN_GRACE_MS / 1000 + GUARD_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._pipe.process.kill()
        self._thread.join()

    # ------------------------------------------------------------------------------------ commands

    def _start_command(self, task: str, assignment: Assignment) -> dict[str, object]:
        token = assignment.token
        return {
            "do": "start",
            "group": assignment.group,
            "task": task,
            "role": str(Role.ACTIVE),
            "member": assignment.member,
            "incarnation": assignment.incarnation,
            "generation": token.generation,
            "epoch": token.epoch,
            "command": ["/bin/sh", "-c", self._command.replace(PLACE, shlex.quote(task))],
            "environment": {
                "MUSTER_GROUP": assignment.group,
                "MUSTER_MEMBER_ID": assignment.member,
                "MUSTER_TASK": task,
                "MUSTER_ROLE": str(Role.ACTIVE),
                "MUSTER_GENERATION": str(token.generation),
                "MUSTER_MEMBER_EPOCH": str(token.epoch),
            },
        }

    def _send(self, command: Mapping[str, object]) -> None:
        line = json.dumps(command).encode() + b"\n"
        try:
            while line:
                if not select.select([], [self._pipe.commands], [], PIPE_PATIENCE_S)[1]:
                    raise BrokenPipeError  # the guard hangs: its pipe is full
                line = line[os.write(self._pipe.commands, line) :]
        except BrokenPipeError:
            self._pipe.process.kill()  # the watching thread starts another

    def _await_end(
        self, names: set[str], patience_s: float, notify: Callable[[str], object] = lambda _: None
    ) -> None:
        """Wait until none of these tasks runs. Forget each when it has ended, and notify of it."""

        def ended() -> bool:
            for name in [n for n in names & self._running.keys() if not self._running[n].alive]:
                del self._running[name]
                notify(name)
            return not names & self._running.keys()

        if not self._changed.wait_for(ended, patience_s):
            log.error("the guard does not answer; starting another")
            self._pipe.process.kill()
            self._changed.wait_for(ended)

    # -------------------------------------------------------------------------------------- guard

    def _new_guard(self) -> _Pipe:
        guard_commands, commands = os.pipe()
        events, guard_events = os.pipe()
        fds = (guard_commands, guard_events)
        program = [sys.executable, "-I", "-S", process_guard.__file__, *map(str, fds)]
        try:
            process = subprocess.Popen(
                [*program, self._log_file],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env=self._environment,
                start_new_session=True,  # Ctrl-C and Ctrl-Z in a terminal reach only the worker
            )
        finally:
            for fd in fds:
                os.close(fd)
        os.set_blocking(commands, False)
        return _Pipe(process, commands, events)

    def _watch(self) -> None:
        while True:
            ready, _, _ = select.select([self._pipe.events], [], [], self._wait_s())
            with self._changed:
                if ready and not self._read_events():
                    self._clean_up_after_guard()
                    if self._closing:
                        return
                    self._pipe = self._new_guard()
                    if self._lease:
                        self._send(self._lease)
                self._start_again()
                self._changed.notify_all()

    def _wait_s(self) -> float | None:
        due = [r.again_s for r in list(self._running.values()) if r.again_s is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _read_events(self) -> bool:
        data = os.read(self._pipe.events, 65536)
        *lines, self._pipe.unread = (self._pipe.unread + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            running = self._running.get(event["task"])
            if running is None:
                continue
            if event["event"] == "started":
                running.pid = event["pid"]
            else:
                self._note_end(running, event["code"])
        return bool(data)

    def _note_end(self, running: _Running, code: int) -> None:
        running.alive = False
        running.pid = 0
        if not running.wanted or self._closing:
            return
        now_s = time.monotonic()
        running.attempt = 1 if now_s - running.started_s >= STEADY_S else running.attempt + 1
        pause_s = pause_s_of(_PAUSE, running.attempt)
        running.again_s = now_s + pause_s
        about = {key: running.command[key] for key in _ABOUT}
        log.warning("%s ended with %d; again in %.1f s", about["task"], code, pause_s, extra=about)

    def _start_again(self) -> None:
        now_s = time.monotonic()
        for running in self._running.values():
            if running.again_s is not None and now_s >= running.again_s:
                running.again_s = None
                running.alive = True
                running.started_s = now_s
                self._send(running.command)

    def _clean_up_after_guard(self) -> None:
        """The guard has ended. The kernel killed the leaders of its tasks; kill the rest."""
        if self._pipe.process.wait() or not self._closing:
            log.error("the guard died; its tasks are killed and started again")
        for running in self._running.values():
            if running.pid:
                _kill_group(running.pid)
                process_guard.note(self._log_file, "stop", running.command)
            if running.alive:
                self._note_end(running, -signal.SIGKILL)
        if not self._closing:
            os.close(self._pipe.commands)
        os.close(self._pipe.events)


def _kill_group(group: int) -> None:
    """Send SIGKILL until the group has no process left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while True:
            os.killpg(group, signal.SIGKILL)
            time.sleep(0.005)
