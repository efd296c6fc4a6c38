"""A child process that cannot outlive us, however we end.

A `Tethered` command runs below a small guard process in a session of its own. The guard holds one
end of a pipe, we the other; we write a byte to have a signal sent. When we end, by SIGKILL too,
the pipe breaks: the guard asks the command to stop (SIGTERM), waits, then kills all that is left in
its process group. If the guard itself is killed, the kernel kills the command (PR_SET_PDEATHSIG of
Linux, set below the guard and not by us, because it follows the *thread* that forked).

Why not only that: it is Linux only, it sends SIGKILL without a chance to stop in order, and a
broker started in a thread would die with the thread.

This file is also the guard's program, run by path with ``python -I -S``: standard library only.
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
    """A running command that ends when we do.

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
            output: where standard output and error go; None = our own.
            env: its environment; None = ours.
            cwd: the folder it starts in; None = ours.
            grace_s: how long it may take to stop after SIGTERM once we are gone.
            sweep: a folder to be removed if we are gone before the command ended.

        Raises:
            OSError: the program cannot be started.
        """
        theirs, ours = os.pipe()
        told, tell = os.pipe()
        guard = [sys.executable, "-I", "-S", __file__, str(tell), str(grace_s), str(sweep or "")]
        try:
            self._guard = subprocess.Popen(
                [*guard, *command],
                stdin=theirs,
                stdout=output,
                stderr=output if output is None else subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                pass_fds=(tell,),
                start_new_session=True,  # Ctrl-C in the terminal is for us; we stop it in order
            )
        finally:
            os.close(theirs)
            os.close(tell)
        self._rope: int | None = ours
        with os.fdopen(told, "rb") as report:
            answer = report.read().decode()
        if not answer.isdigit():
            self._guard.wait()
            self._let_go()
            raise OSError(f"{command[0]} cannot be started: {answer}")
        self.pid = int(answer)

    def poll(self) -> int | None:
        """Exit code if it ended (128 + signal when killed), None while it runs."""
        return self._guard.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end; the exit code.

        Raises:
            TimeoutError: it runs on.
        """
        try:
            return self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} still runs") from None

    def send(self, signum: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended."""
        if self._rope is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._rope, bytes([signum]))

    def stop(self, grace_s: float = GRACE_S) -> int:
        """SIGTERM, then SIGKILL after `grace_s`; the exit code. Idempotent."""
        self.send(signal.SIGTERM)
        try:
            return self.wait(grace_s)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return self.wait()
        finally:
            self._let_go()

    def kill(self) -> int:
        """SIGKILL; the exit code."""
        self.send(signal.SIGKILL)
        try:
            return self.wait()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._rope is not None:
            os.close(self._rope)
            self._rope = None

    def __enter__(self) -> Tethered:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# ---------------------------------------------------------------- the guard's side


def _guard(report: int, grace_s: float, sweep: str, command: Sequence[str]) -> NoReturn:
    die_with_us = _death_signal()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_us)
    except OSError as error:
        os.write(report, str(error).encode())
        os._exit(127)
    os.write(report, str(child.pid).encode())
    os.close(report)
    threading.Thread(target=_end_with, args=(child,), daemon=True).start()
    while word := os.read(0, 1):
        child.send_signal(word[0])
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if sweep:
        shutil.rmtree(sweep, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # what the command itself started and left behind, and the guard
    os._exit(1)


def _end_with(child: subprocess.Popen[bytes]) -> None:
    """End as the command ends, with its exit code; if we are gone as well, the guard tidies up."""
    code = child.wait()
    if not _is_cut():
        os._exit(code if code >= 0 else 128 - code)


def _is_cut() -> bool:
    """Whether no process holds the other end of the pipe; looked at, not read."""
    rope = select.poll()
    rope.register(0, 0)  # a hang-up is reported unasked
    return bool(rope.poll(0))


def _death_signal() -> Callable[[], None] | None:
    """What the command does before it runs: ask the kernel to die with the guard."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])
