"""Plans a change of a live group: what it would move, why, and how good the placement would be.

`muster plan` and the console call the same function. It reads nothing and changes nothing: it takes
a group's newest record, applies the change to it as the coordinator would, and asks the assignor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from muster import plugins
from muster.assignor.check import valid
from muster.assignor.errors import UnknownAssignor, answer_of
from muster.assignor.ignored_settings import ignored_pins, ignored_settings
from muster.assignor.model import Assignor, GroupView, Placement
from muster.assignor.score import score
from muster.documents.group_config import Change, merged
from muster.documents.members import MemberRow, Names, parse_member
from muster.documents.problem import Problem, answer
from muster.documents.units import parse_tasks
from muster.errors import BadInput, NotFound
from muster.protocol.digest import Holding
from muster.protocol.events import Drain, GroupConfig, Join, Lag, Leave
from muster.protocol.ids import MemberId
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import TaskSet, TaskTable
from muster.protocol.unknown_names import there_are
from muster.published.generations import move_json
from muster.published.snapshots import refuses_events
from muster.state.preview import preview


def planned(
    snapshot: GroupSnapshot,
    *,
    add: list[dict[str, Any]] | None = None,
    remove: list[str] | None = None,
    config: Mapping[str, object] | None = None,
    assignor: str | None = None,
    tasks: object = None,
    trusts_assignor: bool = False,
    places: Sequence[str] = (),
) -> dict[str, Any]:
    """The output of `muster assign` for a live group after a change.

    Members that placements leave out are not among its ``members`` but in ``left_out``, with why.

    Args:
        snapshot: the group's newest record.
        add: members that join, as in a problem file.
        places: where each of `add` is from, for messages; empty = they have numbers.
        remove: ids of members that leave.
        config: settings that change.
        assignor: another assignor; None = the group's.
        tasks: the group's new list of tasks, as in a problem file; None = as it is.
        trusts_assignor: whether an operator typed `assignor` in a shell of this machine, so it may
            be any code; else it is loaded only if a record could name it (`plugins.from_record`).

    Raises:
        BadInput, ConfigError: the change is malformed, or a member could not join.
        NotFound: the group has no member that is to leave.
        AssignorError: the assignor has no valid answer.
    """
    there = {m.id for m in snapshot.members}
    for name in remove or []:
        if name not in there:
            raise NotFound(f"no member {name!r} in the group; there are: {there_are(name, there)}")
    old = GroupConfig(
        group=snapshot.group,
        assignor=snapshot.assignor,
        settings=snapshot.settings,
        tasks=snapshot.tasks,
    )
    units = None if tasks is None else parse_tasks(tasks)
    group = merged(snapshot.group, old, Change(assignor, config or {}, units))
    known = Names(TaskTable(group.tasks))
    rows = _rows(add or [], places, known)
    joins = [_join(snapshot, row, known) for row in rows]
    drains = [Drain(group=snapshot.group, member=MemberId(r.id)) for r in rows if r.draining]
    leaves = [
        Leave(group=snapshot.group, member=m.id, incarnation=m.incarnation)
        for m in snapshot.members
        if m.id in (remove or [])
    ]
    after = preview(snapshot, [*leaves, group, *joins, *drains])
    view = after.view
    _refuse_others(joins, {*view.members, *after.left_out} - (there - set(remove or [])))
    placer = _placer(group.assignor, is_own=trusts_assignor and assignor is not None)
    placement = _placed(view, placer, group.assignor)
    problem = Problem(assignor=group.assignor, settings=group.settings, names=known, members=())
    moves = [move_json(move) for move in after.moves(placement.reasons)]
    quarantined = refuses_events(snapshot)
    warnings = [
        *([quarantined] if quarantined else ()),
        *ignored_settings(group.assignor, group.settings, known.table),
        *ignored_pins(group.assignor, view),
        *placement.warnings,
    ]
    more = {"left_out": dict(sorted(after.left_out.items())), "warnings": warnings}
    told = {"moves": moves} | {key: value for key, value in more.items() if value}
    return answer(problem, view, placement) | told


def _rows(add: Sequence[object], places: Sequence[str], known: Names) -> list[MemberRow]:
    """The members that join, read; `places` as in `planned`."""
    places = places or [f"member {number}" for number in range(1, len(add) + 1)]
    return [parse_member(raw, known, place) for raw, place in zip(add, places, strict=True)]


def _placed(view: GroupView, placer: Assignor, name: str) -> Placement:
    """The assignor's answer, which is valid; an error names the assignor."""
    with answer_of(name):
        placement = placer.assign(view)
        valid(view, placement)
    return placement


def _refuse_others(joins: Iterable[Join], joined: Set[str]) -> None:
    """Refuse joins of members that are not among those that joined."""
    for join in joins:
        if join.member not in joined:
            raise BadInput(f"{join.member!r} cannot join: its id is in use, or the group is full")


def _placer(name: str, *, is_own: bool) -> Assignor:
    """The assignor of a plan; `is_own`: the operator named it. Otherwise a record did."""
    try:
        return plugins.get(name) if is_own else plugins.from_record(name, plugins.allowed_here())
    except (UnknownAssignor, ValueError) as error:
        raise BadInput(f"--assignor: {error}" if is_own else str(error)) from None


def _join(snapshot: GroupSnapshot, row: MemberRow, known: Names) -> Join:
    """The join event of a member given as in a problem file."""

    def tasks(indexes: tuple[int, ...]) -> TaskSet:
        return known.table.set_of(np.array(sorted(indexes), dtype=np.int32))

    return Join(
        group=snapshot.group,
        member=MemberId(row.id),
        incarnation=0,
        rack=row.rack,
        capacity=row.capacity,
        tags=tuple(sorted(row.tags.items())),
        protocols=row.protocols,
        topics=None if row.topics is None else tuple(sorted(row.topics)),
        static=tuple(sorted(row.static)),
        holding=Holding(
            active=tasks(row.active),
            standby=tasks(row.standby),
            learner=tasks(row.learner),
            ready=tasks(row.ready),
        ),
        lags=tuple(Lag(known.table.task(t), behind) for t, behind in sorted(row.lag.items())),
    )


def present(snapshot: GroupSnapshot) -> dict[str, float]:
    """``imbalance`` and ``cross_rack`` of what a group has now, as in the output of a plan."""
    view = preview(snapshot, []).view
    held = Placement(active=view.active, destination=view.active, standby=view.standby)
    figures = score(view, held)
    return {"imbalance": figures.imbalance, "cross_rack": figures.cross_rack}
