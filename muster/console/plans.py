"""Answers the page's what-if questions: the plan of `muster plan`, drawn on the group's map."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from muster.console.frames import Frame, Json, frame_of, kind_of, task_text, text, units_of
from muster.documents.units import parse_tasks, tasks_json
from muster.errors import BadInput
from muster.output import shown
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot
from muster.protocol.settings import CONNECT_PROTOCOLS
from muster.protocol.tasks import WEIGHT_MAX, Connector, IntArray, TaskTable
from muster.whatif import planned, present

ADD_MAX = 200
"""Most members that may be added at once."""
ADDED_SLOT = 1_000_000_000
"""First slot of added members; no group has so many slots."""
IDLE_SHOWN = 20
"""Most members without a task that are named."""
MOVES_SHOWN = 500


@dataclass(frozen=True, slots=True)
class Question:
    """A what-if question: what to change, as `whatif.planned` takes it, and two things more.

    Attributes:
        capacity: member id → its new capacity.
        weights: unit → new weight of each of its tasks.
        trusts_assignor: a question from a page never does.
    """

    remove: Sequence[str] = ()
    add: Sequence[Json] = ()
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
    given: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in fields:
        if value.strip():
            given[name].append(value)
    if len(given["add"]) > ADD_MAX:
        raise BadInput(f"{len(given['add'])} members to add; expected at most {ADD_MAX}")
    settings = (_pair(value, "setting") for value in given["config"])
    return Question(
        remove=tuple(dict.fromkeys(given["remove"])),
        add=tuple(map(_member, given["add"])),
        capacity=dict(map(_capacity, given["capacity"])),
        config={key.strip(): setting.strip() for key, setting in settings},
        weights=dict(map(_weight, given["weight"])),
        assignor=next((value.strip() for value in reversed(given["assignor"])), None),
    )


def _capacity(value: str) -> tuple[str, int]:
    member, number = _pair(value, "capacity")
    if not number.isascii() or not number.isdigit() or not int(number[:9]) >= 1:
        raise BadInput(f"capacity of {shown(member)}: expected a whole number from 1")
    return member, int(number[:9])


def _weight(value: str) -> tuple[str, float]:
    unit, text_of_number = _pair(value, "weight")
    try:
        number = float(text_of_number)
    except ValueError:
        number = -1
    if not 0 <= number <= WEIGHT_MAX:  # NaN too
        raise BadInput(f"weight of {shown(unit)}: expected a number from 0 to {WEIGHT_MAX}")
    return unit, number


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
    snapshot: GroupSnapshot,
    asked: Question,
    at_ms: int,
    *,
    where: Sequence[str] = (),
    is_shadowed: bool = False,
) -> Json:
    """The plan for the page: moves, figures before and after, commands, and the map.

    `at_ms` is the time of the map; `where` are the connection's options, for the commands.

    Raises:
        BadInput, ConfigError, NotFound, AssignorError: as `whatif.planned`.
    """
    asked = weighed(snapshot, asked)
    plan = plan_of(snapshot, asked)
    moves, warnings = plan["moves"], [*_idle(plan.get("left_out", {})), *plan.get("warnings", ())]
    if asked.weights and snapshot.sources:
        warnings.append("set the weights of Kafka's topics where the group's config declares them")
    return {
        "moves": [_shown(move) for move in moves[:MOVES_SHOWN]],
        "left_out": max(len(moves) - MOVES_SHOWN, 0),
        "count": len(moves),
        "unassigned": len(plan["unassigned"]),
        "before": present(snapshot),
        "after": plan["score"],
        "warnings": [text(warning, 400) for warning in warnings],
        "commands": commands(snapshot, asked, where, is_shadowed=is_shadowed),
        "frame": overlay(snapshot, asked, plan, at_ms).whole,
    }


def _idle(left_out: Mapping[str, str]) -> list[str]:
    """A line for each member that gets no task, with why; beyond `IDLE_SHOWN` their number."""
    lines = [f"{name} gets no task: {why}" for name, why in left_out.items()]
    more = len(lines) - IDLE_SHOWN
    return lines if more <= 0 else [*lines[:IDLE_SHOWN], f"{more} more members get no task"]


def _shown(move: Json) -> Json:
    names = {key: move[key] if move[key] is None else text(move[key]) for key in ("from", "to")}
    return {**move, **names, "task": task_text(move["task"]), "reason": text(move["reason"], 400)}


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


def commands(
    snapshot: GroupSnapshot,
    asked: Question,
    where: Sequence[str] = (),
    *,
    is_shadowed: bool = False,
) -> list[str]:
    """The command that prints the same plan, and those that carry it out.

    For a shadowed group there is only the command that prints, and with new weights not even that:
    `muster shadow` takes no tasks, because they are Kafka's. For a governed group there is no
    command that starts members, because they are Kafka's clients. The question is `weighed`.
    """
    named = [*_option("--group", snapshot.group), *where]
    again = [_rejoining(snapshot, name, number) for name, number in asked.capacity.items()]
    setting = [] if asked.assignor is None else _option("--assignor", asked.assignor)
    for key, value in asked.config.items():
        setting += _option("--config", f"{key}={value}")
    gone = (*asked.remove, *asked.capacity)
    plan = [word for name in gone for word in _option("--remove-member", name)] + setting
    joining = [("--add-member", row) for row in (*asked.add, *again)]
    tasks = [] if asked.tasks is None else [("--tasks", asked.tasks)]
    if is_shadowed:
        return [] if tasks else [_line(["muster", "shadow", *named, *plan], joining)]
    lines = [_line(["muster", "plan", *named, *plan], [*joining, *tasks])]
    lines += [_line(["muster", "drain", *named, *_option("--member", n)]) for n in asked.remove]
    if asked.weights and snapshot.sources:
        tasks = []  # a list of tasks would replace the topics that the group's config declares
    if setting or tasks:
        lines.append(_line(["muster", "config", "set", *named, *setting], tasks))
    if kind_of(snapshot) != "governed":
        instances = {str(m.id): m.instance_id for m in snapshot.members if m.id in asked.capacity}
        for row in (*asked.add, *again):
            lines += _starting(named, row, instances.get(str(row["id"])))
    return lines


def _starting(named: Sequence[str], row: Json, instance: str | None) -> list[str]:
    """The commands that start a member of the plan."""
    name = _option("--member-id", str(row["id"]))
    options = [] if instance is None else _option("--instance-id", instance)
    if row.get("rack"):
        options += _option("--rack", row["rack"])
    for key, value in row.get("tags", {}).items():
        options += _option("--tag", f"{key}={value}")
    if row.get("capacity", 1) != 1:
        options += ["--capacity", str(row["capacity"])]
    for option, key in (("--topic", "topics"), ("--static", "static")):
        options += [word for value in row.get(key) or () for word in _option(option, value)]
    protocols = tuple(row.get("protocols") or ())
    if protocols and protocols == CONNECT_PROTOCOLS[-len(protocols) :]:
        options += ["--connect-protocol", protocols[0]]
    task = ["--exec", "./process-partition {task}"]
    lines = [_line(["muster", "worker", *named, *name, *options, *task])]
    if row.get("draining"):
        drained = _option("--member", str(row["id"]))
        lines.append(_line(["muster", "drain", *named, *drained]))
    return lines


def _option(name: str, value: str) -> list[str]:
    """An option and its value, which may begin with a hyphen."""
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


def _line(words: Sequence[str], documents: Sequence[tuple[str, object]] = ()) -> str:
    """A command line for a shell. It has the documents in it, because others have no files of ours.

    One document goes through standard input; several need a shell with ``<(…)``, as bash and zsh.
    """
    printed = [
        (option, f"printf %s {shlex.quote(json.dumps(document, ensure_ascii=False))}")
        for option, document in documents
    ]
    if len(printed) == 1:
        option, said = printed[0]
        return f"{said} | {shlex.join([*words, option, '-'])}"
    return " ".join([shlex.join(words), *(f"{option} <({said})" for option, said in printed)])
