"""List groups, or describe them: state, members, tasks.

--format json prints one object a group, one a line; its keys are stable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from muster.assignor.ignored import ignored_standbys
from muster.cli.options import add_format, add_kafka, group_id, kafka_settings
from muster.cli.snapshots import (
    NO_MEMBER,
    Shown,
    compact,
    last_heartbeats,
    newest,
    snapshot_of,
    waits_text,
)
from muster.cli.table import json_line, table
from muster.clients import ClientSettings
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot, GroupState, no_tasks
from muster.protocol.tasks import TaskTable

STATE = ("GROUP", "ASSIGNMENT-STRATEGY", "STATE", "GROUP-EPOCH", "#MEMBERS", "#TASKS")
STATE_VERBOSE = ("TARGET-ASSIGNMENT-EPOCH", "COORDINATOR-EPOCH", "CLOCK-MS")
MEMBERS = (
    *("GROUP", "MEMBER-ID", "GROUP-INSTANCE-ID", "RACK", "CAPACITY", "MEMBER-EPOCH", "STATE"),
    *("#ACTIVE", "#STANDBY", "#LEARNER", "LAST-HEARTBEAT-MS"),
)
MEMBERS_VERBOSE = ("DRAINING", "ACTIVE", "STANDBY", "LEARNER", "REVOKING")
TASKS = ("GROUP", "TASK", "ROLE", "MEMBER-ID", "STATE")
TASKS_VERBOSE = ("TARGET", "DESTINATION", "LAG")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("action", choices=("list", "describe"))
    parser.add_argument("--group", type=group_id, metavar="G", help="one group (default: all)")
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--members", action="store_true", help="describe: one row a member")
    view.add_argument("--tasks", action="store_true", help="describe: one row a task and copy")
    parser.add_argument("--verbose", action="store_true", help="describe: more columns")
    add_format(parser)
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Read the groups and print them."""
    settings, prefix = kafka_settings(args), args.topic_prefix
    if args.group is not None:
        found = [snapshot_of(settings, prefix, args.group)]
    else:
        found = list(newest(settings, prefix).values())
    shown = [Shown(s, _heard(settings, prefix, s, args)) for s in found]
    if args.format == "json":
        for each in shown:
            print(json_line(each.as_json()))
    else:
        print(_table(shown, args))
        for hint in hints(shown) if args.action == "describe" else ():
            print(f"muster groups: {hint}", file=sys.stderr)
    return 0


def hints(shown: Sequence[Shown]) -> list[str]:
    """What to do about groups that members joined and that have no tasks; standbys in vain."""
    found = [
        f"{each.snapshot.group} has members and {no_tasks(each.snapshot.group)}"
        for each in shown
        if each.snapshot.state is GroupState.NOT_READY
    ]
    for s in (each.snapshot for each in shown):
        ignored = ignored_standbys(s.assignor, s.settings, TaskTable(s.tasks))
        found += (f"{s.group}: {line}" for line in ignored)
    return found


def _heard(
    settings: ClientSettings, prefix: str, snapshot: GroupSnapshot, args: argparse.Namespace
) -> dict[str, int]:
    """Last heartbeats, where they are shown: they cost reading the tail of a busy topic."""
    if args.action == "describe" and (args.members or args.format == "json"):
        return last_heartbeats(settings, prefix, snapshot)
    return {}


def _table(shown: Sequence[Shown], args: argparse.Namespace) -> str:
    if args.action == "describe" and args.members:
        return members_table(shown, args.verbose)
    if args.action == "describe" and args.tasks:
        return tasks_table(shown, args.verbose)
    if args.action == "describe":
        return "\n".join([state_table(shown, args.verbose, cause=True), *_waits(shown)])
    return state_table(shown)


def _waits(shown: Sequence[Shown]) -> list[str]:
    """What tasks wait for, a paragraph for each group where some do."""
    told = [(each.snapshot.group, waits_text(each.snapshot)) for each in shown]
    return [f"\n{group}:\n{text}" for group, text in told if text]


def state_table(shown: Sequence[Shown], verbose: bool = False, cause: bool = False) -> str:
    """One row a group."""
    columns = (*STATE, *(STATE_VERBOSE if verbose else ()), *(("CAUSE",) if cause else ()))
    rows = []
    for s in (each.snapshot for each in shown):
        tasks = sum(unit.size for unit in s.tasks)
        row: list[object] = [s.group, s.assignor, s.state.value, s.generation, len(s.members)]
        row += [tasks, *((s.target_generation, s.coordinator_epoch, s.clock_ms) if verbose else ())]
        rows.append([*row, *([s.cause] if cause else [])])
    return table(columns, rows)


def members_table(shown: Sequence[Shown], verbose: bool = False) -> str:
    """One row a member."""
    rows = []
    for each in shown:
        for m in sorted(each.snapshot.members, key=lambda m: m.id):
            sets = (each.active(m), each.standby(m), each.learner(m))
            row: list[object] = [each.snapshot.group, m.id, m.instance_id, m.rack, m.capacity]
            row += [m.epoch, each.state(m), *map(len, sets), each.heard.get(m.id)]
            if verbose:
                row += [m.draining, *(compact(tasks) for tasks in (*sets, each.revoking(m)))]
            rows.append(row)
    return table((*MEMBERS, *(MEMBERS_VERBOSE if verbose else ())), rows)


def tasks_table(shown: Sequence[Shown], verbose: bool = False) -> str:
    """One row for each task's active, then one for each copy of it."""
    rows = [row for each in shown for row in _task_rows(each, verbose)]
    return table((*TASKS, *(TASKS_VERBOSE if verbose else ())), rows)


def _task_rows(each: Shown, verbose: bool) -> list[list[object]]:
    s = each.snapshot
    member = {m.slot: m.id for m in s.members}
    lag = {(int(t), int(slot)): int(offsets) for t, slot, offsets in s.lags}
    keyed: list[tuple[tuple[int, Role, str], list[object]]] = []
    for t in range(len(each.table)):
        holder = int(s.holder[t])
        state = "unassigned" if holder == NO_MEMBER else "revoking" if s.revoking[t] else "running"
        row: list[object] = [s.group, str(each.table.task(t)), "active", member.get(holder), state]
        if verbose:
            row += [member.get(int(s.target[t])), member.get(int(s.destination[t])), None]
        keyed.append(((t, Role.ACTIVE, ""), row))
    for role, pairs, going in (
        (Role.STANDBY, s.standby, s.standby_revoking),
        (Role.LEARNER, s.learner, s.learner_revoking),
    ):
        leaving = set(map(tuple, going.tolist()))
        ready = set(map(tuple, s.ready.tolist()))
        for t, slot in pairs.tolist():
            calm = (
                "ready" if (t, slot) in ready else "restoring" if role is Role.LEARNER else "kept"
            )
            state = "revoking" if (t, slot) in leaving else calm
            row = [s.group, str(each.table.task(t)), role.name.lower(), member.get(slot), state]
            if verbose:
                row += [None, None, lag.get((t, slot))]
            keyed.append(((t, role, member.get(slot, "")), row))
    return [row for _, row in sorted(keyed, key=lambda pair: pair[0])]
