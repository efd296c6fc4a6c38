"""A member of a fleet, as a program: ``python member.py '{"group": ..., "log": ...}'``.

It holds its tasks by logging that it does (`overlap` says how) until SIGTERM, then leaves. The
argument is JSON: ``log`` is the file; everything else goes to `Worker`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from muster.protocol.ids import Task
from muster.worker.assignment import Assignment
from muster.worker.worker import Worker


def main(argument: str) -> None:
    """Run until told to stop."""
    settings: dict[str, Any] = json.loads(argument)
    log = open(settings.pop("log"), "a", buffering=1)  # noqa: SIM115  lives as long as we do
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

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

    worker = Worker(
        on_assigned=lambda tasks, by: write("start", tasks, by),
        on_revoked=lambda tasks, by: write("stop", tasks, by),
        **settings,
    )
    with worker:
        while not stop.wait(0.2) and not worker.wait(0):
            pass


if __name__ == "__main__":
    main(sys.argv[1])
