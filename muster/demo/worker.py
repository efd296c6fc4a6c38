"""A worker of `muster demo`: ``python -m muster.demo.worker ADDRESS GROUP ID FILE``.

It only logs each start and stop of a task (`task_runs.py`), and leaves its group at SIGTERM. A
worker that uses the SDK needs no more code than this.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

from muster.protocol.ids import Task
from muster.worker.assignment import Assignment
from muster.worker.worker import Worker

LOOK_S = 0.2


def main(address: str, group: str, member: str, file: str) -> None:
    """Be a member until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with open(file, "a", buffering=1) as log:

        def write(what: str, tasks: tuple[Task, ...], _: Assignment) -> None:
            for task in tasks:
                line = {"at_ns": time.monotonic_ns(), "what": what, "task": str(task)}
                log.write(json.dumps({**line, "member": member}) + "\n")

        with Worker(
            group=group,
            bootstrap_servers=address,
            member_id=member,
            on_assigned=lambda tasks, by: write("start", tasks, by),
            on_revoked=lambda tasks, by: write("stop", tasks, by),
        ) as worker:
            while not stop.wait(LOOK_S) and not worker.wait(0):
                pass


if __name__ == "__main__":
    main(*sys.argv[1:5])
