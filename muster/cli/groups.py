"""List groups, describe them (state, members, tasks), or release one that is quarantined.

The coordinator quarantines a group whose events ended the process that worked on them; `describe`
says why. `release` lets the group continue; the exit code is 1 if the group fails again.

--format json prints one object per group, one per line; its keys are stable.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from muster.assignor.ignored import ignored_standbys
from muster.cli.ages import ago, span, wall_ms
from muster.cli.errors import BadInput
from muster.cli.holdups import Debts
from muster.cli.options import add_format, add_kafka, group_id, kafka_settings
from muster.cli.release import quarantine_text, release
from muster.cli.seen import last_seen_ms, seen_text
from muster.cli.snapshots import (
    NO_MEMBER,
    Shown,
    compact,
    configured,
    drains_text,
    history,
    is_deleted,
    last_heartbeats,
    no_group,
    waits_text,
)
from muster.cli.table import json_line, table
from muster.kafka.settings import ClientSettings
from muster.protocol.ids import GroupId, Role
from muster.protocol.misspelt import no_tasks_beside
from muster.protocol.records import GroupSnapshot, GroupState
from muster.protocol.tasks import TaskTable
from muster.signing.keyring import add_signing_keys, key_file

STATE = ("GROUP", "ASSIGNMENT-STRATEGY", "STATE", "GROUP-EPOCH", "#MEMBERS", "#TASKS")
STATE_VERBOSE = ("TARGET-ASSIGNMENT-EPOCH", "COORDINATOR-EPOCH", "CLOCK")
MEMBERS = (
    *("GROUP", "MEMBER-ID", "GROUP-INSTANCE-ID", "RACK", "CAPACITY", "MEMBER-EPOCH", "STATE"),
    *("#ACTIVE", "#STANDBY", "#LEARNER", "LAST-HEARTBEAT"),
)
MEMBERS_VERBOSE = ("DRAINING", "ACTIVE", "STANDBY", "LEARNER", "REVOKING")
TASKS = ("GROUP", "TASK", "ROLE", "MEMBER-ID", "STATE")
TASKS_VERBOSE = ("TARGET", "DESTINATION", "LAG")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("action", choices=("list", "describe", "release"))
    parser.add_argument(
        "--group", type=group_id, metavar="G", help="one group (default: all); release needs it"
    )
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--members", action="store_true", help="describe: one row a member")
    view.add_argument("--tasks", action="store_true", help="describe: one row a task and copy")
    parser.add_argument("--verbose", action="store_true", help="describe: more columns")
    add_format(parser)
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Read the groups and print them, or release one."""
    settings, prefix, now_ms = kafka_settings(args), args.topic_prefix, wall_ms()
    if args.action == "release":
        if args.group is None:
            raise BadInput("groups release: give --group G")
        release(settings, prefix, args.group, key_file(args.signing_keys))
        return 0
    found, debts = _read(settings, prefix, args.group)
    is_described = args.action == "describe"
    seen_ms = last_seen_ms(settings, prefix) if is_described else None
    shown = [Shown(s, _heard(settings, prefix, s, args), seen_ms) for s in found]
    if args.format == "json":
        for each in shown:
            owed = [holdup.as_json(now_ms) for holdup in debts.holdups(each.snapshot)]
            print(json_line({**each.as_json(), "owed": owed}))
        return 0
    print(_table(shown, args, now_ms))
    if is_described:
        for paragraph in (
            *quarantines(shown, now_ms),
            *_waits(shown, debts, now_ms),
            *drains(shown, now_ms),
        ):
            print(paragraph)
        for hint in hints(shown, lambda: configured(settings, prefix)):
            print(f"\n{hint}")
        print(f"\n{seen_text(seen_ms, now_ms, found)}")
    return 0


def _read(
    settings: ClientSettings, prefix: str, group: str | None
) -> tuple[list[GroupSnapshot], Debts]:
    """The newest snapshot of one group, or of every group by id, and the releases members owe."""
    found: dict[GroupId, GroupSnapshot] = {}
    debts = Debts()
    for published in history(settings, prefix, group):
        debts.take(published)
        if isinstance(published.record, GroupSnapshot) and not is_deleted(published.record):
            found[published.record.group] = published.record
        else:
            found.pop(published.record.group, None)
    if group is not None and not found:
        raise no_group(settings, prefix, group)
    return [found[name] for name in sorted(found)], debts


def hints(shown: Sequence[Shown], others: Callable[[], Sequence[str]]) -> list[str]:
    """Advice for each group with members but no tasks, and for standbys that have no effect.

    Args:
        shown: the groups.
        others: looks up the names of the groups that have tasks; called only if needed.
    """
    bare = [e.snapshot.group for e in shown if e.snapshot.state is GroupState.NOT_READY]
    known = others() if bare else ()
    found = [no_tasks_beside(group, known) for group in bare]
    for s in (each.snapshot for each in shown):
        ignored = ignored_standbys(s.assignor, s.settings, TaskTable(s.tasks))
        found += (f"{s.group}: {line}" for line in ignored)
    return found


