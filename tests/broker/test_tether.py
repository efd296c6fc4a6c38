"""Child processes that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster.broker import ends_with_parent
from muster.broker.ends_with_parent import Tethered

PYTHON = [sys.executable, "-c"]
SLEEPER = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)"
)


def gone(*pids: int) -> bool:
    """Wait until the processes have ended (a zombie has)."""
    return all(_gone(pid) for pid in pids)


def _gone(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        psutil.wait_procs([process], timeout=30)
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_runs_and_ends_with_its_code(tmp_path: Path) -> None:
    """Output goes to the given file, the environment is passed, the exit code is returned."""
    with (tmp_path / "out").open("wb") as out:
        code = "import os, sys; print(os.environ['WORD']); sys.stderr.write('err'); sys.exit(7)"
        child = Tethered([*PYTHON, code], output=out, env={**os.environ, "WORD": "hello"})
        assert child.wait(30) == 7
    assert sorted((tmp_path / "out").read_text().split()) == ["err", "hello"]
    assert child.poll() == 7
    assert child.stop() == 7


def test_a_missing_program() -> None:
    """A command that cannot be started raises an error."""
    with pytest.raises(OSError, match=r"no/such/program cannot be started: .*No such file"):
        Tethered(["no/such/program"])


def test_stop_sends_sigterm_then_sigkill() -> None:
    """`stop` sends SIGTERM, and SIGKILL to a command that ignores it."""
    with Tethered([*PYTHON, SLEEPER]) as polite:
        assert polite.stop() == 128 + signal.SIGTERM
    read, write = os.pipe()
    stubborn = Tethered([*PYTHON, STUBBORN], output=write)
    os.close(write)
    with os.fdopen(read) as lines:
        assert lines.readline() == "up\n"
        assert stubborn.stop(grace_s=0.1) == 128 + signal.SIGKILL
    assert gone(polite.pid, stubborn.pid)


def test_signals_reach_the_command_itself() -> None:
    """`pid` is the command's own, and `kill` and `send` signal it."""
    child = Tethered([*PYTHON, SLEEPER])
    assert psutil.Process(child.pid).cmdline()[-1] == SLEEPER
    child.send(signal.SIGUSR1)
    assert child.wait(30) == 128 + signal.SIGUSR1
    child.send(signal.SIGUSR1)  # does nothing when it has ended
    other = Tethered([*PYTHON, SLEEPER])
    assert other.kill() == 128 + signal.SIGKILL


OWNER = """
import sys, time
from pathlib import Path
from muster.broker.ends_with_parent import Tethered
child = Tethered([sys.executable, "-c", sys.argv[1]], grace_s=0.2, sweep=Path(sys.argv[2]))
print(child.pid, flush=True)
time.sleep(600)
"""


@contextmanager
def owned(command: str, sweep: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Start an owner with a child and a folder to remove; yield both processes."""
    sweep.mkdir()
    owner = subprocess.Popen(
        [*PYTHON, OWNER, command, str(sweep)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        lines = iter(owner.stdout.readline, "")
        pid = next(int(line) for line in lines if line.strip().isdigit())  # its child prints, too
        yield owner, psutil.Process(pid)


@pytest.mark.parametrize("command", [SLEEPER, STUBBORN], ids=["polite", "stubborn"])
def test_the_owner_is_killed(command: str, tmp_path: Path) -> None:
    """When the owner is killed its child ends, even if it ignores SIGTERM."""
    sweep = tmp_path / "thrown-away"
    with owned(command, sweep) as (owner, child):
        guard = child.ppid()
        owner.kill()
        owner.wait()
    assert gone(child.pid, guard)
    assert not sweep.exists()


def test_the_command_ends_with_its_owner(tmp_path: Path) -> None:
    """The folder is removed even if owner and child end before the guard notices."""
    sweep = tmp_path / "thrown-away"
    with owned(SLEEPER, sweep) as (owner, child):
        guard = child.parent()
        assert guard is not None
        guard.suspend()
        owner.kill()
        owner.wait()
        child.kill()
        guard.resume()
    assert gone(child.pid, guard.pid)
    assert not sweep.exists()


def test_the_owner_is_killed_while_the_guard_starts(tmp_path: Path) -> None:
    """The guard finds both pipes broken: it ends the command, and removes the folder."""
    sweep = tmp_path / "thrown-away"
    sweep.mkdir()
    (stdin, owner_end), (answer, report) = os.pipe(), os.pipe()
    words = ["-I", "-S", ends_with_parent.__file__, str(report), "0.2", str(sweep)]
    guard = subprocess.Popen(
        [sys.executable, *words, *PYTHON, SLEEPER],
        stdin=stdin,
        pass_fds=(report,),
        start_new_session=True,
    )
    for end in (stdin, owner_end, answer, report):
        os.close(end)
    guard.wait(30)
    assert not sweep.exists()


def test_ctrl_c_during_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes on that its owner does not know of, and no pipe stays open."""
    started: list[subprocess.Popen[bytes]] = []
    popen, files = subprocess.Popen, psutil.Process().num_fds

    def interrupted(*args: Any, **more: Any) -> None:
        started.append(popen(*args, **more))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = files()
    with pytest.raises(KeyboardInterrupt):
        Tethered([*PYTHON, SLEEPER])
    try:
        assert files() == before
        started[0].wait(30)
    finally:
        started[0].kill()
        started[0].wait()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux only")
def test_the_guard_is_killed() -> None:
    """When the guard is killed the kernel kills the command."""
    child = Tethered([*PYTHON, SLEEPER])
    os.kill(psutil.Process(child.pid).ppid(), signal.SIGKILL)
    assert gone(child.pid)
    child.wait(30)
