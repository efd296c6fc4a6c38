"""Avro rows of the tasks that a group's config declares, and the checks of a reader.

A reader does not trust the writer of a record. It refuses units that make no `TaskTable`, a load
out of range, lists of racks or loads that do not fit the number of partitions, and too many tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.protocol.errors import ConfigError, DecodeError
from muster.protocol.framing import Row
from muster.protocol.ids import UNIT_CHARS_MAX, check_names
from muster.protocol.rows import json_bytes, json_from
from muster.protocol.tasks import (
    GROUP_TASKS_MAX,
    WEIGHT_MAX,
    Connector,
    RackLists,
    Subtopology,
    TaskTable,
    Unit,
)
from muster.protocol.taskset import UNIT_SIZE_MAX

WEIGHTS = "weights"
"""Extra of configs and snapshots: subtopology → load of each of its tasks, as JSON."""
_RACKS = ("source_racks", "changelog_racks")


def tasks_row(tasks: Sequence[Unit]) -> Row:
    """Declared units; equal replica racks are written once and referred to by index."""
    placements: dict[tuple[tuple[str, ...], ...], int] = {}

    def refer(racks: RackLists | None) -> list[int] | None:
        if racks is None:
            return None
        return [placements.setdefault(replicas, len(placements)) for replicas in racks]

    rows = [
        {
            "name": unit.name,
            "connector": isinstance(unit, Connector),
            "count": unit.tasks if isinstance(unit, Connector) else unit.partitions,
            "weight": float(unit.weight),
            "connector_weight": float(getattr(unit, "connector_weight", 1)),
            "stateful": getattr(unit, "stateful", False),
            "source_racks": refer(getattr(unit, "source_racks", None)),
            "changelog_racks": refer(getattr(unit, "changelog_racks", None)),
        }
        for unit in tasks
    ]
    plain = (unit for unit in tasks if isinstance(unit, Subtopology))
    weights = {unit.name: unit.weights for unit in plain if unit.weights is not None}
    row: Row = {"tasks": rows, "placements": [[list(t) for t in p] for p in placements]}
    return row | {"extras": {WEIGHTS: json_bytes(weights)}} if weights else row


def _weights_from(row: Row) -> dict[str, tuple[float, ...]]:
    """Subtopology → load of each task, checked except for their number."""
    by_unit = json_from(row["extras"], WEIGHTS)
    if by_unit is None:
        return {}
    lists: list[Any] = [*by_unit.values()] if isinstance(by_unit, dict) else [None]
    if not all(isinstance(each, list) and all(map(_is_weight, each)) for each in lists):
        raise DecodeError("weights that are not lists of numbers, 0 to 1e15, by unit")
    return {str(name): tuple(map(_number, each)) for name, each in by_unit.items()}


def _is_weight(value: object) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and 0 <= value <= WEIGHT_MAX  # type: ignore[operator]  # a number, checked


def tasks_from(row: Row) -> tuple[Unit, ...]:
    """Declared units, checked to make a `TaskTable`."""
    listed: list[list[list[str]]] = row["placements"]
    # Only placements in use are converted: a record may list millions of empty ones.
    used: set[int] = set().union(*(unit[field] or () for unit in row["tasks"] for field in _RACKS))
    known = (i for i in used if 0 <= i < len(listed))
    placements = {i: tuple(tuple(topic) for topic in listed[i]) for i in known}
    units = tuple(_unit_from(unit, placements) for unit in row["tasks"])
    weights = _weights_from(row)
    if weights:
        units = tuple(_weighed(unit, weights.get(unit.name)) for unit in units)
    if sum(unit.size for unit in units) > GROUP_TASKS_MAX:
        raise DecodeError(f"a group of more than {GROUP_TASKS_MAX} tasks")
    has_connectors = any(isinstance(unit, Connector) for unit in units)
    # A table refuses equal names, and connectors named like a task. It is costly to make.
    if has_connectors or len({unit.name for unit in units}) < len(units):
        try:
            TaskTable(units)
        except ConfigError as error:
            raise DecodeError(str(error)) from None
    return units


def _unit_from(row: Row, placements: Mapping[int, tuple[tuple[str, ...], ...]]) -> Unit:
    name, count = row["name"], row["count"]
    if not name:
        raise DecodeError("a unit without a name")
    if not 0 <= count < UNIT_SIZE_MAX:
        raise DecodeError(f"{count} tasks of unit {name[:40]!r}")
    for field in ("weight", "connector_weight"):
        if not 0 <= row[field] <= WEIGHT_MAX:
            raise DecodeError(f"{field} {row[field]} of unit {name[:40]!r}; expected 0 to 1e15")
    if row["connector"]:
        return Connector(name, count, _number(row["weight"]), _number(row["connector_weight"]))
    racks: list[RackLists | None] = []
    for field in _RACKS:
        refs: list[int] | None = row[field]
        if refs is not None and len(refs) != count:
            raise DecodeError(f"{len(refs)} {field} for {count} partitions of {name[:40]!r}")
        if refs and not placements.keys() >= set(refs):
            raise DecodeError(f"{field} of {name[:40]!r} refer to racks that are not there")
        racks.append(None if refs is None else tuple(placements[i] for i in refs))
    weight, (source, changelog) = _number(row["weight"]), racks
    return Subtopology(name, count, row["stateful"], weight, source, changelog)


def _weighed(unit: Unit, weights: tuple[float, ...] | None) -> Unit:
    """The unit with a load for each task."""
    if weights is None or not isinstance(unit, Subtopology):
        return unit
    if len(weights) != unit.partitions:
        name = unit.name[:40]
        raise DecodeError(f"{len(weights)} weights for {unit.partitions} partitions of {name!r}")
    return replace(unit, weights=weights)


def _number(value: float) -> float:
    """A whole number as int, so that a weight declared as 1 prints as 1."""
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value


def check_unit_names(units: Iterable[Unit]) -> None:
    """Refuse invalid names of units and racks, as `check_names` does.

    `tasks_from` does not, because it also reads published snapshots.
    """
    racks: set[str] = set()
    for unit in units:
        for lists in (getattr(unit, "source_racks", None), getattr(unit, "changelog_racks", None)):
            for topics in set(lists or ()):
                racks.update(*topics)
    check_names("a unit", (unit.name for unit in units), UNIT_CHARS_MAX)
    check_names("a rack", racks)