def _heard(
    settings: ClientSettings, prefix: str, snapshot: GroupSnapshot, args: argparse.Namespace
) -> dict[str, int]:
    """Last heartbeats by member id; read only if shown, because that reads a busy topic's tail."""
    if args.action == "describe" and (args.members or args.format == "json"):
        return last_heartbeats(settings, prefix, snapshot)
    return {}


def _table(shown: Sequence[Shown], args: argparse.Namespace, now_ms: int) -> str:
    if args.action == "describe" and args.members:
        return members_table(shown, now_ms, args.verbose)
    if args.action == "describe" and args.tasks:
        return tasks_table(shown, args.verbose)
    if args.action == "describe":
        return state_table(shown, now_ms, args.verbose, cause=True)
    return state_table(shown, now_ms)


def _waits(shown: Sequence[Shown], debts: Debts, now_ms: int) -> list[str]:
    """A paragraph for each group with waiting tasks: what they wait for, and which member."""
    told = []
    for snapshot in (each.snapshot for each in shown):
        lines = [holdup.text(now_ms) for holdup in debts.holdups(snapshot)]
        lines += waits_text(snapshot).splitlines()
        told += ["\n".join([f"\n{snapshot.group}:", *lines])] if lines else []
    return told


def quarantines(shown: Sequence[Shown], now_ms: int) -> list[str]:
    """A paragraph for each group that is quarantined."""
    return [
        "\n" + quarantine_text(each.snapshot.group, quarantine, now_ms)
        for each in shown
        if (quarantine := each.snapshot.quarantine) is not None
    ]


def drains(shown: Sequence[Shown], now_ms: int) -> list[str]:
    """A paragraph for each group with drains of members that are gone or were expelled."""
    told = []
    for snapshot in (each.snapshot for each in shown):
        lines = drains_text(snapshot, now_ms)
        told += ["\n".join([f"\n{snapshot.group}:", *lines])] if lines else []
    return told


def state_table(
    shown: Sequence[Shown], now_ms: int, verbose: bool = False, cause: bool = False
) -> str:
    """One row per group."""
    columns = (*STATE, *(STATE_VERBOSE if verbose else ()), *(("CAUSE",) if cause else ()))
    rows = []
    for s in (each.snapshot for each in shown):
        tasks = sum(unit.size for unit in s.tasks)
        state = s.state.value + (" (quarantined)" if s.quarantine is not None else "")
        row: list[object] = [s.group, s.assignor, state, s.generation, len(s.members)]
        if verbose:
            row += [tasks, s.target_generation, s.coordinator_epoch, ago(now_ms, s.clock_ms)]
        else:
            row.append(tasks)
        rows.append([*row, *([s.cause] if cause else [])])
    return table(columns, rows)


def members_table(shown: Sequence[Shown], now_ms: int, verbose: bool = False) -> str:
    """One row per member."""
    rows = []
    for each in shown:
        for m in sorted(each.snapshot.members, key=lambda m: m.id):
            sets = (each.active(m), each.standby(m), each.learner(m))
            row: list[object] = [each.snapshot.group, m.id, m.instance_id, m.rack, m.capacity]
            heard = _heard_text(each, each.heard.get(m.id), now_ms)
            row += [m.epoch, each.state(m), *map(len, sets), heard]
            if verbose:
                row += [m.draining, *(compact(tasks) for tasks in (*sets, each.revoking(m)))]
            rows.append(row)
    return table((*MEMBERS, *(MEMBERS_VERBOSE if verbose else ())), rows)


def _heard_text(each: Shown, heard_ms: int | None, now_ms: int) -> str | None:
    """How long ago a member was heard; after two heartbeat intervals, how long it is silent."""
    if heard_ms is None:
        return None
    patience_ms = 2 * each.snapshot.settings.heartbeat_interval_ms
    is_silent = now_ms - heard_ms > patience_ms
    return f"silent {span(now_ms - heard_ms)}" if is_silent else ago(now_ms, heard_ms)


def tasks_table(shown: Sequence[Shown], verbose: bool = False, only: str | None = None) -> str:
    """Per task one row for its active, then one per copy; `only`: the rows of this task."""
    rows = [row for each in shown for row in _task_rows(each, verbose) if only in (None, row[1])]
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
            row = [s.group, str(each.table.task(t)), str(role), member.get(slot), state]
            if verbose:
                row += [None, None, lag.get((t, slot))]
            keyed.append(((t, role, member.get(slot, "")), row))
    return [row for _, row in sorted(keyed, key=lambda pair: pair[0])]
