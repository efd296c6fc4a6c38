"""A child process that ends when its parent process does, even if the parent is killed.

A `Tethered` command is the child of a small guard process in a session of its own. A pipe joins
parent and guard; the parent writes a byte to have a signal sent. When the parent ends, the pipe
breaks: the guard sends the command SIGTERM, waits, then kills what remains of its process group. If
the guard itself is killed, the kernel kills the command (PR_SET_PDEATHSIG). The kernel's signal
alone is not enough: it exists on Linux only, leaves no time to stop in order, and is sent when the
parent's *thread* ends.

This file is also the guard's program, run by path with ``python -I -S``: it uses only the standard
library.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

PR_SET_PDEATHSIG = 1
GRACE_S = 10


class Tethered:
    """A running command that ends when this process does.

    Attributes:
        pid: process id of the command itself (not of its guard).
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: IO[bytes] | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace_s: float = GRACE_S,
        sweep: Path | None = None,
    ) -> None:
        """Start it.

        Args:
            command: program and arguments.
            output: where standard output and error go; None = those of this process.
            env: its environment; None = that of this process.
            cwd: the folder it starts in; None = that of this process.
            grace_s: how long it may take to stop after SIGTERM when this process has ended.
            sweep: a folder to remove if this process ends before the command does.

        Raises:
            OSError: the program cannot be started.
        """
        guard_end, own_end = os.pipe()
        report, guard_report = os.pipe()
        fd = str(guard_report)
        guard = [sys.executable, "-I", "-S", __file__, fd, str(grace_s), str(sweep or "")]
        try:
            try:
                self._guard = subprocess.Popen(
                    [*guard, *command],
                    stdin=guard_end,
                    stdout=output,
                    stderr=output if output is None else subprocess.STDOUT,
                    env=None if env is None else dict(env),
                    cwd=cwd,
                    pass_fds=(guard_report,),
                    start_new_session=True,  # Ctrl-C reaches only us, and we stop the command
                )
            finally:
                os.close(guard_end)
                os.close(guard_report)
            answer = _all_of(report)
        except BaseException:  # Ctrl-C, for one: the guard ends the command when the pipe breaks
            os.close(own_end)
            raise
        finally:
            os.close(report)
        self._pipe: int | None = own_end
        if not answer.isdigit():
            self._guard.wait()
            self._close_pipe()
            raise OSError(f"{command[0]} cannot be started: {answer}")
        self.pid = int(answer)

    def poll(self) -> int | None:
        """Exit code if it has ended (128 + signal when killed), None while it runs."""
        return self._guard.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it ends; return the exit code.

        Raises:
            TimeoutError: it still runs after `timeout_s`.
        """
        try:
            return self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} still runs") from None

    def send(self, signum: signal.Signals) -> None:
        """Send it a signal; does nothing when it has ended."""
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, bytes([signum]))

    def stop(self, grace_s: float = GRACE_S) -> int:
        """Send SIGTERM, then SIGKILL after `grace_s`; return the exit code. Idempotent."""
        self.send(signal.SIGTERM)
        try:
            return self.wait(grace_s)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return self.wait()
        finally:
            self._close_pipe()

    def kill(self) -> int:
        """Send SIGKILL; return the exit code."""
        self.send(signal.SIGKILL)
        try:
            return self.wait()
        finally:
            self._close_pipe()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def __enter__(self) -> Tethered:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _all_of(pipe: int) -> str:
    """What the other end writes until it is closed."""
    data = b""
    while some := os.read(pipe, 4096):
        data += some
    return data.decode()


# ---------------------------------------------------------------- the guard's side


def _guard(report: int, grace_s: float, sweep: str, command: Sequence[str]) -> NoReturn:
    prepare = _death_signal()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=prepare)
    except OSError as error:
        os.write(report, str(error).encode())
        os._exit(127)
    with contextlib.suppress(BrokenPipeError):  # the parent has ended: the pipe 0 is broken, too
        os.write(report, str(child.pid).encode())
    os.close(report)
    threading.Thread(target=_end_with, args=(child,), daemon=True).start()
    while signum := os.read(0, 1):
        child.send_signal(signum[0])
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if sweep:
        shutil.rmtree(sweep, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # processes that the command left behind, and the guard itself
    os._exit(1)


def _end_with(child: subprocess.Popen[bytes]) -> None:
    """Exit with the command's exit code; if the parent has ended too, the main thread cleans up."""
    code = child.wait()
    if not _is_broken():
        os._exit(code if code >= 0 else 128 - code)


def _is_broken() -> bool:
    """Whether no process holds the other end of the pipe. Reads nothing from it."""
    pipe = select.poll()
    pipe.register(0, 0)  # poll reports a hang-up without being asked for it
    return bool(pipe.poll(0))


def _death_signal() -> Callable[[], None] | None:
    """Return what the command's process does first: ask the kernel to kill it with the guard."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])
