"""Figures of a group's placement: tasks and load of each member, balance, reads across racks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.discovery.measured_traffic import Load, Measure
from muster.protocol.ids import parse_task
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import Connector, Subtopology, TaskTable
from muster.shadow.group_reader import ShadowedGroup

Placement = Mapping[str, list[str]]
"""Member → printed ids of the tasks it runs."""


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """The figures of one member.

    Attributes:
        tasks: number of tasks.
        loads: measure → sum over them; a measure that is not known is missing.
        cross_rack: partitions that have no replica in its rack; None = unknown.
    """

    tasks: int
    loads: Mapping[Measure, float]
    cross_rack: int | None


@dataclass(frozen=True, slots=True)
class PlacementFigures:
    """The figures of a placement.

    Attributes:
        members: by name.
        balance: ``tasks`` or measure → the largest value of a member, divided by the fair share;
            1 = perfectly even. A measure that is 0 everywhere is missing.
        cross_rack: sum over the members; None = unknown.
        unowned: tasks that no member has.
    """

    members: Mapping[str, MemberFigures]
    balance: Mapping[str, float]
    cross_rack: int | None
    unowned: int

    def as_json(self) -> dict[str, Any]:
        """The figures as one object."""
        return {
            "balance": dict(self.balance),
            "cross_rack": self.cross_rack,
            "unowned": self.unowned,
        }


def present(group: GroupSnapshot) -> Placement:
    """The placement of a snapshot."""
    table = TaskTable(group.tasks)
    owned: dict[str, list[str]] = {member.id: [] for member in group.members}
    by_slot = {member.slot: member.id for member in group.members}
    for index, slot in enumerate(group.holder.tolist()):
        if slot in by_slot:
            owned[by_slot[slot]].append(str(table.task(index)))
    return owned


def owners_of(group: GroupSnapshot) -> dict[str, str]:
    """Printed id of each task → the member that runs it."""
    return {task: member for member, tasks in present(group).items() for task in tasks}


def figures_of(
    shadowed: ShadowedGroup, group: GroupSnapshot, placement: Placement
) -> PlacementFigures:
    """Compute the figures of a placement of the group's tasks."""
    racks: dict[str, str | None] = {member.id: member.rack for member in group.members}
    plain = {unit.name: unit for unit in group.tasks if isinstance(unit, Subtopology)}
    rows = {
        name: _member_figures(shadowed, plain, racks.get(name), tasks)
        for name, tasks in sorted(placement.items())
    }
    total = sum(unit.size for unit in group.tasks)
    crossings = [row.cross_rack for row in rows.values()]
    known = [each for each in crossings if each is not None]
    return PlacementFigures(
        members=rows,
        balance=_balance(rows),
        cross_rack=sum(known) if known else None,
        unowned=total - sum(row.tasks for row in rows.values()),
    )


def _member_figures(
    shadowed: ShadowedGroup, plain: Mapping[str, Subtopology], rack: str | None, tasks: list[str]
) -> MemberFigures:
    loads: dict[Measure, float] = {}
    crossing, known = 0, False
    for text in tasks:
        task = parse_task(text)
        load: Load | None = shadowed.loads.get((task.unit, task.number))
        for measure in Measure:
            value = None if load is None else load.by(measure)
            if value is not None:
                loads[measure] = loads.get(measure, 0) + value
        unit = plain.get(task.unit)
        racks = None if unit is None else unit.source_racks
        if racks is not None and rack is not None:
            known = True
            crossing += sum(rack not in replicas for replicas in racks[task.number])
    return MemberFigures(len(tasks), loads, crossing if known or (rack and not tasks) else None)


def _balance(rows: Mapping[str, MemberFigures]) -> dict[str, float]:
    if not rows:
        return {}
    columns: dict[str, list[float]] = {"tasks": [row.tasks for row in rows.values()]}
    for measure in Measure:
        if any(measure in row.loads for row in rows.values()):
            columns[str(measure)] = [row.loads.get(measure, 0) for row in rows.values()]
    return {
        name: round(max(values) * len(values) / sum(values), 2)
        for name, values in columns.items()
        if sum(values) > 0
    }


def task_word(group: GroupSnapshot) -> str:
    """The word for the group's tasks in tables: tasks of Connect, else partitions."""
    return "tasks" if any(isinstance(unit, Connector) for unit in group.tasks) else "partitions"
