"""Groups, members and tasks as tables, and a group as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from muster.output import ago, table
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot, MemberEntry
from muster.protocol.snapshot import GroupOutline, outline_of
from muster.published.copies import CopyState, copies_of
from muster.published.holdups import waits_json
from muster.published.members_last_heard import heard_text
from muster.published.snapshots import NO_MEMBER, Shown, compact, names

STATE = ("GROUP", "ASSIGNMENT-STRATEGY", "STATE", "GROUP-EPOCH", "#MEMBERS", "#TASKS")
STATE_VERBOSE = ("TARGET-ASSIGNMENT-EPOCH", "COORDINATOR-EPOCH", "CLOCK")
MEMBERS = (
    *("GROUP", "MEMBER-ID", "GROUP-INSTANCE-ID", "RACK", "CAPACITY", "MEMBER-EPOCH", "STATE"),
    *("#ACTIVE", "#STANDBY", "#LEARNER", "LAST-HEARTBEAT"),
)
MEMBERS_VERBOSE = ("DRAINING", "ACTIVE", "STANDBY", "LEARNER", "REVOKING")
TASKS = ("GROUP", "TASK", "ROLE", "MEMBER-ID", "STATE")
TASKS_VERBOSE = ("TARGET", "DESTINATION", "LAG")


def list_table(outlines: Iterable[GroupOutline]) -> str:
    """One row per group."""
    return table(STATE, [[*_outline_row(outline)] for outline in outlines])


def state_table(shown: Sequence[Shown], now_ms: int, verbose: bool = False) -> str:
    """One row per group, with the cause of its generation."""
    columns = (*STATE, *(STATE_VERBOSE if verbose else ()), "CAUSE")
    rows = []
    for s in (each.snapshot for each in shown):
        row = _outline_row(outline_of(s))
        if verbose:
            row += [s.target_generation, s.coordinator_epoch, ago(now_ms, s.clock_ms)]
        rows.append([*row, s.cause])
    return table(columns, rows)


def _outline_row(outline: GroupOutline) -> list[object]:
    state = outline.state.value + (" (quarantined)" if outline.is_quarantined else "")
    counts = [outline.generation, outline.members, outline.tasks]
    return [outline.group, outline.assignor, state, *counts]


def members_table(shown: Sequence[Shown], now_ms: int, verbose: bool = False) -> str:
    """One row per member."""
    rows = []
    for each in shown:
        for m in sorted(each.snapshot.members, key=lambda m: m.id):
            sets = (each.active(m), each.standby(m), each.learner(m))
            row: list[object] = [each.snapshot.group, m.id, m.instance_id, m.rack, m.capacity]
            heard = heard_text(each.snapshot, each.heard.get(m.id), now_ms)
            row += [m.epoch, each.state(m), *map(len, sets), heard]
            if verbose:
                row += [m.draining, *(compact(tasks) for tasks in (*sets, each.revoking(m)))]
            rows.append(row)
    return table((*MEMBERS, *(MEMBERS_VERBOSE if verbose else ())), rows)


def tasks_table(shown: Sequence[Shown], verbose: bool = False, only: str | None = None) -> str:
    """Per task one row for its active, then one per copy; `only`: the rows of this task."""
    rows = [row for each in shown for row in _task_rows(each, verbose) if only in (None, row[1])]
    return table((*TASKS, *(TASKS_VERBOSE if verbose else ())), rows)


def _task_rows(each: Shown, verbose: bool) -> list[list[object]]:
    s = each.snapshot
    member = {m.slot: m.id for m in s.members}
    keyed: list[tuple[tuple[int, Role, str], list[object]]] = []
    for t in range(len(each.table)):
        holder = int(s.holder[t])
        state = "unassigned" if holder == NO_MEMBER else "revoking" if s.revoking[t] else "running"
        row: list[object] = [s.group, str(each.table.task(t)), "active", member.get(holder), state]
        if verbose:
            row += [member.get(int(s.target[t])), member.get(int(s.destination[t])), None]
        keyed.append(((t, Role.ACTIVE, ""), row))
    for copy in copies_of(s):
        state = "revoking" if copy.state is CopyState.LEAVING else copy.state.name.lower()
        holder_id = member.get(copy.slot)
        row = [s.group, str(each.table.task(copy.task)), str(copy.role), holder_id, state]
        if verbose:
            row += [None, None, copy.lag]
        keyed.append(((copy.task, copy.role, holder_id or ""), row))
    return [row for _, row in sorted(keyed, key=lambda pair: pair[0])]


def group_json(shown: Shown) -> dict[str, Any]:
    """A group as an object, as `docs/cli.md` shows it."""
    s = shown.snapshot
    return {
        "group": s.group,
        "generation": s.generation,
        "state": s.state.value,
        "assignor": s.assignor,
        "cause": s.cause,
        "members": [_member_json(shown, m) for m in sorted(s.members, key=lambda m: m.id)],
        "unassigned": names(shown.unassigned),
        "waits": waits_json(s),
        "coordinator_last_seen_ms": shown.seen_ms,
        "drains": [drain._asdict() for drain in s.drains],
        "quarantine": _quarantine_json(s),
    }


def _quarantine_json(snapshot: GroupSnapshot) -> dict[str, Any] | None:
    if snapshot.quarantine is None:
        return None
    return {"since_ms": snapshot.quarantine.since_ms, "story": snapshot.quarantine.story}


def _member_json(shown: Shown, member: MemberEntry) -> dict[str, Any]:
    return {
        "id": member.id,
        "instance_id": member.instance_id,
        "epoch": member.epoch,
        "state": shown.state(member),
        "rack": member.rack,
        "capacity": member.capacity,
        "active": names(shown.active(member)),
        "standby": names(shown.standby(member)),
        "learner": names(shown.learner(member)),
        "revoking": names(shown.revoking(member)),
        "last_heartbeat_ms": shown.heard.get(member.id),
    }
