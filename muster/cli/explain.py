"""Say why tasks are where they are: the cause of each generation, the reason of each move.

Without --history it shows only the newest generation. --task shows where the task is, and the
generation that put it there, however old. --member shows only the moves from or to that member.
With --history these two show only the generations that concern the task or the member.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from muster.cli.ages import wall_ms
from muster.cli.errors import NotFound
from muster.cli.groups import tasks_table
from muster.cli.holdups import Debts
from muster.cli.options import add_format, add_kafka, group_id, kafka_settings
from muster.cli.snapshots import (
    Published,
    Shown,
    configured,
    history,
    no_group,
    waits_json,
    waits_text,
)
from muster.cli.table import json_line, table
from muster.kafka.settings import ClientSettings
from muster.protocol.ids import Role
from muster.protocol.misspelt import no_tasks_beside, there_are
from muster.protocol.records import GroupSnapshot, GroupState, Move
from muster.protocol.tasks import TaskTable


class Generation(NamedTuple):
    """A generation: its start (epoch ms), its newest record, and the members before it."""

    at_ms: int
    snapshot: GroupSnapshot
    members_before: frozenset[str]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    parser.add_argument(
        "--task", metavar="T", help="why this task is where it is, e.g. 0_3 or c1-0"
    )
    parser.add_argument("--member", metavar="ID", help="only moves from or to this member")
    parser.add_argument(
        "--history",
        action="store_true",
        help="every generation the topic still holds (compaction drops old ones in time); with "
        "--task or --member those that touched it",
    )
    add_format(parser)
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Print the generations asked for."""
    settings, prefix = kafka_settings(args), args.topic_prefix
    records = list(history(settings, prefix, args.group))
    found = generations(records)
    if not found:
        raise no_group(settings, prefix, args.group)
    newest = found[-1].snapshot
    _refuse_unknown(found, args)
    chosen = _chosen(found, args)
    if args.format == "json":
        for each in chosen:
            print(json_line(generation_json(each.snapshot, _moves(each, args), each.at_ms)))
        return 0
    if args.task is not None and not args.history:
        print(_place_text(newest, args.task, chosen, found[0]), end="\n\n")
    for each in chosen:
        print(generation_text(each.snapshot, _moves(each, args), each.at_ms))
    for line in _open_ends(settings, prefix, records, newest):
        print(line)
    return 0


def _refuse_unknown(found: Sequence[Generation], args: argparse.Namespace) -> None:
    """Refuse a task or member that the group does not have.

    Raises:
        NotFound: no such task, or no such member; with --history a former member is accepted.
    """
    newest = found[-1].snapshot
    if args.task is not None and TaskTable(newest.tasks).index(args.task) is None:
        units = [f"{unit.name} ({unit.size} tasks)" for unit in newest.tasks]
        raise NotFound(
            f"no task {args.task!r} in group {newest.group!r}; it has: "
            f"{there_are(args.task, units)}"
        )
    there = {str(m.id) for m in newest.members}
    if args.member is None or args.member in there:
        return
    known = any(_touches(each, args.member) for each in found)
    if not (known and args.history):
        gone = "; it was one: --history says more" if known else ""
        raise NotFound(
            f"no member {args.member!r} in group {newest.group!r}; there are: "
            f"{there_are(args.member, there)}{gone}"
        )


def _chosen(found: Sequence[Generation], args: argparse.Namespace) -> Sequence[Generation]:
    """The generations to show, oldest first."""
    if args.history:
        return [
            each
            for each in found
            if (args.task is None or _moves(each, args))
            and (args.member is None or _touches(each, args.member))
        ]
    return found[-1:] if args.task is None else placements(found, args.task)


def _moves(each: Generation, args: argparse.Namespace) -> list[Move]:
    return [m for m in each.snapshot.moves if _wanted(m, args.task, args.member)]


def _touches(each: Generation, member: str) -> bool:
    """Whether a generation moved a task from or to, gained, lost, or names (cause) the member."""
    there = {str(m.id) for m in each.snapshot.members}
    moved = any(_wanted(move, None, member) for move in each.snapshot.moves)
    told = f" {each.snapshot.cause} ".replace(",", " ").replace(";", " ")
    return moved or (member in there) != (member in each.members_before) or f" {member} " in told


