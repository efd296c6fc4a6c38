"""Hundreds of tasks, and a system without room: no task harms another, and all end in time."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.worker.scripted_coordinator import eventually

from muster.boottime import boottime_ms
from muster.cli.main import main
from muster.protocol.ids import parse_task
from muster.protocol.tasks import TaskSet
from muster.worker import process_guard
from muster.worker.assignment import Assignment
from muster.worker.exec_tasks import Processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Linux guard")
FOREVER_MS = 3_600_000
SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER`: orphans become this process' children, as those of process 1."""


def given(*tasks: str) -> Assignment:
    """An assignment with these actives."""
    return Assignment("g", "m", 42, 0, 7, 5, 1, TaskSet.of(tasks), TaskSet(), TaskSet(), "")


def started(command: str, *tasks: str, log_file: str | None = None) -> Processes:
    """A worker's processes with these tasks."""
    processes = Processes(command, log_file=log_file, stop_timeout_s=0.2)
    processes.on_lease(boottime_ms() + FOREVER_MS, 1_000)
    processes.on_assigned(tuple(map(parse_task, tasks)), given(*tasks))
    return processes


def running(processes: Processes) -> dict[str, int]:
    """Task → process id, of the tasks that run."""
    return {name: each.pid for name, each in list(processes._running.items()) if each.pid}


def ended(processes: Processes) -> None:
    """Kill all tasks, and end the guard."""
    processes.on_lost((), given())
    processes.close()


@pytest.fixture
def slow_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A guard that needs 20 ms more for each process, and can make none while a file exists."""
    full = tmp_path / "full"
    source = Path(process_guard.__file__).read_text()
    fork = "        pid = os.fork()\n"
    assert source.count(fork) == 1
    slow = (
        f"        time.sleep(0.02)\n        if os.path.exists({str(full)!r}):\n"
        f"            raise BlockingIOError(11, 'Resource temporarily unavailable')\n{fork}"
    )
    copy = tmp_path / "slow_guard.py"
    copy.write_text(source.replace(fork, slow))
    monkeypatch.setattr(process_guard, "__file__", str(copy))
    return full


def test_the_guard_reads_no_environment_of_a_task_to_stop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To stop 300 tasks reads the children once, and the environment of none that leads a group.

    Each of them once read that of all others, and 300 tasks took 7 s: longer than a session lasts
    after the end of a lease.
    """
    read: list[int] = []
    signalled: list[int] = []
    commands, events = os.pipe()
    monkeypatch.setattr(process_guard, "_linux_control", lambda: lambda: None)
    monkeypatch.setattr(process_guard, "_children", lambda: [*range(1_000, 1_300), 5_000])
    monkeypatch.setattr(
        process_guard, "_environment", lambda pid: read.append(pid) or b"MUSTER_TASK=t_7\0"
    )
    monkeypatch.setattr(process_guard, "_kill", lambda pid, signum: signalled.append(pid))
    monkeypatch.setattr(os, "killpg", lambda pid, signum: signalled.append(pid))
    guard = process_guard.Guard(commands, events, "")
    for number in range(300):
        command = {"task": f"t_{number}"}
        guard._processes[1_000 + number] = process_guard.Process(command, 1_000 + number)
    guard._end_all(guard._processes.values(), 0)
    os.close(commands)
    os.close(events)
    assert read == [5_000]
    assert signalled == [*range(1_000, 1_300), 5_000]


def test_a_lease_does_not_wait_for_starts(slow_guard: Path) -> None:
    """More starts than the pipe holds, and a slow guard: no call waits, and no guard is killed."""
    names = [f"t_{number}" for number in range(60)]
    processes = started(f"exec sleep 600 # {'x' * 4_000}", *names)
    guard = processes._pipe.process.pid
    processes.on_lease(boottime_ms() + FOREVER_MS, 1_000)
    assert processes._pipe.is_full, "the calls returned before the guard had read the commands"
    eventually(lambda: set(running(processes)) == set(names))
    assert processes._pipe.process.pid == guard
    processes.on_revoked(tuple(map(parse_task, names)), given())
    assert not processes._running
    ended(processes)


def test_a_task_that_cannot_be_started_harms_no_other(slow_guard: Path) -> None:
    """While the system makes no process, the running tasks go on; then the new one starts."""
    processes = started("exec sleep 600", "t_0")
    eventually(lambda: "t_0" in running(processes))
    before = running(processes)["t_0"]
    slow_guard.touch()
    processes.on_assigned((parse_task("t_1"),), given("t_0", "t_1"))
    eventually(lambda: processes._running["t_1"].attempt > 0)
    slow_guard.unlink()
    eventually(lambda: "t_1" in running(processes))
    assert running(processes)["t_0"] == before
    ended(processes)


def test_a_full_disk_stops_no_task() -> None:
    """The log is on a full disk: tasks start, run and stop as if there was no log."""
    processes = started("exec sleep 600", "t_0", "t_1", log_file="/dev/full")
    eventually(lambda: len(running(processes)) == 2)
    processes.on_revoked((parse_task("t_0"),), given("t_1"))
    assert set(running(processes)) == {"t_1"}
    ended(processes)


def test_a_log_in_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends at once and says which folder is missing."""
    where = ["--group", "g", "--bootstrap-server", "127.0.0.1:1", "--exec", "true"]
    assert main(["worker", *where, "--log", str(tmp_path / "no" / "log.jsonl")]) == 2
    assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err


PROCESS_ONE = """
import os, signal, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
from worker.test_many_processes import ended, eventually, running, started
processes = started("exec sleep 600", "t_0")
eventually(lambda: "t_0" in running(processes))
before = running(processes)["t_0"]
processes._pipe.process.send_signal(signal.SIGKILL)
eventually(lambda: running(processes).get("t_0", before) != before)
ended(processes)
print("started again")
"""


def test_a_worker_that_is_process_1_replaces_its_guard() -> None:
    """The tasks of a killed guard become its children; it reaps them, and starts them again."""

    def be_subreaper() -> None:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)

    program = [sys.executable, "-c", PROCESS_ONE, os.pathsep.join(sys.path)]
    done = subprocess.run(
        program, preexec_fn=be_subreaper, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "started again\n", done.stderr
