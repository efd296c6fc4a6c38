"""Show what a change would move in a live group, and why. The group itself is not changed.

Reads the group's newest record, applies the change to it, asks the group's assignor, and prints
the answer as `muster assign` does. Several changes may be given at once. Without a change it shows
what a new placement of the group would move.
"""

from __future__ import annotations

import argparse
import json
import sys

from muster.cli.options import (
    add_changes,
    add_format,
    add_kafka,
    changes,
    group_id,
    kafka_settings,
    member_places,
)
from muster.documents.json_files import load
from muster.documents.problem import as_text
from muster.errors import BadInput
from muster.kafka.command_options import connection_options
from muster.output import one_line, wall_ms
from muster.published.existing_group import snapshot_of
from muster.whatif import planned


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    add_changes(parser)
    parser.add_argument("--tasks", metavar="FILE", help="the group's tasks, all of them")
    parser.add_argument(
        "--html", metavar="FILE", help="write the plan as one HTML file too, drawn on the map"
    )
    add_format(parser)
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Read the group, ask its assignor, print the answer."""
    tasks = _tasks(args.tasks) if args.tasks else None
    change = changes(args)
    snapshot = snapshot_of(kafka_settings(args), args.topic_prefix, args.group)
    places = member_places(args)
    plan = planned(snapshot, **change, tasks=tasks, trusts_assignor=True, places=places)
    if args.html is not None:
        from muster.console.plans import Question
        from muster.console.report import plan_html, write_html

        asked = Question(**change, tasks=tasks, trusts_assignor=True)
        source = f"muster plan, {args.group}"
        where = connection_options(args.bootstrap_server, args.command_config, args.topic_prefix)
        html = plan_html(snapshot, asked, at_ms=wall_ms(), source=source, where=where)
        print(f"muster plan: {write_html(args.html, html)}", file=sys.stderr)
    for warning in plan.pop("warnings", ()):
        print(f"muster plan: {one_line(warning)}", file=sys.stderr)
    print(json.dumps(plan, ensure_ascii=False) if args.format == "json" else as_text(plan))
    return 0


def _tasks(path: str) -> object:
    tasks = load(path)
    if tasks is None:  # `planned` would take None as: leave the tasks as they are
        raise BadInput(f"{path}: expected a list of subtopologies and connectors")
    return tasks
