"""The output of `muster shadow`: tables for people, a JSON object for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from muster.discovery.measured_traffic import Measure
from muster.output import cell, table
from muster.protocol.records import GroupSnapshot
from muster.shadow.group_conversion import names_of
from muster.shadow.group_reader import ShadowedGroup
from muster.shadow.placement_figures import PlacementFigures, present, task_word

MOVES_SHOWN = 20
_UNITS = {Measure.RECORDS: "RECORDS/S", Measure.BYTES: "BYTES/S", Measure.LAG: "LAG"}
_WORDS = {"records": "records a second", "bytes": "bytes a second", "lag": "lag"}


class Shadow(NamedTuple):
    """A group, its figures now, and what muster would do with it.

    Attributes:
        shadowed: the group as it was read.
        group: the group as muster would publish it.
        plan: the answer of muster's assignor, as of `muster assign`; None = no plan was possible.
    """

    shadowed: ShadowedGroup
    group: GroupSnapshot
    now: PlacementFigures
    plan: Mapping[str, Any] | None
    after: PlacementFigures | None
    why_no_plan: str = ""


def as_json(shadow: Shadow) -> dict[str, Any]:
    """The JSON object of one group; later versions only add keys."""
    described = shadow.shadowed.description
    names = names_of(described.members)
    owned = present(shadow.group)
    members = []
    for member in described.members:
        name = names[member.id]
        row = shadow.now.members[name]
        members.append(
            {
                "id": name,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "rack": member.rack,
                "active": owned[name],
                "tasks": row.tasks,
                **{f"{measure}": row.loads.get(measure) for measure in Measure},
                "cross_rack": row.cross_rack,
            }
        )
    return {
        "group": described.group,
        "kind": str(described.kind),
        "state": described.state,
        "assignor": described.assignor or None,
        "epoch": described.epoch,
        "members": members,
        **shadow.now.as_json(),
        "unknown": list(shadow.shadowed.unknown),
        "plan": None if shadow.plan is None else {"assignor": shadow.group.assignor, **shadow.plan},
        "after": None if shadow.after is None else shadow.after.as_json(),
    }


def as_text(shadow: Shadow) -> str:
    """The tables and sentences of one group."""
    return "\n\n".join(_paragraphs(shadow))


def _paragraphs(shadow: Shadow) -> Iterator[str]:
    described, word = shadow.shadowed.description, task_word(shadow.group)
    total = sum(unit.size for unit in shadow.group.tasks)
    columns = ("GROUP", "KIND", "STATE", "ASSIGNOR", "#MEMBERS", f"#{word.upper()}", "UNOWNED")
    row = (described.group, described.kind, described.state, described.assignor)
    yield table(columns, [(*row, len(described.members), total, shadow.now.unowned)])
    if described.members:
        yield _members(shadow, word)
    if shadow.now.balance:
        yield _gain(shadow, word)
    yield "\n".join(_moves(shadow))
    if shadow.shadowed.unknown:
        yield "\n".join(["cannot be known:", *(f"- {line}" for line in shadow.shadowed.unknown)])


def _members(shadow: Shadow, word: str) -> str:
    described = shadow.shadowed.description
    names = names_of(described.members)
    rows = shadow.now.members
    measures = [m for m in Measure if any(m in row.loads for row in rows.values())]
    columns = ["MEMBER", "HOST", "RACK", word.upper(), *(_UNITS[m] for m in measures), "CROSS-RACK"]
    cells = []
    for member in described.members:
        row = rows[names[member.id]]
        loads = [_number(row.loads.get(measure, 0)) for measure in measures]
        cells.append(
            (names[member.id], member.host, member.rack, row.tasks, *loads, row.cross_rack)
        )
    return table(columns, cells)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or float(value).is_integer() else f"{value:.1f}"


def _gain(shadow: Shadow, word: str) -> str:
    """A table: each figure now, and with muster."""
    rows: list[tuple[object, ...]] = []
    for name, value in shadow.now.balance.items():
        after = None if shadow.after is None else shadow.after.balance.get(name)
        what = f"most {word if name == 'tasks' else _WORDS[name]} of a member / fair share"
        rows.append((what, value, after))
    if shadow.now.cross_rack is not None:
        after_racks = None if shadow.after is None else shadow.after.cross_rack
        rows.append((f"{word} read from another rack", shadow.now.cross_rack, after_racks))
    return table(("FIGURE", "NOW", "MUSTER"), rows)


def _moves(shadow: Shadow) -> list[str]:
    if shadow.plan is None:
        return [f"muster has no plan: {shadow.why_no_plan}"]
    moves = shadow.plan["moves"]
    how = f"muster ({shadow.group.assignor})"
    if not moves:
        return [f"{how} would move nothing"]
    rows = [
        [move[key] for key in ("task", "role", "from", "to", "reason")]
        for move in moves[:MOVES_SHOWN]
    ]
    lines = [f"{how} would move {len(moves)}:"]
    lines.append(table(("TASK", "ROLE", "FROM", "TO", "REASON"), rows))
    if len(moves) > MOVES_SHOWN:
        lines.append(f"… and {len(moves) - MOVES_SHOWN} more; --format json has all of them")
    return lines


def line(event: Mapping[str, Any]) -> str:
    """One line of a watch: what a rebalance did, and what muster would have moved."""
    parts = [f"{event['group']}: rebalance"]
    parts += [f"{cell(event[key])} {key}" for key in ("joined", "left") if event[key]]
    moved = event["moved"]
    shown = ", ".join(f"{m['task']} {m['from']} → {m['to']}" for m in moved[:5])
    more = f", and {len(moved) - 5} more" if len(moved) > 5 else ""
    parts.append(f"{len(moved)} moved" + (f" ({shown}{more})" if moved else ""))
    if event["muster_moves"] is not None:
        parts.append(f"muster would have moved {event['muster_moves']}")
    if event["unowned"]:
        parts.append(f"{event['unowned']} without an owner")
    return "; ".join(parts)
