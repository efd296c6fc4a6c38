"""Tasks with state: copies restore before they take over. ``... GROUP HOST:PORT FOLDER``.

The state of a task is a number in a file; its changelog is a number that only grows. A copy
restores step by step, reports its lag, and then that it is ready. Only then does the coordinator
move the task, so no active task starts without its state. (A lag of at most
`acceptable.recovery.lag`, 10,000 by default, counts as ready; here each step is larger.)
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from muster import Assignment, Task, Worker

CHANGELOG = 1_000_000
"""How much there is to restore; in a real program, the end offset of a changelog topic."""
STEP = 100_000

parser = argparse.ArgumentParser(
    description="A worker whose tasks have state, which copies restore before they take over."
)
parser.add_argument("group", metavar="GROUP", help="the group that the worker joins")
parser.add_argument("servers", metavar="HOST:PORT", help="Kafka")
parser.add_argument("folder", metavar="FOLDER", help="where the state is kept")
args = parser.parse_args()
group, servers, folder = args.group, args.servers, args.folder
stops: dict[Task, threading.Event] = {}


def restore(task: Task, stop: threading.Event) -> None:
    """Restore the copy until it has caught up."""
    file = Path(folder, str(task))
    done = int(file.read_text()) if file.exists() else 0
    while done < CHANGELOG and not stop.wait(0.1):
        done = min(done + STEP, CHANGELOG)
        file.write_text(str(done))
        worker.lag({task: CHANGELOG - done})
    if done >= CHANGELOG:
        worker.ready(task)


def learn(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Keep copies of these tasks."""
    for task in tasks:
        stops[task] = threading.Event()
        threading.Thread(target=restore, args=(task, stops[task]), daemon=True).start()


def forget(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Stop restoring these copies. The files stay."""
    for task in tasks:
        stops.pop(task).set()


def start(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Run these tasks from the state on disk; some of them may be copies until now."""
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
# With the lags of copies from an earlier run the coordinator can assign the same tasks again.
worker.lag({file.name: CHANGELOG - int(file.read_text()) for file in Path(folder).iterdir()})
with worker:
    worker.wait()
