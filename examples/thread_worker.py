"""A thread per task. ``python thread_worker.py GROUP HOST:PORT``.

Each thread asks `holds` before each step. If the answer is no, because the process was suspended,
the thread waits: either the lease goes on, or the worker calls `end`. Send the token with every
write to an outside system.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time

from muster import Assignment, Task, Worker
from muster.worker.assignment import Token

running: dict[Task, tuple[threading.Thread, threading.Event]] = {}


def work(task: Task, token: Token, stop: threading.Event) -> None:
    """Do the task's work in small steps."""
    while not stop.is_set():
        if worker.holds(task):
            print(f"{time.strftime('%X')} {task}: a step, token {token.generation}.{token.epoch}")
        stop.wait(1)


def start(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Start the tasks: this worker owns them now."""
    for task in tasks:
        stop = threading.Event()
        thread = threading.Thread(target=work, args=(task, assignment.token, stop))
        running[task] = (thread, stop)
        thread.start()


def end(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Stop the tasks: when this returns, other members may get them."""
    ended = [running.pop(task) for task in tasks if task in running]
    for _, stop in ended:
        stop.set()
    for thread, _ in ended:
        thread.join()


parser = argparse.ArgumentParser(description="A worker with a thread per task.")
parser.add_argument("group", metavar="GROUP", help="the group that the worker joins")
parser.add_argument("servers", metavar="HOST:PORT", help="Kafka")
args = parser.parse_args()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # leaves the group on its way out
worker = Worker(group=args.group, bootstrap_servers=args.servers, on_assigned=start, on_revoked=end)
with worker:
    worker.wait()
