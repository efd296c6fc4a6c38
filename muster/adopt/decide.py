"""What the coordinator has decided for the present members; and what to do while it is away. Pure.

`target_of` reads the decision from the group's newest published record, if that record knows the
members and tasks that there are now. `decided_here` asks the same assignor, from the last known
record: a group never waits for a coordinator that is away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from muster.assignor import registry
from muster.assignor.errors import AssignorError, UnknownAssignor
from muster.protocol.digest import Holding
from muster.protocol.events import GroupConfig, Join, Leave
from muster.protocol.ids import Task
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import EMPTY, IntArray, TaskSet, TaskTable, Unit
from muster.state.group import Group
from muster.state.preview import preview

NO_MEMBER = -1


def target_of(
    snapshot: GroupSnapshot | None,
    members: Mapping[str, int],
    config: GroupConfig,
    holds: Mapping[str, TaskSet] | None,
) -> dict[str, TaskSet] | None:
    """Member → tasks it is to have, as the coordinator decided; None = it has not decided yet.

    Args:
        snapshot: the group's newest record.
        members: name → incarnation of the present members.
        config: the group's newest configuration.
        holds: what the members run. A decision then counts only if it knows what they have
            stopped: the rounds of Connect's assignors go on from there. None = it always counts.
    """
    if snapshot is None or snapshot.quarantine is not None or snapshot.recovering:
        return None
    there = {m.id: m for m in snapshot.members if not m.away}
    known = {name: entry.incarnation for name, entry in there.items()}
    if known != dict(members) or snapshot.target_generation != snapshot.generation:
        return None
    table = TaskTable(snapshot.tasks)
    if table != TaskTable(config.tasks):
        return None
    for name, entry in there.items() if holds is not None else ():
        owed = table.set_of(
            np.flatnonzero(snapshot.revoking & (snapshot.holder == entry.slot)).astype(np.int32)
        )
        if holds is not None and owed - holds.get(name, owed):
            return None
    slots = {entry.slot: name for name, entry in there.items()}
    return _by_member(table, snapshot.target, slots)


def decided_here(
    snapshot: GroupSnapshot | None,
    config: GroupConfig,
    joins: Sequence[Join],
    holds: Mapping[str, TaskSet],
) -> dict[str, TaskSet]:
    """Member → tasks it is to have, as the group's assignor decides here and now.

    A plug-in assignor is not run here: `sticky` stands in for it.

    Args:
        snapshot: the group's newest record; None = it has none.
        config: the group's newest configuration.
        joins: what the present members say of themselves.
        holds: what they run.
    """
    record = snapshot if snapshot is not None else Group.new(config.group).snapshot()
    # Everybody leaves and joins again with what it runs: the record may know that only in part.
    leaves = [
        Leave(group=config.group, member=m.id, incarnation=m.incarnation) for m in record.members
    ]
    said = [replace(join, holding=Holding(active=holds.get(join.member, EMPTY))) for join in joins]
    view = preview(record, [*leaves, config, *said]).view
    try:
        placement = registry.get(config.assignor).assign(view)
    except (AssignorError, UnknownAssignor, ValueError):
        placement = registry.get("sticky").assign(view)
    return _by_member(view.tasks, placement.active, dict(enumerate(view.members)))


def _by_member(table: TaskTable, owner: IntArray, names: Mapping[int, str]) -> dict[str, TaskSet]:
    return {
        name: table.set_of(np.flatnonzero(owner == number).astype(np.int32))
        for number, name in names.items()
    }


def unplaced(table: TaskTable, target: Mapping[str, TaskSet]) -> list[Task]:
    """Tasks that no member is to have."""
    placed = {task for tasks in target.values() for task in tasks}
    return [task for task in map(table.task, range(len(table))) if task not in placed]


def weighed(unit: Unit, weights: Mapping[str, float], old: Unit | None) -> Unit:
    """The unit with the weight that the options or the configuration before give it."""
    weight = weights.get(unit.name, old.weight if old is not None else None)
    return unit if weight is None else replace(unit, weight=weight)
