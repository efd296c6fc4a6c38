"""`muster demo --plain` as a whole, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.suite.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.broker, pytest.mark.spark]
COMMAND = [sys.executable, "-m", "muster.cli.main", "demo", "--plain"]


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # it may end between two questions
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class Demo:
    """A running demo and the lines it printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            COMMAND,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.seen: dict[int, psutil.Process] = {}

    def __iter__(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n")[9:])
            self.look()
            yield self.lines[-1]

    def look(self) -> None:
        """Remember every process below the demo."""
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.seen.setdefault(child.pid, child)
        except psutil.NoSuchProcess:
            pass

    def alive(self) -> list[psutil.Process]:
        """Processes that the demo started and that still run."""
        return [process for process in self.seen.values() if _runs(process)]

    def leavings(self) -> list[str]:
        """Files that the demo left in the temporary folder, except the JVM's performance data."""
        return [p.name for p in self.folder.iterdir() if not p.name.startswith("hsperfdata")]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """A demo whose temporary files are all below one folder."""
    running = Demo(tmp_path)
    yield running
    running.look()
    running.process.kill()
    running.process.wait()
    assert running.process.stdout is not None
    running.process.stdout.close()
    until(lambda: not running.alive(), "all processes of the demo have ended")


def test_the_demo_from_start_to_end(demo: Demo) -> None:
    """Three, then four workers share twelve tasks; a drained and a killed worker end with none."""
    list(demo)
    assert demo.process.wait(PATIENCE_S) == 0, "\n".join(demo.lines)
    settled = [line for line in demo.lines if line.startswith("settled: ")]
    fleets = [
        {part.split()[0]: part.split()[1].split(",") for part in line[9:].split(" | ")}
        for line in settled
    ]
    everything = {f"0_{number}" for number in range(12)}
    assert [set(fleet) for fleet in fleets] == [
        {"W1", "W2", "W3"},
        {"W1", "W2", "W3", "W4"},
        {"W1", "W3", "W4"},
        {"W1", "W4"},
    ]
    for fleet in fleets:
        held = [task for tasks in fleet.values() for task in tasks]
        assert (len(held), set(held)) == (12, everything)
        sizes = [len(tasks) for tasks in fleet.values()]
        assert max(sizes) - min(sizes) <= 1
    acts = re.split(r"^== \d\. .*\n", "\n".join(demo.lines), flags=re.M)[1:]
    assert len(acts) == 7
    for act, cause in ((2, "W1"), (3, "W4 joined"), (4, "W2 draining"), (5, "W3 expired")):
        assert re.search(rf"^generation \d+: .*{cause}", acts[act], re.M), cause
    moved = re.findall(r"^  (0_\d+) W\d → W4: \S", acts[3], re.M)
    assert set(fleets[1]["W4"]) <= set(moved)
    numbers = [int(n) for act in acts for n in re.findall(r"^generation (\d+): \S", act, re.M)]
    assert numbers == sorted(numbers)
    figures = dict(line.split(": ", 1) for line in demo.lines[-7:])
    assert int(figures["generations"]) == len(set(numbers))
    assert re.fullmatch(
        r"p50 \d+ ms, p99 \d+ ms \(\d+ events, broker timestamps\)",
        figures["event to published assignment"],
    )
    assert " (0_" in figures["longest without an owner, kill -9"]
    assert figures["tasks run by two workers at once"] == "never"
    assert demo.alive() == []
    assert demo.leavings() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_demo_leaves_no_process_and_no_file(demo: Demo, number: signal.Signals) -> None:
    """When it is stopped or killed halfway, the demo leaves no process and no file."""
    for line in demo:
        if line.startswith("settled: "):
            break
    demo.look()
    assert len(demo.alive()) >= 8  # guards, Kafka, the job and its JVM, three workers
    demo.process.send_signal(number)
    code = demo.process.wait(PATIENCE_S)
    assert code == (-number if number is signal.SIGKILL else 130)
    until(lambda: not demo.alive(), "all processes have ended", story=demo.alive)
    until(lambda: not demo.leavings(), "all files are gone", story=demo.leavings)
