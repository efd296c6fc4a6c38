"""The guard with real processes: tasks end in time, whatever happens to the worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.worker.scripted_coordinator import eventually

from muster.boottime import boottime_ms
from muster.protocol.ids import parse_task
from muster.protocol.tasks import TaskSet
from muster.worker import exec_tasks
from muster.worker.assignment import Assignment
from muster.worker.exec_tasks import Processes

FOREVER_MS = 3_600_000


def given(*tasks: str, generation: int = 7) -> Assignment:
    """An assignment with these actives."""
    return Assignment(
        "g", "m", 42, 0, generation, 5, 1, TaskSet.of(tasks), TaskSet(), TaskSet(), ""
    )


class Folder:
    """A folder where task processes write their process ids, and the log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.jsonl"

    def pids(self, name: str) -> list[int]:
        """Process ids written under a name, oldest first."""
        file = self.path / name
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def lines(self) -> list[dict]:
        """The log."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def story(self) -> list[str]:
        """The log as `event task` lines."""
        return [f"{line['event']} {line['task']}" for line in self.lines()]


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """The folder of this test."""
    return Folder(tmp_path)


@pytest.fixture
def run(folder: Folder) -> Iterator:
    """Make `Processes`; close them at the end."""
    made: list[Processes] = []

    def make(command: str, **more) -> Processes:
        processes = Processes(f"cd {folder.path}; {command}", log_file=folder.log, **more)
        made.append(processes)
        processes.on_lease(boottime_ms() + FOREVER_MS, 1_000)
        return processes

    yield make
    for processes in made:
        processes.on_lost((), given())
        processes.close()


def on(processes: Processes, *tasks: str, **more) -> None:
    """Assign tasks."""
    processes.on_assigned(tuple(map(parse_task, tasks)), given(*tasks, **more))


def off(processes: Processes, *tasks: str) -> None:
    """Revoke tasks."""
    processes.on_revoked(tuple(map(parse_task, tasks)), given())


def test_a_task_has_muster_variables(run, folder: Folder) -> None:
    """A command has the six MUSTER_ variables, and its task among its arguments."""
    names = ["GROUP", "MEMBER_ID", "TASK", "ROLE", "GENERATION", "MEMBER_EPOCH"]
    show = " ".join(f"$MUSTER_{name}" for name in names)
    processes = run(f'echo {{task}} "{show}" > out.tmp; mv out.tmp out; exec sleep 600')
    on(processes, "it's-odd_3")
    eventually((folder.path / "out").exists)
    assert (folder.path / "out").read_text() == "it's-odd_3 g m it's-odd_3 active 7 5\n"


def test_revoked_means_stopped(run, folder: Folder) -> None:
    """on_revoked returns only when the whole process group has ended."""
    processes = run("(trap 'sleep 0.3; echo bye > bye; exit' TERM; echo $$ > t; sleep 600 & wait)")
    on(processes, "0_0")
    eventually(lambda: folder.pids("t"))
    off(processes, "0_0")
    assert (folder.path / "bye").read_text() == "bye\n"
    assert folder.story() == ["start 0_0", "stop 0_0"]
    start, stop = folder.lines()
    assert {k: start[k] for k in ("member", "incarnation", "generation", "epoch", "role")} == {
        "member": "m",
        "incarnation": 42,
        "generation": 7,
        "epoch": 5,
        "role": "active",
    }
    assert stop["boottime_ms"] >= start["boottime_ms"]


def test_tasks_that_ignore_sigterm_are_killed(run, folder: Folder) -> None:
    """A task that ignores SIGTERM is killed after the grace period, with its children."""
    processes = run(
        "trap '' TERM; (trap '' TERM; sleep 600 & echo $! > child; wait) & echo $! > t; wait",
        stop_timeout_s=0.2,
    )
    on(processes, "0_0")
    eventually(lambda: folder.pids("child"))
    off(processes, "0_0")
    assert not alive(folder.pids("t")[0])
    assert not alive(folder.pids("child")[0])


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
def test_processes_that_left_the_group_are_stopped(run, folder: Folder) -> None:
    """A task counts as ended only after a daemon that it left in another session has ended."""
    processes = run("setsid sh -c 'echo $$ > daemon; exec sleep 600' & echo $$ > t; exec sleep 600")
    on(processes, "0_0")
    eventually(lambda: folder.pids("daemon") and folder.pids("t"))
    off(processes, "0_0")
    assert not alive(folder.pids("daemon")[0])


def test_a_dead_task_is_started_again(run, folder: Folder) -> None:
    """A task that ends by itself is logged as stopped, and started again after a pause."""
    processes = run("echo $$ >> t; exec sleep 600")
    on(processes, "0_0")
    eventually(lambda: folder.pids("t"))
    os.kill(folder.pids("t")[0], signal.SIGKILL)
    eventually(lambda: len(folder.pids("t")) == 2)
    assert folder.story() == ["start 0_0", "stop 0_0", "start 0_0"]


def test_all_tasks_begin_to_stop_although_a_revocation_runs(run, folder: Folder) -> None:
    """`stop_all` waits for no `on_revoked`; each of them then finds tasks that have ended."""
    trap = "trap 'echo $$ > told_$MUSTER_TASK' TERM; echo $$ > $MUSTER_TASK"
    processes = run(f"{trap}; until test -e may_end; do sleep 0.05; done")
    on(processes, "0_0", "0_1")
    eventually(lambda: folder.pids("0_0") and folder.pids("0_1"))
    revocation = threading.Thread(target=off, args=(processes, "0_0"))
    revocation.start()
    eventually(lambda: folder.pids("told_0_0"))
    processes.stop_all()
    eventually(lambda: folder.pids("told_0_1"))
    assert revocation.is_alive()
    on(processes, "0_2")
    (folder.path / "may_end").touch()
    revocation.join()
    off(processes, "0_1", "0_2")
    assert sorted(folder.story()) == ["start 0_0", "start 0_1", "stop 0_0", "stop 0_1"]


def test_a_dead_task_is_not_started_again_while_all_stop(run, folder: Folder) -> None:
    """A task that waits for its next start has ended for good."""
    processes = run("exit 3")
    on(processes, "0_0")
    eventually(lambda: processes._running["0_0"].again_s is not None)
    processes.stop_all()
    assert processes._running["0_0"].again_s is None
    off(processes, "0_0")
    assert folder.story().count("start 0_0") == folder.story().count("stop 0_0")


@pytest.mark.slow
def test_the_lease_ends_tasks(run, folder: Folder) -> None:
    """If the lease is not extended, tasks get SIGTERM, then SIGKILL, before the session ends."""
    processes = run("trap 'echo $$ >> told' TERM; echo $$ > t; while :; do sleep 0.05; done")
    on(processes, "0_0")
    eventually(lambda: folder.pids("t"))
    until_ms = boottime_ms() + 300
    processes.on_lease(until_ms, 500)
    eventually(lambda: folder.story()[1:2] == ["stop 0_0"])
    assert folder.pids("told") == folder.pids("t")
    assert until_ms + 400 <= folder.lines()[1]["boottime_ms"]


def test_nothing_starts_without_a_lease(run, folder: Folder) -> None:
    """A start after the end of the lease is refused, and repeated when there is a new lease."""
    processes = run("echo $$ >> t; exec sleep 600")
    processes.on_lease(boottime_ms() - 1, 0)
    on(processes, "0_0")
    eventually(lambda: processes._running["0_0"].attempt > 0)
    assert folder.story() == []
    processes.on_lease(boottime_ms() + FOREVER_MS, 0)
    eventually(lambda: folder.pids("t"))


def test_lost_tasks_are_killed_at_once(run, folder: Folder) -> None:
    """on_lost before the end of the lease kills at once: another member may have the tasks."""
    processes = run("trap '' TERM; echo $$ > $MUSTER_TASK; while :; do sleep 0.05; done")
    on(processes, "0_0", "0_1")
    eventually(lambda: folder.pids("0_0") and folder.pids("0_1"))
    processes.on_lost((), given())
    assert not alive(folder.pids("0_0")[0])
    assert not alive(folder.pids("0_1")[0])
    assert sorted(folder.story()) == ["start 0_0", "start 0_1", "stop 0_0", "stop 0_1"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_broken_guard_is_replaced(
    run, folder: Folder, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the guard is killed or hangs, a new guard starts the tasks again."""
    monkeypatch.setattr(exec_tasks, "GUARD_PATIENCE_S", 0.5)
    command = "trap '' TERM; echo $$ >> $MUSTER_TASK; while :; do sleep 0.05; done"
    processes = run(command, stop_timeout_s=0)
    on(processes, "0_0", "0_1")
    eventually(lambda: folder.pids("0_0") and folder.pids("0_1"))
    old = folder.pids("0_0") + folder.pids("0_1")
    processes._pipe.process.send_signal(how)
    off(processes, "0_1")
    eventually(lambda: len(folder.pids("0_0")) == 2)
    assert not any(map(alive, old))
    assert len(folder.pids("0_1")) == 1
    assert folder.story().count("stop 0_0") == folder.story().count("stop 0_1") == 1


