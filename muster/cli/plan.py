"""Show what a change would move in a live group, and why. The group itself is not changed.

Reads the group's newest record, applies the change to it, asks the group's assignor, and prints
the answer as `muster assign` does. Several changes may be given at once. Without a change it shows
what a new placement of the group would move.
"""

from __future__ import annotations

import argparse
import json
import sys

from muster.cli.options import add_format, add_kafka, group_id, kafka_settings
from muster.cli.what_if import add_changes, changes, planned
from muster.documents.json_files import load
from muster.documents.problem import as_text
from muster.errors import BadInput
from muster.output import one_line
from muster.published.snapshots import snapshot_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    add_changes(parser)
    parser.add_argument("--tasks", metavar="FILE", help="the group's tasks, all of them")
    add_format(parser)
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Read the group, ask its assignor, print the answer."""
    snapshot = snapshot_of(kafka_settings(args), args.topic_prefix, args.group)
    tasks = _tasks(args.tasks) if args.tasks else None
    plan = planned(snapshot, **changes(args), tasks=tasks)
    for warning in plan.pop("warnings", ()):
        print(f"muster plan: {one_line(warning)}", file=sys.stderr)
    print(json.dumps(plan, ensure_ascii=False) if args.format == "json" else as_text(plan))
    return 0


def _tasks(path: str) -> object:
    tasks = load(path)
    if tasks is None:  # `planned` would take None as: leave the tasks as they are
        raise BadInput(f"{path}: expected a list of subtopologies and connectors")
    return tasks
