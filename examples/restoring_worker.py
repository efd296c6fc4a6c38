"""Tasks with state: copies restore before they take over. ``... GROUP HOST:PORT FOLDER``.

The state of a task is a number in a file, its changelog a count that only grows. A copy is brought
up step by step, says how far behind it is, and that it is ready; the coordinator then moves the
task, and no active task ever starts cold.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from muster import Assignment, Task, Worker

CHANGELOG = 10_000
"""How much there is to restore: a stand-in for the end offset of a changelog topic."""
STEP = 1_000

group, servers, folder = sys.argv[1:4]
stops: dict[Task, threading.Event] = {}


def restore(task: Task, stop: threading.Event) -> None:
    """Bring our copy up to the end."""
    file = Path(folder, str(task))
    done = int(file.read_text()) if file.exists() else 0
    while done < CHANGELOG and not stop.wait(0.1):
        done = min(done + STEP, CHANGELOG)
        file.write_text(str(done))
        worker.lag({task: CHANGELOG - done})
    if done >= CHANGELOG:
        worker.ready(task)


def learn(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Keep a copy of these."""
    for task in tasks:
        stops[task] = threading.Event()
        threading.Thread(target=restore, args=(task, stops[task]), daemon=True).start()


def forget(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """These copies are not wanted any more. The files stay."""
    for task in tasks:
        stops.pop(task).set()


def start(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Run these, from the state on disk; some may be copies that we keep."""
    for task in tasks:
        if task in stops:
            stops.pop(task).set()
        file = Path(folder, str(task))
        print(f"{task} starts {'warm' if file.exists() else 'cold'}", flush=True)


Path(folder).mkdir(parents=True, exist_ok=True)
worker = Worker(
    group=group,
    bootstrap_servers=servers,
    on_assigned=start,
    on_learn=learn,
    on_forget=forget,
)
# What is on disk from an earlier life lets the coordinator give us these tasks again.
worker.lag({file.name: CHANGELOG - int(file.read_text()) for file in Path(folder).iterdir()})
with worker:
    worker.wait()
