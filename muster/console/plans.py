"""Answers the page's what-if questions: the plan of `muster plan`, drawn on the group's map."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from muster.console.frames import Frame, frame_of, text, units_of
from muster.documents.units import parse_tasks, tasks_json
from muster.errors import BadInput
from muster.output import shown
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import WEIGHT_MAX, Connector, IntArray, TaskTable
from muster.whatif import planned, present

Json: TypeAlias = dict[str, Any]
ADD_MAX = 200
"""Most members that may be added at once."""
ADDED_SLOT = 1_000_000_000
"""First slot of added members; no group has so many slots."""
MOVES_SHOWN = 500


@dataclass(frozen=True, slots=True)
class Question:
    """A what-if question: members to remove or add, and settings to change.

    Attributes:
        remove: ids of members.
        add: members, as in a problem file of `muster assign`.
        capacity: member id → its new capacity.
        config: settings by Kafka's name.
        weights: unit → new weight of each of its tasks.
        assignor: the new assignor; None = the group's.
        tasks: the group's new list of tasks, as in a problem file; None = unchanged.
        trusts_assignor: see `whatif.planned`; a question from a page never does.
    """

    remove: tuple[str, ...] = ()
    add: tuple[Json, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    assignor: str | None = None
    tasks: object = None
    trusts_assignor: bool = False


def question(fields: Sequence[tuple[str, str]]) -> Question:
    """Read a question from the fields of a form.

    ``remove``, ``add`` (a member id, or JSON of a member), ``capacity`` (ID=N), ``weight`` (UNIT=N)
    and ``config`` (K=V) may be repeated; ``assignor`` is given once.

    Raises:
        BadInput: a field is malformed.
    """
    remove: list[str] = []
    add: list[Json] = []
    capacity: dict[str, int] = {}
    config: dict[str, str] = {}
    weights: dict[str, float] = {}
    assignor = None
    for name, value in fields:
        if not value.strip():
            continue
        if name == "remove":
            remove.append(value)
        elif name == "add":
            add.append(_member(value))
        elif name == "capacity":
            member, number = _pair(value, "capacity")
            if not number.isascii() or not number.isdigit() or not int(number[:9]) >= 1:
                raise BadInput(f"capacity of {shown(member)}: expected a whole number from 1")
            capacity[member] = int(number[:9])
        elif name == "weight":
            unit, weight = _pair(value, "weight")
            weights[unit] = _weight(unit, weight)
        elif name == "config":
            key, setting = _pair(value, "setting")
            config[key.strip()] = setting.strip()
        elif name == "assignor":
            assignor = value.strip()
    if len(add) > ADD_MAX:
        raise BadInput(f"{len(add)} members to add; expected at most {ADD_MAX}")
    gone = tuple(dict.fromkeys(remove))
    return Question(gone, tuple(add), capacity, config, weights, assignor)


def _weight(unit: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1
    if not 0 <= number <= WEIGHT_MAX:  # NaN too
        raise BadInput(f"weight of {shown(unit)}: expected a number from 0 to {WEIGHT_MAX}")
    return number


def _pair(value: str, what: str) -> tuple[str, str]:
    key, separator, right = value.partition("=") if what == "setting" else value.rpartition("=")
    if not separator or not key:
        raise BadInput(f"{what} {shown(value)}: expected NAME=VALUE")
    return key, right


def _member(value: str) -> Json:
    if not value.lstrip().startswith("{"):
        return {"id": value.strip()}
    try:
        row = json.loads(value)
    except (ValueError, RecursionError):
        raise BadInput(f"member {shown(value)}: expected an id, or JSON of a member") from None
    assert isinstance(row, dict)
    return row


def plan_of(snapshot: GroupSnapshot, asked: Question) -> Json:
    """The output of `muster plan` for the same change.

    A member with a new capacity leaves and joins again with the tasks that it holds.

    Raises:
        BadInput, ConfigError, NotFound, AssignorError: as `whatif.planned`.
    """
    again = [_rejoining(snapshot, name, number) for name, number in asked.capacity.items()]
    return planned(
        snapshot,
        add=[*asked.add, *again],
        remove=[*asked.remove, *asked.capacity],
        config=asked.config,
        assignor=asked.assignor,
        tasks=asked.tasks,
        trusts_assignor=asked.trusts_assignor,
    )


def _rejoining(snapshot: GroupSnapshot, name: str, capacity: int) -> Json:
    member = next((m for m in snapshot.members if m.id == name), None)
    if member is None:
        raise BadInput(f"capacity: the group has no member {shown(name)}")
    table = TaskTable(snapshot.tasks)

    def held(pairs: Any) -> list[str]:  # noqa: ANN401  an array of pairs
        return [str(table.task(int(t))) for t, slot in pairs.tolist() if slot == member.slot]

    active = (snapshot.holder == member.slot).nonzero()[0].tolist()
    row: Json = {
        "id": name,
        "capacity": capacity,
        "tags": dict(member.tags),
        "static": list(member.static),
        "active": [str(table.task(t)) for t in active],
        "standby": held(snapshot.standby),
        "learner": held(snapshot.learner),
        "lag": {
            str(table.task(int(t))): int(offsets)
            for t, slot, offsets in snapshot.lags.tolist()
            if slot == member.slot
        },
    }
    if member.rack is not None:
        row["rack"] = member.rack
    if member.topics is not None:
        row["topics"] = list(member.topics)
    if member.protocols:
        row["protocols"] = list(member.protocols)
    return row


def weighed(snapshot: GroupSnapshot, asked: Question) -> Question:
    """The question with its new weights written into the list of tasks.

    Raises:
        BadInput: the group has no such unit.
    """
    if not asked.weights:
        return asked
    units = {unit.name: unit for unit in snapshot.tasks}
    for name, weight in asked.weights.items():
        if name not in units:
            raise BadInput(f"weight: the group has no tasks {shown(name)}")
        unit = units[name]
        units[name] = (
            replace(unit, weight=weight)
            if isinstance(unit, Connector)
            else replace(unit, weight=weight, weights=None)
        )
    return replace(asked, tasks=tasks_json(tuple(units.values())))


def plan_json(
    snapshot: GroupSnapshot, asked: Question, at_ms: int, *, is_shadowed: bool = False
) -> Json:
    """The plan for the page: moves, figures before and after, commands, and the map.

    Raises:
        BadInput, ConfigError, NotFound, AssignorError: as `whatif.planned`.
    """
    asked = weighed(snapshot, asked)
    plan = plan_of(snapshot, asked)
    moves = plan["moves"]
    warnings = [*plan.get("warnings", ())]
    lines = commands(snapshot.group, asked, is_shadowed=is_shadowed)
    if asked.weights and snapshot.sources:
        lines = lines[:1]
        warnings.append("set the weights of Kafka's topics where the group's config declares them")
    return {
        "moves": [_shown(move) for move in moves[:MOVES_SHOWN]],
        "left_out": max(len(moves) - MOVES_SHOWN, 0),
        "count": len(moves),
        "unassigned": len(plan["unassigned"]),
        "before": present(snapshot),
        "after": plan["score"],
        "warnings": [text(warning, 400) for warning in warnings],
        "commands": lines,
        "frame": overlay(snapshot, asked, plan, at_ms).whole,
    }


def _shown(move: Json) -> Json:
    names = {key: move[key] if move[key] is None else text(move[key]) for key in ("from", "to")}
    return {**move, **names, "task": text(move["task"]), "reason": text(move["reason"], 400)}


def overlay(snapshot: GroupSnapshot, asked: Question, plan: Json, at_ms: int) -> Frame:
    """The group's frame with the plan as its target.

    Added members have columns of their own; removed members are shown as draining.
    """
    base = frame_of(snapshot, at_ms, {})
    slot = {str(m.id): m.slot for m in snapshot.members}
    members = {each: list(row) for each, row in base.members.items()}
    for number, row in enumerate(asked.add):
        slot.setdefault(str(row["id"]), ADDED_SLOT + number)
        columns = [text(str(row["id"])), text(str(row.get("rack") or "")), row.get("capacity", 1)]
        members[slot[str(row["id"])]] = [*columns, "new", 0, 0, "", 0, 0]
    for name, capacity in asked.capacity.items():
        members[slot[name]][2] = capacity
    for name in asked.remove:
        members[slot[name]][4] = 1
    table, rows = _tasks(snapshot, asked)
    for name, held in plan["members"].items():
        for task in held[str(Role.ACTIVE)]:
            index = table.index(task)
            if index is not None and name in slot:
                rows[index, 1] = rows[index, 2] = slot[name]
    rows[:, 3] = (rows[:, 0] != rows[:, 1]) & (rows[:, 0] >= 0)
    copies = {
        (index, slot[name]): [int(role), 0, None, None]
        for role in (Role.STANDBY, Role.LEARNER)
        for name, held in plan["members"].items()
        for task in held[str(role)]
        if (index := table.index(task)) is not None and name in slot
    }
    units = units_of(snapshot if asked.tasks is None else replace(snapshot, tasks=table.units))
    return Frame({**base.head, "plan": True, "units": units}, rows, members, copies)


def _tasks(snapshot: GroupSnapshot, asked: Question) -> tuple[TaskTable, IntArray]:
    """The tasks after the change, and int32[T, 4] with their present owners and no target."""
    old = TaskTable(snapshot.tasks)
    table = old if asked.tasks is None else TaskTable(parse_tasks(asked.tasks))
    rows = np.full((len(table), 4), -1, dtype=np.int32)
    rows[:, 3] = 0
    for task in range(len(table)):
        before = task if table is old else old.index(str(table.task(task)))
        if before is not None:
            rows[task, 0] = snapshot.holder[before]
    return table, rows


def commands(group: str, asked: Question, *, is_shadowed: bool = False) -> list[str]:
    """The commands that print the same plan, and those that carry it out.

    For a shadowed group there are only commands that print.
    """
    named = ["--group", group]
    plan = ["muster", "shadow" if is_shadowed else "plan", *named]
    for name in (*asked.remove, *asked.capacity):
        plan += ["--remove-member", name]
    for key, value in asked.config.items():
        plan += ["--config", f"{key}={value}"]
    if asked.assignor:
        plan += ["--assignor", asked.assignor]
    tasks_piped = ""
    if asked.weights:
        plan += ["--tasks", "-"]
        tasks_piped = f"echo {shlex.quote(json.dumps(asked.tasks, ensure_ascii=False))} | "
    lines = [] if asked.add or asked.capacity else [tasks_piped + shlex.join(plan)]
    if is_shadowed:
        return [] if asked.weights else lines  # `muster shadow` takes no tasks: they are Kafka's
    lines += [shlex.join(["muster", "drain", *named, "--member", name]) for name in asked.remove]
    setting = [word for k, v in asked.config.items() for word in ("--config", f"{k}={v}")]
    if asked.assignor:
        setting = ["--assignor", asked.assignor, *setting]
    if asked.weights:
        setting += ["--tasks", "-"]
    if setting:
        lines.append(tasks_piped + shlex.join(["muster", "config", "set", *named, *setting]))
    members = [(str(row["id"]), row.get("rack"), row.get("capacity", 1)) for row in asked.add]
    members += [(name, None, number) for name, number in asked.capacity.items()]
    for name, rack, capacity in members:
        words = ["muster", "worker", *named, "--member-id", name]
        words += ["--rack", str(rack)] if rack else []
        words += ["--capacity", str(capacity)] if capacity != 1 else []
        lines.append(shlex.join([*words, "--exec", "./process-partition {task}"]))
    return lines
