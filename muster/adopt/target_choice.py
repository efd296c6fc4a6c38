"""Finds the target of a governed group: the coordinator's, or the governor's own. Pure.

`target_of` reads the coordinator's decision from the group's newest snapshot, if that snapshot has
the present members and tasks. While the coordinator is away, `decided_here` calls the group's
assignor in the governor, so that the group does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from muster.assignor import registry
from muster.assignor.errors import AssignorError, UnknownAssignor
from muster.protocol.digest import Holding
from muster.protocol.events import GroupConfig, Join, Leave
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import EMPTY, IntArray, TaskSet, TaskTable
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
        snapshot: the group's newest snapshot.
        members: name → incarnation of the present members.
        config: the group's newest configuration.
        holds: member → tasks it runs. A decision counts only if the coordinator knows which tasks
            these members have stopped: Connect's assignors continue from there. None = every
            decision counts.
    """
    if snapshot is None or snapshot.quarantine is not None or snapshot.recovering:
        return None
    present = {m.id: m for m in snapshot.members if not m.away}
    known = {name: entry.incarnation for name, entry in present.items()}
    if known != dict(members) or snapshot.target_generation != snapshot.generation:
        return None
    table = TaskTable(snapshot.tasks)
    if table != TaskTable(config.tasks):
        return None
    slots = {entry.slot: name for name, entry in present.items()}
    if holds is not None:
        owed = _by_member(table, np.where(snapshot.revoking, snapshot.holder, NO_MEMBER), slots)
        if any(tasks - holds.get(name, tasks) for name, tasks in owed.items()):
            return None
    return _by_member(table, snapshot.target, slots)


def decided_here(
    snapshot: GroupSnapshot | None,
    config: GroupConfig,
    joins: Sequence[Join],
    holds: Mapping[str, TaskSet],
) -> dict[str, TaskSet]:
    """Member → tasks it is to have, as the group's assignor decides in this process.

    In place of a plug-in assignor, `sticky` decides. Each present member has a join in `joins`.
    """
    record = snapshot if snapshot is not None else Group.new(config.group).snapshot()
    # Every member leaves and joins again with what it runs: the snapshot may be out of date.
    leaves = [
        Leave(group=config.group, member=m.id, incarnation=m.incarnation) for m in record.members
    ]
    rejoins = [
        replace(join, holding=Holding(active=holds.get(join.member, EMPTY))) for join in joins
    ]
    view = preview(record, [*leaves, config, *rejoins]).view
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
