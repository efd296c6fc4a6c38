"""The smallest worker: prints its tasks. ``python hello_worker.py GROUP HOST:PORT``."""

import argparse

from muster import Worker

parser = argparse.ArgumentParser(description="The smallest worker: prints its tasks.")
parser.add_argument("group", metavar="GROUP", help="the group that the worker joins")
parser.add_argument("servers", metavar="HOST:PORT", help="Kafka")
args = parser.parse_args()
with Worker(
    group=args.group,
    bootstrap_servers=args.servers,
    on_assigned=lambda tasks, assignment: print("start", *tasks, "token", assignment.token),
    on_revoked=lambda tasks, assignment: print("stop", *tasks),
) as worker:
    worker.wait()