def placements(found: Sequence[Generation], task: str) -> list[Generation]:
    """The generations that put a task and each of its copies where they are now; oldest first."""
    newest = found[-1].snapshot
    index = TaskTable(newest.tasks).index(task)
    named = {member.slot: str(member.id) for member in newest.members}
    holders = {(Role.ACTIVE, named.get(int(newest.holder[index])))} if index is not None else set()
    for role, pairs in ((Role.STANDBY, newest.standby), (Role.LEARNER, newest.learner)):
        holders |= {(role, named.get(slot)) for t, slot in pairs.tolist() if t == index}
    chosen: set[int] = set()
    for role, member in holders:
        moved = [
            place
            for place, each in enumerate(found)
            if any(
                (m.task, m.role, m.to_member) == (task, role, member) for m in each.snapshot.moves
            )
        ]
        chosen |= set(moved[-1:])
    return [found[place] for place in sorted(chosen)]


def _place_text(
    newest: GroupSnapshot, task: str, chosen: Sequence[Generation], oldest: Generation
) -> str:
    """Where a task and its copies are now; without a known move, since when at least."""
    told = tasks_table([Shown(newest, {})], only=task)
    if chosen:
        return told
    return (
        f"{told}\nit is there since before generation {oldest.snapshot.generation}, the oldest "
        "that the topic still holds"
    )


def _open_ends(
    settings: ClientSettings, prefix: str, records: Sequence[Published], newest: GroupSnapshot
) -> list[str]:
    """What the group waits for, one line each, and advice if it has no tasks."""
    debts = Debts()
    for published in records:
        debts.take(published)
    now_ms = wall_ms()
    told = [holdup.text(now_ms) for holdup in debts.holdups(newest)]
    told += waits_text(newest).splitlines()
    if newest.state is GroupState.NOT_READY:
        told.append(no_tasks_beside(newest.group, configured(settings, prefix)))
    return told


def generation_json(
    snapshot: GroupSnapshot, moves: Sequence[Move], at_ms: int
) -> dict[str, object]:
    """One generation as an object; moves as in `muster assign`."""
    return {
        "group": snapshot.group,
        "generation": snapshot.generation,
        "at_ms": at_ms,
        "cause": snapshot.cause,
        "moves": [move_json(move) for move in moves],
        "waits": waits_json(snapshot),
    }


def move_json(move: Move) -> dict[str, object]:
    """One move as an object, as in an answer of `muster assign`."""
    return {
        "task": move.task,
        "role": str(move.role),
        "from": move.from_member,
        "to": move.to_member,
        "reason": move.reason,
    }


def generation_text(snapshot: GroupSnapshot, moves: Sequence[Move], at_ms: int) -> str:
    """One generation as a heading and a table."""
    when = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    heading = f"generation {snapshot.generation}, {when}: {snapshot.cause or 'no cause given'}"
    rows = [(m.task, str(m.role), m.from_member, m.to_member, m.reason) for m in moves]
    body = table(("TASK", "ROLE", "FROM", "TO", "REASON"), rows) if rows else "no task moves"
    return f"{heading}\n{body}\n"


def generations(records: Sequence[Published]) -> list[Generation]:
    """The group's generations, oldest first; a tombstone begins the list anew."""
    found: dict[int, Generation] = {}
    before: frozenset[str] = frozenset()
    for published in records:
        record = published.record
        if not isinstance(record, GroupSnapshot):
            found.clear()  # deleted; what follows is a new group of that name
            before = frozenset()
            continue
        known = found.get(record.generation)
        if known is None:
            earlier = found[max(found)].snapshot if found else None
            before = frozenset(str(m.id) for m in earlier.members) if earlier else frozenset()
        began_ms = published.at_ms if known is None else known.at_ms
        found[record.generation] = Generation(began_ms, record, before)
    return [found[number] for number in sorted(found)]


def _wanted(move: Move, task: str | None, member: str | None) -> bool:
    fits_task = task is None or move.task == task
    return fits_task and (member is None or member in (move.from_member, move.to_member))
