"""Reads and writes the ``tasks`` list (`docs/formats.md`).

Every fault names its place: ``tasks[1].partitions``. Unknown keys are faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from muster.documents.json_files import refuse_unknown
from muster.errors import BadInput
from muster.protocol.errors import ConfigError
from muster.protocol.sources import SOURCES_MAX, Source, is_source, source_from
from muster.protocol.tasks import WEIGHT_MAX, Connector, RackLists, Subtopology, Unit

SUBTOPOLOGY = (
    *("subtopology", "partitions", "stateful", "weight", "weights"),
    *("source_racks", "changelog_racks"),
)
MOST_TASKS = 10_000_000
"""A larger number counts as a typing error: its arrays would not fit into memory."""
CONNECTOR = ("connector", "tasks", "weight", "connector_weight")


def parse_tasks(value: object, place: str = "tasks") -> tuple[Unit, ...]:
    """Read a list of tasks.

    Raises:
        BadInput: the message names the place and says what would be right.
    """
    if not isinstance(value, list):
        raise BadInput(f"{place}: expected a list of subtopologies and connectors")
    return _units(enumerate(value), place)


def parse_task_list(
    value: object, place: str = "tasks"
) -> tuple[tuple[Unit, ...], tuple[Source, ...]]:
    """Read a list of tasks that may also name topics of Kafka; return its units and sources.

    Raises:
        BadInput: the message names the place and says what would be right.
    """
    if not isinstance(value, list):
        raise BadInput(f"{place}: expected a list of topics, subtopologies and connectors")
    sources = tuple(
        _source(row, f"{place}[{number}]") for number, row in enumerate(value) if is_source(row)
    )
    if len(sources) > SOURCES_MAX:
        raise BadInput(f"{place}: {len(sources)} topics and patterns; at most {SOURCES_MAX}")
    units = _units(((n, row) for n, row in enumerate(value) if not is_source(row)), place)
    _refuse_twice(units, sources, place)
    return units, sources


def _units(rows: Iterable[tuple[int, object]], place: str) -> tuple[Unit, ...]:
    units = tuple(_unit(row, f"{place}[{number}]") for number, row in rows)
    total = sum(unit.size for unit in units)
    if total > MOST_TASKS:
        raise BadInput(f"{place}: {total} tasks; at most {MOST_TASKS} are accepted")
    return units


def _refuse_twice(units: tuple[Unit, ...], sources: tuple[Source, ...], place: str) -> None:
    """Refuse a source that is listed twice, and a topic whose name a unit of the list has."""
    names = [unit.name for unit in units if isinstance(unit, Subtopology)]
    for source in sources:
        names += [source.unit] if source.co_partitioned else source.topics
    patterns = [source.pattern for source in sources if not source.co_partitioned]
    for listed, what in ((names, "tasks of"), (filter(None, patterns), "pattern")):
        seen: set[str] = set()
        for name in listed:
            if name in seen:
                raise BadInput(f"{place}: duplicate {what} {name!r}")
            seen.add(name)


def _source(row: object, place: str) -> Source:
    try:
        source = source_from(row, place)
        re.compile(source.pattern)
    except ConfigError as error:
        raise BadInput(str(error)) from None
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(f"{place}.pattern: not a regular expression: {error}") from None
    return source


def tasks_json(units: tuple[Unit, ...]) -> list[dict[str, Any]]:
    """Write a list of tasks; default values are left out."""
    return [_connector_json(u) if isinstance(u, Connector) else _plain_json(u) for u in units]


def _unit(row: object, place: str) -> Unit:
    if is_source(row):
        raise BadInput(f"{place}: only groups have topics of Kafka as tasks: muster config set")
    if not isinstance(row, dict) or ("subtopology" in row) == ("connector" in row):
        raise BadInput(f"{place}: expected an object with either 'subtopology' or 'connector'")
    refuse_unknown(row, CONNECTOR if "connector" in row else SUBTOPOLOGY, place)
    if "connector" in row:
        return Connector(
            name=_name(row["connector"], f"{place}.connector"),
            tasks=_count(row.get("tasks"), 0, f"{place}.tasks"),
            weight=_weight(row.get("weight", 1), f"{place}.weight"),
            connector_weight=_weight(row.get("connector_weight", 1), f"{place}.connector_weight"),
        )
    partitions = _count(row.get("partitions"), 1, f"{place}.partitions")
    stateful = row.get("stateful", False)
    if not isinstance(stateful, bool):
        raise BadInput(f"{place}.stateful: expected true or false")
    return Subtopology(
        name=_name(row["subtopology"], f"{place}.subtopology"),
        partitions=partitions,
        stateful=stateful,
        weight=_weight(row.get("weight", 1), f"{place}.weight"),
        source_racks=_racks(row.get("source_racks"), partitions, f"{place}.source_racks"),
        changelog_racks=_racks(row.get("changelog_racks"), partitions, f"{place}.changelog_racks"),
        weights=_weights(row.get("weights"), partitions, f"{place}.weights"),
    )


def _name(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadInput(f"{place}: expected a name")
    return value


def _count(value: object, least: int, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"{place}: expected a whole number, {least} or more")
    return value


def _weight(value: object, place: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadInput(f"{place}: expected a number")
    if not 0 <= value <= WEIGHT_MAX:
        raise BadInput(f"{place}: expected a number, 0 to {WEIGHT_MAX:g}")
    return value


def _weights(value: object, partitions: int, place: str) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != partitions:
        raise BadInput(f"{place}: expected a list with one number per partition ({partitions})")
    return tuple(_weight(weight, f"{place}[{n}]") for n, weight in enumerate(value))


def _racks(value: object, partitions: int, place: str) -> RackLists | None:
    """Per partition a list of racks, or a list of such lists, one per topic the task reads."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != partitions:
        raise BadInput(f"{place}: expected a list with one entry per partition ({partitions})")
    return tuple(_topics(entry, f"{place}[{n}]") for n, entry in enumerate(value))


def _topics(entry: object, place: str) -> tuple[tuple[str, ...], ...]:
    if isinstance(entry, list):
        if all(isinstance(rack, str) for rack in entry):
            return (tuple(entry),)
        if all(isinstance(t, list) and all(isinstance(r, str) for r in t) for t in entry):
            return tuple(tuple(topic) for topic in entry)
    raise BadInput(f"{place}: expected a list of racks, or a list of such lists, one per topic")


def _plain_json(unit: Subtopology) -> dict[str, Any]:
    shown: dict[str, Any] = {"subtopology": unit.name, "partitions": unit.partitions}
    if unit.stateful:
        shown["stateful"] = True
    if unit.weight != 1:
        shown["weight"] = _number(unit.weight)
    if unit.weights is not None:
        shown["weights"] = [_number(weight) for weight in unit.weights]
    for key in ("source_racks", "changelog_racks"):
        racks: RackLists | None = getattr(unit, key)
        if racks is not None:
            shown[key] = [_entry(topics) for topics in racks]
    return shown


def _entry(topics: tuple[tuple[str, ...], ...]) -> list[Any]:
    return list(topics[0]) if len(topics) == 1 else [list(racks) for racks in topics]


def _connector_json(unit: Connector) -> dict[str, Any]:
    shown: dict[str, Any] = {"connector": unit.name, "tasks": unit.tasks}
    if unit.weight != 1:
        shown["weight"] = _number(unit.weight)
    if unit.connector_weight != 1:
        shown["connector_weight"] = _number(unit.connector_weight)
    return shown


def _number(value: float) -> float:
    return int(value) if float(value).is_integer() else value
