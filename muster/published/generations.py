"""A group's generations, from its published records: causes and moves, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster.output import date_of, table
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot, Move
from muster.protocol.tasks import TaskTable
from muster.published.holdups import waits_json
from muster.published.snapshots import Published


class Generation(NamedTuple):
    """A generation: its start (epoch ms), its newest record, and the members before it."""

    at_ms: int
    snapshot: GroupSnapshot
    members_before: frozenset[str]


def generations(records: Sequence[Published]) -> list[Generation]:
    """The group's generations since its last tombstone, oldest first."""
    by_number: dict[int, Generation] = {}
    before: frozenset[str] = frozenset()
    for published in records:
        record = published.record
        if not isinstance(record, GroupSnapshot):
            by_number.clear()  # deleted; what follows is a new group of that name
            before = frozenset()
            continue
        known = by_number.get(record.generation)
        if known is None:
            earlier = by_number[max(by_number)].snapshot if by_number else None
            before = frozenset(str(m.id) for m in earlier.members) if earlier else frozenset()
        began_ms = published.at_ms if known is None else known.at_ms
        by_number[record.generation] = Generation(began_ms, record, before)
    return [by_number[number] for number in sorted(by_number)]


def placements(history: Sequence[Generation], task: str) -> list[Generation]:
    """The generations that put a task and each of its copies where they are now; oldest first."""
    newest = history[-1].snapshot
    index = TaskTable(newest.tasks).index(task)
    named = {member.slot: str(member.id) for member in newest.members}
    holders = {(Role.ACTIVE, named.get(int(newest.holder[index])))} if index is not None else set()
    for role, pairs in ((Role.STANDBY, newest.standby), (Role.LEARNER, newest.learner)):
        holders |= {(role, named.get(slot)) for t, slot in pairs.tolist() if t == index}
    chosen: set[int] = set()
    for role, member in holders:
        moved = [
            place
            for place, each in enumerate(history)
            if any(
                (m.task, m.role, m.to_member) == (task, role, member) for m in each.snapshot.moves
            )
        ]
        chosen |= set(moved[-1:])
    return [history[place] for place in sorted(chosen)]


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
    when = date_of(at_ms).isoformat(timespec="milliseconds")
    heading = f"generation {snapshot.generation}, {when}: {snapshot.cause or 'no cause given'}"
    rows = [(m.task, str(m.role), m.from_member, m.to_member, m.reason) for m in moves]
    body = table(("TASK", "ROLE", "FROM", "TO", "REASON"), rows) if rows else "no task moves"
    return f"{heading}\n{body}\n"
