"""A frame is one record of a group as the page draws it; a delta says what differs between two.

Both are JSON of the same shape, which `static/state.js` applies:

======== ==========================================================================================
head     fields of the group, each replaced when it differs
members  slot → row (`MEMBER`), null = gone
tasks    rows [task index, holder, target, destination, revoking]; slots, -1 = no member
copies   "task:slot" → [role, state (`CopyState`), lag, fill], null = gone
======== ==========================================================================================

A whole frame begins with ``"whole": true`` and replaces all that the page has. Names come from
members and may be hostile: this module cuts and escapes them, and the page writes them as text. It
cuts no id of a member, a unit or a task: pages tell them apart by it and ask for them by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.console.history import History, Moment
from muster.protocol.client_tags import GOVERNED
from muster.protocol.ids import MEMBER_ID_CHARS_MAX, UNIT_CHARS_MAX, Role
from muster.protocol.records import GroupSnapshot, MemberEntry, MemberState
from muster.protocol.tasks import Connector, IntArray, TaskTable
from muster.published.copies import CopyState, copies_of
from muster.state.printable import cut

Json: TypeAlias = dict[str, Any]
NAME_CHARS_MAX = MEMBER_ID_CHARS_MAX
CAUSE_CHARS_MAX = 400
TASK_CHARS_MAX = UNIT_CHARS_MAX + 20
"""The longest name of a unit, and the number of a task behind it."""
CACHED_CHARS_MAX = 512
"""Longer texts are not kept: a decoded dead letter may have a million characters."""
MEMBER = (
    *("id", "rack", "capacity", "state", "draining", "away", "instance", "epoch", "joined_ms"),
)
"""The columns of a member's row."""


def text(value: str | None, chars_max: int = NAME_CHARS_MAX) -> str:
    """A name that a member or operator chose, cut and escaped."""
    if value is None:
        return ""
    return _name(value, chars_max) if len(value) <= CACHED_CHARS_MAX else cut(value, chars_max)


_name = lru_cache(maxsize=65_536)(cut)
"""Names come again and again, with each frame."""


def task_text(name: str) -> str:
    """The id of a task, or the name of a unit, escaped."""
    return text(name, TASK_CHARS_MAX)


@dataclass(frozen=True)
class Frame:
    """One record of a group, ready to be drawn.

    Attributes:
        head: fields of the group.
        rows: int32[T, 4]: holder, target, destination, revoking.
        members: slot → row.
        copies: (task, slot) → [role, state, lag, fill].
    """

    head: Json
    rows: IntArray
    members: dict[int, list[Any]]
    copies: dict[tuple[int, int], list[Any]]

    @cached_property
    def whole(self) -> Json:
        """The whole frame as JSON."""
        numbered = np.column_stack((np.arange(len(self.rows), dtype=np.int32), self.rows))
        return {
            "whole": True,
            "head": self.head,
            "members": {str(slot): row for slot, row in self.members.items()},
            "tasks": numbered.tolist(),
            "copies": {f"{t}:{slot}": row for (t, slot), row in self.copies.items()},
        }


def frame(history: History, moment: Moment, snapshot: GroupSnapshot) -> Frame:
    """The frame of one moment of a group; `snapshot` is its record, decoded."""
    return frame_of(
        snapshot,
        moment.at_ms,
        history.peaks,
        number=moment.number,
        is_shadowed=history.is_shadowed,
    )


