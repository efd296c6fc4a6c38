"""A member of a fleet, as a program: ``python member.py '{"group": ..., "log": ...}'``.

It logs which tasks it holds (in the format of `overlap`) until SIGTERM, then leaves. The
argument is JSON: ``log`` is the file; while the file ``hangs_while`` exists, stopping does not
return; everything else goes to `Worker`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from muster.protocol.ids import Task
from muster.stop_signals import stop_signals
from muster.worker.assignment import Assignment
from muster.worker.worker import Worker


def main(argument: str) -> None:
    """Run until SIGTERM or SIGINT."""
    settings: dict[str, Any] = json.loads(argument)
    log = open(settings.pop("log"), "a", buffering=1)  # noqa: SIM115  open until the process ends
    hangs_while = settings.pop("hangs_while", "")

    def write(what: str, tasks: tuple[Task, ...], by: Assignment) -> None:
        at_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for task in tasks:
            line = {
                "at_ns": at_ns,
                "what": what,
                "task": str(task),
                "member": by.member,
                "pid": os.getpid(),
                "epoch": by.epoch,
                "generation": by.generation,
            }
            log.write(json.dumps(line) + "\n")

    running: set[Task] = set()

    def assigned(tasks: tuple[Task, ...], by: Assignment) -> None:
        running.update(tasks)
        write("start", tasks, by)

    def revoked(tasks: tuple[Task, ...], by: Assignment) -> None:
        # A loss may call this while another call hangs, with tasks that are stopped already.
        write("stop", tuple(task for task in tasks if task in running), by)
        running.difference_update(tasks)
        while os.path.exists(hangs_while):
            time.sleep(0.05)

    worker = Worker(
        on_assigned=assigned,
        on_revoked=revoked,
        **settings,
    )
    with stop_signals() as stop, worker:
        while not stop.wait(0.2) and not worker.wait(0):
            pass


if __name__ == "__main__":
    main(sys.argv[1])
