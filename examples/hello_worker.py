"""The smallest worker: prints its tasks. ``python hello_worker.py GROUP HOST:PORT``."""

import sys

from muster import Worker

group, servers = sys.argv[1:3]
with Worker(
    group=group,
    bootstrap_servers=servers,
    on_assigned=lambda tasks, assignment: print("start", *tasks, "token", assignment.token),
    on_revoked=lambda tasks, assignment: print("stop", *tasks),
) as worker:
    worker.wait()
