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
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tenacity import wait_random_exponential

from muster.errors import BadInput
from muster.protocol.ids import Role, Task
from muster.worker import process_guard
from muster.worker.assignment import Assignment
from muster.worker.callbacks import pause_s_of

log = logging.getLogger("muster.worker.exec")

PLACE: Final = "{task}"
_ABOUT: Final = ("group", "member", "generation", "task")
"""Fields of a log line about a process."""
STOP_TIMEOUT_S: Final = 10.0
"""Between SIGTERM and SIGKILL, by default."""
GUARD_PATIENCE_S: Final = 5.0
"""How long after the last deadline a guard may fail to answer before it is replaced."""
GUARD_PAUSE_S: Final = 1.0
"""Pause before another try to start a guard for which the system has no process or file."""
PIPE_PATIENCE_S: Final = 5.0
"""How long a guard that has commands to read may neither read one nor write an event."""
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
    """A guard and the worker's ends of the two pipes to it.

    Attributes:
        process: the guard.
        commands, events: the worker's ends.
        unread: the beginning of an event.
        begun: the rest of the line that is being written.
        lease: the newest lease that is not written; it goes before what is queued.
        queued: other lines that are not written.
        progress_s: when the guard last read or wrote something, or had nothing to read.
    """

    process: subprocess.Popen[bytes]
    commands: int
    events: int
    unread: bytes = b""
    begun: bytes = b""
    lease: bytes = b""
    queued: deque[bytes] = field(default_factory=deque)
    progress_s: float = field(default_factory=time.monotonic)

    @property
    def is_full(self) -> bool:
        """Whether something is not written yet."""
        return bool(self.begun or self.lease or self.queued)

    @property
    def hangs(self) -> bool:
        """Whether the guard neither reads nor writes, although it has commands to read."""
        return self.is_full and time.monotonic() - self.progress_s > PIPE_PATIENCE_S

    def put(self, command: Mapping[str, object]) -> None:
        """Queue a command, and write what the guard takes without a wait."""
        if not self.is_full:
            self.progress_s = time.monotonic()
        line = json.dumps(command).encode() + b"\n"
        if command["do"] == "lease":
            self.lease = line
        else:
            self.queued.append(line)
        self.write()

    def write(self) -> None:
        """Write what the guard takes without a wait."""
        try:
            while self.is_full:
                if not self.begun:
                    self.begun, self.lease = self.lease or self.queued.popleft(), b""
                self.begun = self.begun[os.write(self.commands, self.begun) :]
                self.progress_s = time.monotonic()
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.process.kill()  # the watching thread starts another


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

        Raises:
            BadInput: the log file cannot be written.
        """
        if log_file is not None:
            _check_log_file(Path(log_file))
        self._command = command
        self._stop_timeout_s = stop_timeout_s
        self._log_file = "" if log_file is None else str(log_file)
        self._environment = None if environment is None else dict(environment)
        self._running: dict[str, _Running] = {}
        self._changed = threading.Condition()
        self._lease: dict[str, object] = {}
        self._stopping = False  # the worker is to leave: nothing starts any more
        self._closing = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self.released: Callable[[str], object] = lambda task: None
        self._pipe = self._new_guard()
        self._thread = threading.Thread(target=self._watch, name="muster-guard", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------------- callbacks

    def on_assigned(self, tasks: tuple[Task, ...], assignment: Assignment) -> None:
        """Start a process for each task."""
        with self._changed:
            if self._stopping:
                return
            for task in tasks:
                command = self._start_command(str(task), assignment)
                self._running[str(task)] = _Running(command, time.monotonic())
                self._send(command)

    def on_revoked(self, tasks: tuple[Task, ...], assignment: Assignment) -> None:
        """Stop the tasks' processes; returns when all of them have stopped."""
        names = {str(task) for task in tasks}
        with self._changed:
            self._stop(names & self._running.keys())
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

    def stop_all(self) -> None:
        """Begin to stop all tasks, and start none any more; returns at once.

        Call it before the worker leaves. The `on_revoked` of the leave waits for one that still
        runs; without this call its tasks would begin to stop only then.
        """
        with self._changed:
            self._stopping = True
            self._stop(self._running.keys())

    def close(self) -> None:
        """End the guard and every task."""
        with self._changed:
            self._closing = True
            os.close(self._pipe.commands)
            self._wake_up()
        try:
            self._pipe.process.wait(process_guard.ORPHAN_GRACE_MS / 1000 + GUARD_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._pipe.process.kill()
        self._thread.join()
        for end in (self._woken, self._wake):
            os.close(end)

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

    def _stop(self, names: Iterable[str]) -> None:
        """Tell the guard to stop these tasks. A repeated `stop` delays no SIGKILL."""
        for name in names:
            running = self._running[name]
            running.wanted = False
            running.again_s = None
            self._send({"do": "stop", "task": name, "grace_ms": int(self._stop_timeout_s * 1000)})

    def _send(self, command: Mapping[str, object]) -> None:
        """Send a command without a wait; the watching thread writes what does not fit now."""
        if self._closing:
            return
        self._pipe.put(command)
        if self._pipe.is_full:
            self._wake_up()

    def _wake_up(self) -> None:
        """Let the watching thread look again."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

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
        """Start a guard.

        Raises:
            OSError: the system has no process, file or memory for it.
        """
        with contextlib.ExitStack() as opened:
            ends = [end for _ in range(2) for end in _open_pipe(opened)]
            guard_commands, commands, events, guard_events = ends
            fds = (guard_commands, guard_events)
            program = [sys.executable, "-I", "-S", process_guard.__file__, *map(str, fds)]
            process = subprocess.Popen(
                [*program, self._log_file],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env=self._environment,
                start_new_session=True,  # Ctrl-C and Ctrl-Z in a terminal reach only the worker
            )
            opened.pop_all()
        for fd in fds:
            os.close(fd)
        os.set_blocking(commands, False)
        return _Pipe(process, commands, events)

    def _watch(self) -> None:
        while True:
            pipe = self._pipe
            inputs = [pipe.events, self._woken]
            outputs = [pipe.commands] if pipe.is_full and not self._closing else []
            ready, _, _ = select.select(inputs, outputs, [], self._wait_s())
            if self._woken in ready:
                os.read(self._woken, 4096)
            has_ended = pipe.events in ready and not self._read_events()
            if has_ended:
                self._kill_groups()
            with self._changed:
                if has_ended:
                    if not self._replace_guard():
                        return
                elif not self._closing:
                    pipe.write()
                    if pipe.hangs:
                        log.error("the guard hangs; starting another")
                        pipe.process.kill()
                self._start_again()
                self._changed.notify_all()

    def _wait_s(self) -> float | None:
        with self._changed:
            due = [r.again_s for r in self._running.values() if r.again_s is not None]
            if self._pipe.is_full:
                due.append(self._pipe.progress_s + PIPE_PATIENCE_S + 0.1)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _read_events(self) -> bool:
        """Read what the guard has written; False = it has ended."""
        data = os.read(self._pipe.events, 65536)
        with self._changed:
            self._pipe.progress_s = time.monotonic()
            *lines, self._pipe.unread = (self._pipe.unread + data).split(b"\n")
            for event in map(json.loads, lines):
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

    def _kill_groups(self) -> None:
        """The guard has ended. The kernel killed the leaders of its tasks; kill the rest.

        Without the lock, because a process may take long to end, and a lease must not wait for it.
        """
        if self._pipe.process.wait() or not self._closing:
            log.error("the guard died; its tasks are killed and started again")
        with self._changed:
            groups = [running.pid for running in self._running.values() if running.pid]
        for group in groups:
            _kill_group(group)

    def _replace_guard(self) -> bool:
        """Start another guard, as soon as the system has a process for it; False = it is closed.

        Releases the lock while it waits: stops and losses go on, since no task runs.
        """
        fault = ""
        while True:
            self._note_all_ended()
            if self._closing:
                os.close(self._pipe.events)  # `close` has closed the other one
                return False
            try:
                guard = self._new_guard()
                break
            except OSError as error:
                if str(error) != fault:
                    fault = str(error)
                    log.error("no guard can be started, so no task runs; trying again: %s", fault)
            self._changed.notify_all()
            self._changed.wait(GUARD_PAUSE_S)
        for end in (self._pipe.commands, self._pipe.events):
            os.close(end)
        self._pipe = guard
        if self._lease:
            self._send(self._lease)
        return True

    def _note_all_ended(self) -> None:
        """Note that no task of the guard that has ended runs any more."""
        for running in self._running.values():
            if running.pid:
                process_guard.note(self._log_file, "stop", running.command)
            if running.alive:
                self._note_end(running, -signal.SIGKILL)


def _open_pipe(opened: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose two ends `opened` closes."""
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def _check_log_file(file: Path) -> None:
    """Check before a task starts that the file can be written, without creating it."""
    if not file.parent.is_dir():
        raise BadInput(f"log file {file}: there is no folder {file.parent}")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise BadInput(f"log file {file}: cannot be written")


def _kill_group(group: int) -> None:
    """Send SIGKILL until the group has no process left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while True:
            os.killpg(group, signal.SIGKILL)
            # As process 1 of a container, the worker is the parent now, and must reap them.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)
            time.sleep(0.005)
