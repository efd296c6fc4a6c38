"""Events and records as JSON objects: every field by its name, tasks as Kafka prints them.

Numbers of 64 bits (incarnation, digest) are hexadecimal text, because JSON readers round them.
Owner vectors and pairs are objects from member id to tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.protocol.digest import Holding
from muster.protocol.events import Event, Lag, Origin
from muster.protocol.ids import Role, Task
from muster.protocol.records import Dictionary, GroupSnapshot, MemberEntry, Move, Record, Rejected
from muster.protocol.settings import Settings
from muster.protocol.sources import Found, Source, source_json
from muster.protocol.tasks import Connector, Subtopology, TaskSet, TaskTable

Json: TypeAlias = dict[str, Any]
UNASSIGNED = "unassigned"
_HEX = ("incarnation", "digest")
_VECTORS = ("target", "holder", "destination")
_PAIRS = (
    *("target_standby", "target_learner", "standby", "learner"),
    *("standby_revoking", "learner_revoking", "ready"),
)
_BY_HAND = (*_VECTORS, *_PAIRS, "revoking", "lags", "lag_ms")


def as_json(value: Event | Record) -> Json:
    """The fields of an event or record, without where it was read and which dictionary it uses."""
    if isinstance(value, GroupSnapshot):
        return _snapshot(value)
    if isinstance(value, Dictionary):
        units = [unit._asdict() for unit in value.units]
        return {"group": value.group, "version": f"{value.version:016x}", "units": units}
    if isinstance(value, Rejected):
        shown = {"key": value.key.decode(errors="backslashreplace"), "value": value.value.hex()}
        return {"origin": value.origin._asdict(), **_fields(value, ("origin",)), **shown}
    return _fields(value, ("origin", "dictionary"))


def _fields(value: object, but: tuple[str, ...] = ()) -> Json:
    names = [f.name for f in fields(value) if f.name not in but]  # type: ignore[arg-type]  # ours
    names.sort(key=lambda name: name not in type(value).__annotations__)  # inherited ones last
    return {name: _plain(name, getattr(value, name)) for name in names}


def _plain(name: str, value: object) -> object:
    """One field's value as JSON has it."""
    if name in _HEX and isinstance(value, int):
        return f"{value:016x}"
    if name == "tags" and isinstance(value, tuple):
        return dict(value)
    if isinstance(value, Enum):
        return str(value) if isinstance(value, Role) else value.value
    shape = _SHAPES.get(type(value))
    return value if shape is None else shape(value)


_SHAPES: dict[type, Callable[[Any], object]] = {
    TaskSet: lambda tasks: [str(task) for task in tasks],
    Task: str,
    Lag: lambda lag: {"task": str(lag.task), "offsets": lag.offsets},
    Origin: lambda origin: origin._asdict(),
    Settings: lambda settings: settings.tuned(),
    bytes: lambda data: data.hex(),
    tuple: lambda each: [_plain("", one) for one in each],
    Holding: _fields,
    MemberEntry: _fields,
    Move: _fields,
    Subtopology: _fields,
    Connector: _fields,
    Source: source_json,
    Found: lambda found: {
        "source": source_json(found.source),
        "units": [_plain("", unit) for unit in found.units],
        "ids": dict(found.ids),
    },
}
"""How values of types that JSON does not have are shown."""


def _snapshot(value: GroupSnapshot) -> Json:
    table = TaskTable(value.tasks)
    member = {m.slot: str(m.id) for m in value.members}
    shown = _fields(value, _BY_HAND)
    tasks = np.arange(len(table), dtype=np.int32)
    for name in _VECTORS:
        shown[name] = _by_member(table, member, np.column_stack((tasks, getattr(value, name))))
    for name in _PAIRS:
        shown[name] = _by_member(table, member, getattr(value, name))
    shown["revoking"] = table.printed(np.flatnonzero(value.revoking).astype(np.int32))
    shown["lags"] = [
        {"task": str(table.task(int(task))), "member": member.get(slot), "offsets": offsets}
        | {"at_ms": at_ms}
        for (task, slot, offsets), at_ms in zip(
            value.lags.tolist(), value.lag_ms.tolist(), strict=True
        )
    ]
    return shown


def _by_member(table: TaskTable, member: dict[int, str], pairs: NDArray[np.int32]) -> Json:
    tasks, slots = pairs[:, 0], pairs[:, 1]
    return {
        UNASSIGNED if slot < 0 else member.get(slot, f"slot {slot}"): table.printed(
            tasks[slots == slot]
        )
        for slot in np.unique(slots).tolist()
    }
