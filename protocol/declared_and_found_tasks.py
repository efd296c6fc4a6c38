"""The tasks of a group: those that its config lists, and those that were found in Kafka.

A unit of the list wins over one that was found under the same name; of several sources that find
the same topic, the first one wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.protocol.errors import ConfigError
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Connector, Subtopology, TaskTable, Unit


def fitting(
    tasks: Sequence[Unit], sources: Sequence[Source], found: Iterable[Found]
) -> tuple[Found, ...]:
    """What was found for declared sources, without units that clash with others.

    The units of the group's list, `tasks`, win; then the first of several sources with a topic.
    """
    by_source = {each.source: each for each in found}
    taken = {unit.name for unit in tasks if isinstance(unit, Subtopology)}
    connectors = [unit for unit in tasks if isinstance(unit, Connector)]
    result: list[Found] = []
    for source in dict.fromkeys(sources):
        each = by_source.get(source)
        if each is None:
            continue
        units = []
        for unit in each.units:
            if unit.name not in taken and not _prints_alike(unit, connectors):
                taken.add(unit.name)
                units.append(unit)
        result.append(Found(source, tuple(units), each.ids))
    return tuple(result)


def _prints_alike(unit: Subtopology, connectors: Sequence[Connector]) -> bool:
    """Whether a connector's name is the id of one of the unit's tasks."""
    if not any(each.name.startswith(f"{unit.name}_") for each in connectors):
        return False
    try:
        TaskTable((unit, *connectors))
    except ConfigError:
        return True
    return False


def together(tasks: Sequence[Unit], found: Iterable[Found]) -> tuple[Unit, ...]:
    """All units of a group; `found` is as `fitting` gave it."""
    return (*tasks, *(unit for each in found for unit in each.units))


def declared(units: Sequence[Unit], found: Iterable[Found]) -> tuple[Unit, ...]:
    """The units of the group's list alone."""
    names = {unit.name for each in found for unit in each.units}
    return tuple(unit for unit in units if isinstance(unit, Connector) or unit.name not in names)