WORKER = """
import sys, time
from muster.worker import exec_tasks
from muster.protocol.ids import parse_task
from muster.protocol.tasks import TaskSet
from muster.worker.assignment import Assignment
from muster.boottime import boottime_ms
from muster.worker.exec_tasks import Processes
folder, lease_ms = sys.argv[1], int(sys.argv[2])
processes = Processes(f"cd {folder}; {sys.argv[3]}", log_file=f"{folder}/log.jsonl")
processes.on_lease(boottime_ms() + lease_ms, 500)
tasks = ("0_0", "0_1")
given = Assignment("g", "m", 1, 0, 1, 1, 1, TaskSet.of(tasks), TaskSet(), TaskSet())
processes.on_assigned(tuple(map(parse_task, tasks)), given)
print(boottime_ms() + lease_ms, flush=True)
time.sleep(600)
"""
"""A worker that never extends its lease."""


def test_a_guard_that_cannot_be_started_is_tried_again(
    run, folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without a free process: stops return at once, and tasks start when it has one."""
    monkeypatch.setattr(exec_tasks, "GUARD_PAUSE_S", 0.01)
    full, files = threading.Event(), psutil.Process().num_fds
    start = subprocess.Popen

    def popen(*args, **more):
        if full.is_set():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return start(*args, **more)

    monkeypatch.setattr(exec_tasks.subprocess, "Popen", popen)
    processes = run("echo $$ >> {task}; exec sleep 600")
    before = files()
    on(processes, "0_0", "0_1")
    eventually(lambda: folder.pids("0_0") and folder.pids("0_1"))
    full.set()
    processes._pipe.process.kill()
    eventually(lambda: "no guard can be started" in caplog.text)
    on(processes, "0_2")
    off(processes, "0_0", "0_2")
    with processes._changed:  # no try is under way
        assert files() <= before  # what tests before left open may close meanwhile
    full.clear()
    eventually(lambda: len(folder.pids("0_1")) == 2)
    assert (len(folder.pids("0_0")), folder.pids("0_2")) == (1, [])
    assert caplog.text.count("no guard can be started") == 1


@pytest.fixture
def worker(folder: Folder) -> Iterator:
    """Start a worker process with a lease of so many milliseconds."""
    made: list[subprocess.Popen[str]] = []

    def make(lease_ms: int, command: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", WORKER, str(folder.path), str(lease_ms), command]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        made.append(process)
        return process

    yield make
    for process in made:
        process.kill()
        process.communicate()


def test_tasks_of_a_killed_worker_end(worker, folder: Folder) -> None:
    """After SIGKILL of the worker its tasks get SIGTERM at once, long before the lease ends."""
    killed = worker(FOREVER_MS, "trap 'exit 3' TERM; echo $$ > $MUSTER_TASK; sleep 600 & wait")
    eventually(lambda: folder.pids("0_0") and folder.pids("0_1"))
    killed.kill()
    eventually(lambda: len(folder.story()) == 4)
    assert sorted(folder.story()[2:]) == ["stop 0_0", "stop 0_1"]
    assert not any(map(alive, folder.pids("0_0") + folder.pids("0_1")))


@pytest.mark.slow
def test_tasks_of_a_frozen_worker_end_with_its_lease(worker, folder: Folder) -> None:
    """After SIGSTOP of the worker its tasks end when the lease does, by the log's times."""
    frozen = worker(700, "trap '' TERM; echo $$ > $MUSTER_TASK; while :; do sleep 0.05; done")
    assert frozen.stdout is not None
    until_ms = int(frozen.stdout.readline())
    frozen.send_signal(signal.SIGSTOP)
    eventually(lambda: len(folder.story()) == 4)
    for line in folder.lines()[2:]:
        assert line["event"] == "stop"
        assert line["boottime_ms"] >= until_ms - 1
    assert not any(map(alive, folder.pids("0_0") + folder.pids("0_1")))
