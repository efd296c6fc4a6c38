"""A worker of `muster demo`: ``python -m muster.demo.worker ADDRESS GROUP ID FILE``.

It only logs each start and stop of a task (`task_runs.py`), and leaves its group at SIGTERM. A
worker that uses the SDK needs no more code than this.
"""

from __future__ import annotations

import json
import sys
import time

from muster.protocol.ids import Task
from muster.stop_signals import LOOK_S, stop_signals
from muster.worker.assignment import Assignment
from muster.worker.worker import Worker


def main(address: str, group: str, member: str, file: str) -> None:
    """Be a member until SIGTERM or SIGINT."""
    with open(file, "a", buffering=1) as log, stop_signals() as stop:

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
