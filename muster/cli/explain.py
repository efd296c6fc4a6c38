"""Say why tasks are where they are: the cause of each generation, the reason of each move.

Without --history it shows only the newest generation. --task shows where the task is, and the
generation that put it there, however old. --member shows only the moves from or to that member.
With --history these two show only the generations that concern the task or the member.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from muster.cli.options import add_format, add_kafka, group_id, kafka_settings
from muster.errors import NotFound
from muster.kafka.client_settings import ClientSettings
from muster.output import json_line, wall_ms
from muster.protocol.records import GroupSnapshot, GroupState, Move
from muster.protocol.tasks import TaskTable
from muster.protocol.unknown_names import no_tasks_beside, there_are
from muster.published.existing_group import missing
from muster.published.generations import (
    Generation,
    generation_json,
    generation_text,
    generations,
    placements,
)
from muster.published.holdups import PendingReleases, waits_text
from muster.published.snapshots import (
    Published,
    Shown,
    configured,
    history,
    refuses_events,
)
from muster.published.tables import tasks_table
from muster.published.unapplied_configs import unapplied


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
    published = generations(records)
    now_ms = wall_ms()
    if not published:
        raise missing(settings, prefix, args.group)
    newest = published[-1].snapshot
    try:
        _refuse_unknown(published, args)
    except NotFound as error:
        why = (str(error), *_not_followed(settings, prefix, newest, now_ms))
        raise NotFound(". ".join(why)) from None
    chosen = _chosen(published, args)
    if args.format == "json":
        for each in chosen:
            print(json_line(generation_json(each.snapshot, _moves(each, args), each.at_ms)))
        return 0
    if args.task is not None and not args.history:
        print(_place_text(newest, args.task, chosen, published[0]), end="\n\n")
    for each in chosen:
        print(generation_text(each.snapshot, _moves(each, args), each.at_ms))
    for line in _not_followed(settings, prefix, newest, now_ms):
        print(line)
    for line in _open_ends(settings, prefix, records, newest):
        print(line)
    return 0


def _refuse_unknown(published: Sequence[Generation], args: argparse.Namespace) -> None:
    """Refuse a task or member that the group does not have.

    Raises:
        NotFound: no such task, or no such member; with --history a former member is accepted.
    """
    newest = published[-1].snapshot
    if args.task is not None and TaskTable(newest.tasks).index(args.task) is None:
        units = [f"{unit.name} ({unit.size} tasks)" for unit in newest.tasks]
        raise NotFound(
            f"no task {args.task!r} in group {newest.group!r}; it has: "
            f"{there_are(args.task, units)}"
        )
    member_ids = {str(m.id) for m in newest.members}
    if args.member is None or args.member in member_ids:
        return
    known = any(_touches(each, args.member) for each in published)
    if not (known and args.history):
        hint = "; it was a member earlier: see --history" if known else ""
        raise NotFound(
            f"no member {args.member!r} in group {newest.group!r}; there are: "
            f"{there_are(args.member, member_ids)}{hint}"
        )


def _chosen(published: Sequence[Generation], args: argparse.Namespace) -> Sequence[Generation]:
    """The generations to show, oldest first."""
    if args.history:
        return [
            each
            for each in published
            if (args.task is None or _moves(each, args))
            and (args.member is None or _touches(each, args.member))
        ]
    return published[-1:] if args.task is None else placements(published, args.task)


def _moves(each: Generation, args: argparse.Namespace) -> list[Move]:
    return [m for m in each.snapshot.moves if _wanted(m, args.task, args.member)]


def _touches(each: Generation, member: str) -> bool:
    """Whether a generation moved a task from or to, gained, lost, or names (cause) the member."""
    member_ids = {str(m.id) for m in each.snapshot.members}
    moved = any(_wanted(move, None, member) for move in each.snapshot.moves)
    cause = f" {each.snapshot.cause} ".replace(",", " ").replace(";", " ")
    return (
        moved or (member in member_ids) != (member in each.members_before) or f" {member} " in cause
    )


def _place_text(
    newest: GroupSnapshot, task: str, chosen: Sequence[Generation], oldest: Generation
) -> str:
    """Where a task and its copies are now; without a known move, since when at least."""
    text = tasks_table([Shown(newest, {})], only=task)
    if chosen:
        return text
    return (
        f"{text}\nit has been there since before generation {oldest.snapshot.generation}, the "
        "oldest that the topic still holds"
    )


def _not_followed(
    settings: ClientSettings, prefix: str, newest: GroupSnapshot, now_ms: int
) -> list[str]:
    """Why the group does not follow its newest configuration, if it does not."""
    found = unapplied(settings, prefix, [newest.group], {newest.group: newest}, now_ms)
    return [config.text(now_ms) for config in found.values()]


def _open_ends(
    settings: ClientSettings, prefix: str, records: Sequence[Published], newest: GroupSnapshot
) -> list[str]:
    """What the group waits for, one line each, and advice if it is quarantined or has no tasks."""
    if quarantined := refuses_events(newest):
        return [quarantined]  # the coordinator fences no member meanwhile, and grants nothing
    pending = PendingReleases()
    for published in records:
        pending.take(published)
    now_ms = wall_ms()
    lines = [holdup.text(now_ms) for holdup in pending.holdups(newest)]
    lines += waits_text(newest).splitlines()
    if newest.state is GroupState.NOT_READY:
        lines.append(no_tasks_beside(newest.group, configured(settings, prefix)))
    return lines


def _wanted(move: Move, task: str | None, member: str | None) -> bool:
    fits_task = task is None or move.task == task
    return fits_task and (member is None or member in (move.from_member, move.to_member))