def frame_of(
    snapshot: GroupSnapshot,
    at_ms: int,
    peaks: dict[tuple[int, int], int],
    *,
    number: int = -1,
    is_shadowed: bool = False,
) -> Frame:
    """The frame of a record.

    Args:
        snapshot: the record.
        at_ms: when it was written, epoch milliseconds.
        peaks: (task, slot) → largest lag of its learner; the drawn progress is relative to it.
        number: number of the moment; -1 = the record is no moment of a history.
        is_shadowed: Kafka coordinates the group.
    """
    s = snapshot
    rows = np.column_stack((s.holder, s.target, s.destination, s.revoking.astype(np.int32))).astype(
        np.int32
    )
    head = {
        "group": text(s.group),
        "number": number,
        "at_ms": at_ms,
        "generation": s.generation,
        "state": s.state.value,
        "assignor": text(s.assignor),
        "cause": text(s.cause, CAUSE_CHARS_MAX),
        "quarantined": s.quarantine is not None,
        "kind": kind_of(s, is_shadowed=is_shadowed),
        "units": units_of(s),
    }
    members = {m.slot: member_row(m) for m in s.members}
    return Frame(head, rows, members, _copies(s, peaks))


def kind_of(snapshot: GroupSnapshot, *, is_shadowed: bool = False) -> str:
    """What coordinates a group.

    ``native``: muster. ``governed``: Kafka, with `muster adopt` as the group's leader; its members
    have the tag `GOVERNED`. ``shadowed``: Kafka; muster only reads the group (`kafka_groups.py`).
    """
    if is_shadowed:
        return "shadowed"
    is_governed = any(GOVERNED in member.tags for member in snapshot.members)
    return "governed" if is_governed else "native"


def units_of(snapshot: GroupSnapshot) -> list[list[Any]]:
    """[name, tasks, is connector, weight, is stateful, weight of the connector] of each unit."""
    return [
        [task_text(u.name), u.tasks, True, u.weight, False, u.connector_weight]
        if isinstance(u, Connector)
        else [task_text(u.name), u.partitions, False, u.weight, u.stateful, 0]
        for u in TaskTable(snapshot.tasks).units
    ]


def member_row(member: MemberEntry) -> list[Any]:
    """A member as a row with the columns `MEMBER`."""
    state = "" if member.state is MemberState.STABLE else member.state.value
    return [
        text(member.id),
        text(member.rack),
        member.capacity,
        state,
        int(member.draining),
        int(member.away),
        text(member.instance_id),
        member.epoch,
        member.joined_ms,
    ]


def _copies(
    s: GroupSnapshot, peaks: dict[tuple[int, int], int]
) -> dict[tuple[int, int], list[Any]]:
    copies: dict[tuple[int, int], list[Any]] = {}
    for role, task, slot, state, lag in copies_of(s):
        fill = _fill(state, lag, peaks.get((task, slot))) if role is Role.LEARNER else None
        copies[task, slot] = [int(role), int(state), lag, fill]
    return copies


def _fill(state: CopyState, lag: int | None, peak: int | None) -> float | None:
    """How much of its first lag a learner has read, 0 to 1; None = it has reported no lag."""
    if state is CopyState.READY or lag == 0:
        return 1.0
    if lag is None or not peak:
        return None
    return round(max(1 - lag / peak, 0.0), 3)


def delta(old: Frame | None, new: Frame) -> Json:
    """What differs, in the shape of a frame; the whole frame if the group's units differ."""
    if old is None or old.head["units"] != new.head["units"]:
        return new.whole
    changed: Json = {}
    head = differing(old.head, new.head)
    if head:
        changed["head"] = head
    members = differing(old.members, new.members)
    if members:
        changed["members"] = {str(slot): row for slot, row in members.items()}
    differ: NDArray[np.bool_] = (old.rows != new.rows).any(axis=1)
    if differ.any():
        places = np.flatnonzero(differ).astype(np.int32)
        changed["tasks"] = np.column_stack((places, new.rows[places])).tolist()
    copies = differing(old.copies, new.copies)
    if copies:
        changed["copies"] = {f"{t}:{slot}": row for (t, slot), row in copies.items()}
    return changed


def differing(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    """Entries of `new` that differ from `old`'s, and None for those that are gone."""
    gone = dict.fromkeys(old.keys() - new.keys())
    return gone | {key: value for key, value in new.items() if old.get(key) != value}
