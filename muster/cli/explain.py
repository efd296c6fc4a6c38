"""Say why tasks are where they are: the cause of each generation, the reason of each move.

Reads what the coordinator published; without --history only the newest generation. --task and
--member narrow the moves down.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

from muster.cli.options import add_format, add_kafka, group_id, kafka_settings
from muster.cli.snapshots import Published, history, no_group, waits_json, waits_text
from muster.cli.table import json_line, table
from muster.protocol.records import GroupSnapshot, Move


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", type=group_id, required=True, metavar="G", help="which group")
    parser.add_argument("--task", metavar="T", help="only moves of this task, e.g. 0_3 or c1-0")
    parser.add_argument("--member", metavar="ID", help="only moves from or to this member")
    parser.add_argument(
        "--history",
        action="store_true",
        help="every generation the topic still holds (compaction drops old ones in time)",
    )
    add_format(parser)
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Print the generations asked for."""
    generations = _generations(list(history(kafka_settings(args), args.topic_prefix, args.group)))
    if not generations:
        raise no_group(args.group, args.topic_prefix)
    for at_ms, snapshot in generations if args.history else generations[-1:]:
        moves = [m for m in snapshot.moves if _wanted(m, args.task, args.member)]
        if args.format == "json":
            print(json_line(generation_json(snapshot, moves, at_ms)))
        else:
            print(generation_text(snapshot, moves, at_ms))
    if args.format != "json" and (waiting := waits_text(generations[-1][1])):
        print(waiting)
    return 0


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
    """One move as an object, as in `formats.md` section 1."""
    return {
        "task": move.task,
        "role": move.role.name.lower(),
        "from": move.from_member,
        "to": move.to_member,
        "reason": move.reason,
    }


def generation_text(snapshot: GroupSnapshot, moves: Sequence[Move], at_ms: int) -> str:
    """One generation as a heading and a table."""
    when = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    heading = f"generation {snapshot.generation}, {when}: {snapshot.cause or 'no cause given'}"
    rows = [(m.task, m.role.name.lower(), m.from_member, m.to_member, m.reason) for m in moves]
    body = table(("TASK", "ROLE", "FROM", "TO", "REASON"), rows) if rows else "no task moves"
    return f"{heading}\n{body}\n"


def _generations(records: Sequence[Published]) -> list[tuple[int, GroupSnapshot]]:
    """When each generation began, and its newest record; oldest generation first."""
    found: dict[int, tuple[int, GroupSnapshot]] = {}
    for published in records:
        record = published.record
        if isinstance(record, GroupSnapshot):
            began_ms, _ = found.get(record.generation, (published.at_ms, None))
            found[record.generation] = (began_ms, record)
        else:
            found.clear()  # deleted; what follows is a new group of that name
    return [found[number] for number in sorted(found)]


def _wanted(move: Move, task: str | None, member: str | None) -> bool:
    fits_task = task is None or move.task == task
    return fits_task and (member is None or member in (move.from_member, move.to_member))
