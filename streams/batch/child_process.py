"""Runs work in a child process, so that work which ends its process does not end this one.

The child is a fork: it has everything in memory and needs no input. Its answer comes back pickled
through a pipe. It has its own limit of CPU time and inherits the limit of memory.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import pickle
import resource
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple, TypeVar

_Answer = TypeVar("_Answer")

ANSWER_BYTES_MAX = 256 << 20
"""Most bytes of an answer, and so of what one group may publish in such a batch."""
_WAIT_FACTOR = 20
"""A child that gets no CPU, or waits, is ended after this many times its CPU limit."""
_FORK = get_context("fork")


class ChildFailed(Exception):
    """The child gave no answer; the text says how it ended."""


class Child(NamedTuple):
    """A child process that works on an answer; the caller that began it must `end` it."""

    process: ForkProcess
    receiver: Connection
    cpu_s: float

    def answer(self) -> tuple[bool, Any]:
        """Wait for the answer: (True, it), or (False, why there is none)."""
        try:
            data = self.receiver.recv_bytes()
        except EOFError:
            self.process.join()
            return False, _end_of(self.process.exitcode, self.cpu_s)
        gc.disable()  # a group may be thousands of objects, and none of them is garbage
        try:
            return pickle.loads(data)  # type: ignore[no-any-return]  # noqa: S301  our own child's
        finally:
            gc.enable()

    def end(self) -> None:
        """Kill the child, if it still runs, and forget it."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.receiver.close()


def run_in_child(work: Callable[[], _Answer], cpu_s: float) -> _Answer:
    """Run `work` in a child and return its answer.

    Args:
        work: the function to run; its changes to memory are lost.
        cpu_s: CPU time that the child may take, in seconds.

    Raises:
        ChildFailed: the work ended its process, took too long, answered too much, or raised.
    """
    child = begin(answer_to, work, cpu_s)
    try:
        if not child.receiver.poll(_WAIT_FACTOR * cpu_s):
            raise ChildFailed(f"it did not end within {_WAIT_FACTOR * cpu_s:.0f} s")
        is_fine, answer = child.answer()
    finally:
        child.end()
    if not is_fine:
        raise ChildFailed(answer)
    return answer  # type: ignore[no-any-return]  # what `work` returned


def begin(
    target: Callable[[Connection, Callable[[], object], float], None],
    work: Callable[[], object],
    cpu_s: float,
) -> Child:
    """Fork a child that runs `target`: `answer_to`, or a function that ends with it."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=target, args=(sender, work, cpu_s), daemon=True)
    process.start()
    sender.close()
    return Child(process, receiver, cpu_s)


def answer_to(sender: Connection, work: Callable[[], object], cpu_s: float) -> None:
    """Run `work` in the child and send its answer."""
    # No collection may destroy here what libraries have made: their threads are not in the child.
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_cpu(cpu_s)
    try:
        answer = pickle.dumps((True, work()))
        if len(answer) > ANSWER_BYTES_MAX:
            answer = pickle.dumps((False, f"its answer has {len(answer)} bytes"))
    except MemoryError:
        answer = pickle.dumps((False, "it needs more memory than there is"))
    except BaseException as error:
        answer = pickle.dumps((False, f"it raised {type(error).__name__}: {error}"))
    sender.send_bytes(answer)


def _end_of(code: int | None, cpu_s: float) -> str:
    """How a child ended, in words."""
    if code == -signal.SIGPROF:
        return f"it took more than {cpu_s:.0f} s of CPU time"
    if code == -signal.SIGKILL:
        return "its process was killed, for lack of memory perhaps"
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"it ended its process with exit code {code}"


def limit_cpu(cpu_s: float) -> None:
    """End this process with SIGPROF after that much more CPU time; 0 = no limit.

    CPU time, because a busy or frozen machine is not the fault of the work. The signal ends the
    process even where Python runs no handler, for example within a regular expression.
    """
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


@functools.cache
def limit_memory(bytes_max: int) -> None:
    """Limit the address space of this process; repeated calls do nothing.

    Beyond the limit an allocation raises a `MemoryError`, which quarantines one group at most.
    Without a limit the kernel would kill a process of its choice, perhaps the JVM.

    Args:
        bytes_max: bytes beyond what the process has now.
    """
    faulthandler.register(signal.SIGPROF, chain=True)  # prints the stack when the time is up
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[0])
    most = pages * resource.getpagesize() + bytes_max
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
