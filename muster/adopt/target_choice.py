"""Finds the target of a governed group: the coordinator's, or the governor's own. Pure.

`target_of` reads the coordinator's decision from the group's newest snapshot, if that snapshot has
the present members and tasks. While the coordinator is away, `LocalDecisions` calls the group's
assignor in the governor, so that the group does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from muster.assignor import registry
from muster.assignor.errors import AssignorError, UnknownAssignor
from muster.assignor.model import GroupView
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


class LocalDecisions:
    """The decisions of the governor itself while the coordinator is away.

    Each is made from the coordinator's newest snapshot. The work of a lost Connect worker waits for
    its return as it does at the coordinator, and no longer than
    `scheduled.rebalance.max.delay.ms` after the first of these decisions. A wait that the
    coordinator began ends when the coordinator would have ended it. The time of that is counted
    from when the governor read the snapshot, so it is never too early.

    Times are of the governor's clock, in ms. `patience_ms`: how long the coordinator may take for a
    decision after such a wait.
    """

    def __init__(self, patience_ms: int = 0) -> None:
        self._patience_ms = patience_ms
        self._since_ms: int | None = None  # when the first of them was made
        self._newest_ms: int | None = None  # when the newest one was made
        self._until_ms: int | None = None  # until when the newest one lets lost work wait
        self._read_ms: int | None = None  # when the coordinator's newest snapshot was read
        self._holds_until_ms: int | None = None  # until when its decision holds; None = always

    def read(self, snapshot: GroupSnapshot, now_ms: int) -> None:
        """Note what the coordinator has decided."""
        self._since_ms = self._newest_ms = self._until_ms = self._holds_until_ms = None
        self._read_ms = now_ms
        if snapshot.delay_until_ms is not None and (snapshot.target == NO_MEMBER).any():
            rest_ms = max(snapshot.delay_until_ms - snapshot.clock_ms, 0)
            self._holds_until_ms = now_ms + rest_ms + self._patience_ms

    def replaces_coordinator(self, now_ms: int) -> bool:
        """Whether lost work has waited as the coordinator wanted, and no newer decision came."""
        return self._holds_until_ms is not None and now_ms >= self._holds_until_ms

    def is_first_due(self, now_ms: int) -> bool:
        """Whether the governor is to decide for the first time in place of the coordinator."""
        is_decided = self._newest_ms is not None and self.replaces_coordinator(self._newest_ms)
        return self.replaces_coordinator(now_ms) and not is_decided

    def is_due(self, now_ms: int) -> bool:
        """Whether lost work has waited long enough, so that the governor decides again."""
        return self._until_ms is not None and now_ms >= self._until_ms

    def decide(
        self,
        snapshot: GroupSnapshot | None,
        config: GroupConfig,
        joins: Sequence[Join],
        holds: Mapping[str, TaskSet],
        now_ms: int,
    ) -> dict[str, TaskSet]:
        """Member → tasks it is to have, as the group's assignor decides in this process.

        In place of a plug-in assignor, `sticky` decides. Each present member has a join in `joins`.
        `now_ms` is the time on the governor's clock.
        """
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        self._newest_ms = now_ms
        read_ms = self._since_ms if self._read_ms is None else self._read_ms
        waited_ms, passed_ms = now_ms - self._since_ms, now_ms - read_ms
        view = _view_here(snapshot, config, joins, holds, waited_ms, passed_ms)
        try:
            placement = registry.get(config.assignor).assign(view)
        except (AssignorError, UnknownAssignor, ValueError):
            placement = registry.get("sticky").assign(view)
        waits = placement.delay_ms > 0 and bool((placement.active == NO_MEMBER).any())
        self._until_ms = now_ms + placement.delay_ms if waits else None
        return _by_member(view.tasks, placement.active, dict(enumerate(view.members)))


def _view_here(
    snapshot: GroupSnapshot | None,
    config: GroupConfig,
    joins: Sequence[Join],
    holds: Mapping[str, TaskSet],
    waited_ms: int,
    passed_ms: int,
) -> GroupView:
    """The group as its assignor sees it `passed_ms` after the snapshot.

    Work that was lost since then may have waited for `waited_ms`.
    """
    record = snapshot if snapshot is not None else Group.new(config.group).snapshot()
    # Every member leaves and joins again with what it runs: the snapshot may be out of date.
    # A group that has kept a member was never without one: it remembers for whom lost work waits.
    stays = not {m.id for m in record.members}.isdisjoint(join.member for join in joins)
    leaves = [
        Leave(group=config.group, member=m.id, incarnation=m.incarnation) for m in record.members
    ]
    rejoins = [
        replace(join, holding=Holding(active=holds.get(join.member, EMPTY))) for join in joins
    ]
    view = preview(record, [*leaves, config, *rejoins], keeps_rounds=stays).view
    rest_ms = max(view.settings.scheduled_rebalance_max_delay_ms - waited_ms, 0)
    settings = replace(view.settings, scheduled_rebalance_max_delay_ms=rest_ms)
    return replace(view, settings=settings, now_ms=view.now_ms + passed_ms)


def _by_member(table: TaskTable, owner: IntArray, names: Mapping[int, str]) -> dict[str, TaskSet]:
    return {
        name: table.set_of(np.flatnonzero(owner == number).astype(np.int32))
        for number, name in names.items()
    }
