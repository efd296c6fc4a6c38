"""What if: what would move in a live group, and why. Changes nothing.

Reads the group's newest record, applies the change to it, asks the group's assignor, and prints
what `muster assign` prints. Several changes may be given at once; without any it says what a new
placement of the group as it is would do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster import plugins
from muster.assignor.check import valid
from muster.assignor.errors import UnknownAssignor
from muster.assignor.model import GroupView
from muster.cli.assign import as_text
from muster.cli.config import Change, merged
from muster.cli.errors import BadInput, NotFound
from muster.cli.options import (
    add_format,
    add_kafka,
    group_id,
    kafka_settings,
    key_values,
    member_id,
    read_json,
)
from muster.cli.problem import Problem, answer, parse_problem
from muster.cli.snapshots import Shown, names, snapshot_of
from muster.cli.units import parse_tasks, tasks_json
from muster.protocol.events import GroupConfig
from muster.protocol.records import GroupSnapshot, MemberEntry
from muster.protocol.rows import settings_row
from muster.protocol.tasks import TaskTable


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G")
    parser.add_argument(
        "--add-member",
        metavar="FILE",
        action="append",
        default=[],
        help="a member as in a problem file of muster assign; - = standard input; repeatable",
    )
    parser.add_argument(
        "--remove-member", metavar="ID", type=member_id, action="append", default=[]
    )
    parser.add_argument("--config", metavar="K=V", action="append", default=[])
    parser.add_argument("--assignor", metavar="A", help="another way of placing")
    parser.add_argument("--tasks", metavar="FILE", help="the group's tasks, all of them")
    add_format(parser)
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Read, ask, print."""
    snapshot = snapshot_of(kafka_settings(args), args.topic_prefix, args.group)
    found = planned(
        snapshot,
        add=[_member(path) for path in args.add_member],
        remove=args.remove_member,
        config=key_values(args.config, "--config"),
        assignor=args.assignor,
        tasks=read_json(args.tasks) if args.tasks else None,
    )
    print(json.dumps(found, ensure_ascii=False) if args.format == "json" else as_text(found))
    return 0


def planned(
    snapshot: GroupSnapshot,
    *,
    add: list[dict[str, Any]] | None = None,
    remove: list[str] | None = None,
    config: Mapping[str, object] | None = None,
    assignor: str | None = None,
    tasks: object = None,
) -> dict[str, Any]:
    """The output of `muster assign` for a live group after a change.

    Args:
        snapshot: the group's newest record.
        add: members that join, as in a problem file.
        remove: ids of members that leave.
        config: settings that change.
        assignor: another assignor; None = the group's.
        tasks: the group's tasks from now on, as in a problem file; None = as they are.

    Raises:
        BadInput, ConfigError: the change is not as it should be.
        NotFound: a member that is to leave is not there.
        AssignorError: the assignor has no valid answer.
    """
    there = {m.id for m in snapshot.members}
    for name in remove or []:
        if name not in there:
            raise NotFound(
                f"no member {name!r} in the group; there are: {', '.join(sorted(there))}"
            )
    units = None if tasks is None else parse_tasks(tasks)
    old = GroupConfig(
        group=snapshot.group,
        assignor=snapshot.assignor,
        settings=snapshot.settings,
        tasks=snapshot.tasks,
    )
    group = merged(snapshot.group, old, Change(assignor, config or {}, units))
    problem = problem_of(snapshot, group, set(remove or []), add or [])
    try:
        placer = plugins.get(group.assignor)
    except UnknownAssignor as error:
        raise BadInput(f"--assignor: {error}") from None
    view = view_of(snapshot, problem, same_assignor=group.assignor == snapshot.assignor)
    placement = placer.assign(view)
    valid(view, placement)
    return answer(problem, view, placement)


def problem_of(
    snapshot: GroupSnapshot, group: GroupConfig, gone: set[str], more: list[dict[str, Any]]
) -> Problem:
    """The live group as a problem file: what it is to be, and what its members hold."""
    known = TaskTable(group.tasks)
    shown = Shown(snapshot, {})
    rows = [_row(shown, m, known) for m in snapshot.members if m.id not in gone]
    return parse_problem(
        {
            "assignor": group.assignor,
            "config": settings_row(group.settings, group.assignor),
            "tasks": tasks_json(group.tasks),
            "members": [*rows, *more],
            "now_ms": snapshot.clock_ms,
        }
    )


def view_of(snapshot: GroupSnapshot, problem: Problem, *, same_assignor: bool) -> GroupView:
    """The view of the problem, with what only the running group has: the assignor's memory."""
    memory = json.loads(snapshot.memory) if snapshot.memory and same_assignor else None
    return replace(problem.view(), memory=memory)


def _row(shown: Shown, member: MemberEntry, known: TaskTable) -> dict[str, Any]:
    s = shown.snapshot
    held = {
        "active": shown.active(member) | shown.going(member),
        "standby": shown.standby(member),
        "learner": shown.learner(member),
    }
    learner = set(names(held["learner"]))
    ready = [str(shown.table.task(t)) for t, slot in s.ready.tolist() if slot == member.slot]
    lag = {str(shown.table.task(t)): n for t, slot, n in s.lags.tolist() if slot == member.slot}
    kept = {
        role: [t for t in names(tasks) if known.index(t) is not None]
        for role, tasks in held.items()
    }
    return {
        "id": member.id,
        "capacity": member.capacity,
        "rack": member.rack,
        "tags": dict(member.tags),
        "static": list(member.static),
        "protocols": list(member.protocols),
        "topics": None
        if member.topics is None
        else [t for t in member.topics if _is_unit(known, t)],
        "draining": member.draining,
        **kept,
        "ready": [t for t in ready if t in learner and known.index(t) is not None],
        "lag": {t: n for t, n in lag.items() if known.index(t) is not None},
    }


def _is_unit(table: TaskTable, name: str) -> bool:
    return any(unit.name == name for unit in table.units)


def _member(path: str) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise BadInput(f"{path}: expected a member, an object with at least 'id'")
    return found
