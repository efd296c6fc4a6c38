"""Reads a member of a problem (`docs/formats.md`) and resolves its task ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from muster.documents.json_files import refuse_unknown
from muster.errors import BadInput
from muster.output import shown
from muster.protocol.client_tags import tags_fault
from muster.protocol.ids import member_fault
from muster.protocol.tasks import TaskTable

PROTOCOLS = ("static", "sessioned", "compatible", "eager", "default")
_MOST = 2**31 - 1


class Names:
    """The tasks of a problem, by index and by printed id."""

    def __init__(self, table: TaskTable) -> None:
        self.table = table

    @cached_property
    def _printed(self) -> list[str]:
        return self.table.printed(np.arange(len(self.table), dtype=np.int32))

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Printed id -> index."""
        return {name: number for number, name in enumerate(self._printed)}

    def printed(self, index: int) -> str:
        """The id as Kafka prints it."""
        return self._printed[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """One member; tasks by index, in the order given.

    Attributes:
        lag: task -> offsets behind.
        topics: subtopologies it may run; None = all.
        foreign: ids it runs that are not tasks of the group, or not any more.
        The others are as in `muster.assignor.model.GroupView`.
    """

    id: str
    capacity: int = 1
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    static: frozenset[str] = frozenset()
    active: tuple[int, ...] = ()
    standby: tuple[int, ...] = ()
    learner: tuple[int, ...] = ()
    ready: tuple[int, ...] = ()
    lag: Mapping[int, int] = field(default_factory=dict)
    draining: bool = False
    protocols: tuple[str, ...] = ()
    topics: frozenset[str] | None = None
    foreign: tuple[str, ...] = ()


KEYS = tuple(each.name for each in fields(MemberRow) if each.name != "foreign")


def parse_member(raw: object, names: Names, place: str, *, foreign: bool = False) -> MemberRow:
    """Read one member; `place` is where it is in the document, for messages.

    `foreign`: whether it may run ids that the group does not have (Connect: deleted connectors).

    Raises:
        BadInput: the message names the place and says what would be right.
    """
    if not isinstance(raw, dict):
        raise BadInput(f"{place}: expected an object with at least 'id'")
    refuse_unknown(raw, KEYS, place)
    name = raw.get("id")
    fault = member_fault(name) if isinstance(name, str) else "expected a name"
    if fault is not None or not isinstance(name, str):
        raise BadInput(f"{place}.id: {fault}")
    active = _texts(raw, "active", place)
    strangers = tuple(t for t in active if t not in names.index)
    if strangers and not foreign:
        nth = active.index(strangers[0])
        raise BadInput(f"{place}.active[{nth}]: {_no_such_task(strangers[0], names)}")
    if len(set(strangers)) < len(strangers):
        again, _ = Counter(strangers).most_common(1)[0]
        raise BadInput(f"{place}.active: {shown(again)} is twice; expected once")
    row = MemberRow(
        id=name,
        capacity=whole(raw.get("capacity", 1), 1, f"{place}.capacity"),
        rack=_rack(raw.get("rack"), f"{place}.rack"),
        tags=_tags(raw.get("tags", {}), f"{place}.tags"),
        static=frozenset(_texts(raw, "static", place)),
        active=tuple([names.index[t] for t in active if t in names.index]),
        standby=_tasks(raw, "standby", names, place),
        learner=_tasks(raw, "learner", names, place),
        ready=_tasks(raw, "ready", names, place),
        lag=_lags(raw.get("lag", {}), names, f"{place}.lag"),
        draining=_truth(raw.get("draining", False), f"{place}.draining"),
        protocols=_protocols(raw, place),
        topics=_topics(raw, names, place),
        foreign=strangers,
    )
    _one_role_a_task(row, names, place)
    return row


def _one_role_a_task(row: MemberRow, names: Names, place: str) -> None:
    role_of: dict[int, str] = {}
    for role in ("active", "standby", "learner"):
        for nth, task in enumerate(getattr(row, role)):
            if task in role_of:
                conflict = "twice" if role_of[task] == role else f"{role_of[task]} here too"
                raise BadInput(
                    f"{place}.{role}[{nth}]: {names.printed(task)} is {conflict};"
                    " expected one role of a task on a member"
                )
            role_of[task] = role
    ready: set[int] = set()
    for nth, task in enumerate(row.ready):
        if task in ready:
            raise BadInput(f"{place}.ready[{nth}]: {names.printed(task)} is twice; expected once")
        ready.add(task)
        if role_of.get(task) not in ("learner", "standby"):
            raise BadInput(
                f"{place}.ready[{nth}]: {names.printed(task)} is neither a learner nor a standby"
                " here; expected a part of 'learner' and 'standby'"
            )


def _no_such_task(task: str, names: Names) -> str:
    if not len(names.table):
        return f"no task {shown(task)}; the problem has no tasks"
    last = names.printed(len(names.table) - 1)
    return f"no task {shown(task)} in this problem; there are {names.printed(0)} to {last}"


def _texts(raw: Mapping[str, object], key: str, place: str) -> list[str]:
    value = raw.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise BadInput(f"{place}.{key}: expected a list of names")
    return value


def _tasks(raw: Mapping[str, object], role: str, names: Names, place: str) -> tuple[int, ...]:
    indices = []
    for nth, task in enumerate(_texts(raw, role, place)):
        index = names.index.get(task)
        if index is None:
            raise BadInput(f"{place}.{role}[{nth}]: {_no_such_task(task, names)}")
        indices.append(index)
    return tuple(indices)


def _lags(value: object, names: Names, place: str) -> dict[int, int]:
    if not isinstance(value, dict):
        raise BadInput(f"{place}: expected an object of task ids and offsets")
    lags = {}
    for task, behind in value.items():
        if task not in names.index:
            raise BadInput(f"{place}.{task}: {_no_such_task(task, names)}")
        lags[names.index[task]] = whole(behind, 0, f"{place}.{task}", 2**63 - 1)
    return lags


def whole(value: object, least: int, place: str, most: int = _MOST) -> int:
    """Read a whole number from `least` to `most`.

    Raises:
        BadInput: the message names the place and says what would be right.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        beyond = isinstance(value, int) and value > most
        right = f"{least} to {most}" if beyond else f"{least} or more"
        raise BadInput(f"{place}: {shown(value)}; expected a whole number, {right}")
    return value


def _rack(value: object, place: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadInput(f"{place}: {shown(value)}; expected a name or null")
    return value or None  # as in Kafka, whose client.rack is an empty text by default


def _tags(value: object, place: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BadInput(f"{place}: expected an object of texts")
    fault = tags_fault(value)
    if fault is not None:
        raise BadInput(f"{place}: expected {fault}")
    return value


def _truth(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{place}: {shown(value)}; expected true or false")
    return value


def _protocols(raw: Mapping[str, object], place: str) -> tuple[str, ...]:
    protocols = _texts(raw, "protocols", place)
    for nth, protocol in enumerate(protocols):
        if protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise BadInput(f"{place}.protocols[{nth}]: {shown(protocol)}; expected one of {known}")
    return tuple(protocols)


def _topics(raw: Mapping[str, object], names: Names, place: str) -> frozenset[str] | None:
    if raw.get("topics") is None:
        return None
    known = {unit.name for unit in names.table.units}
    topics = _texts(raw, "topics", place)
    for nth, topic in enumerate(topics):
        if topic not in known:
            raise BadInput(f"{place}.topics[{nth}]: no subtopology {shown(topic)} in this problem")
    return frozenset(topics)
