"""Absorbs the topics that discovery found for a group's sources, and names the changes.

The group's tasks are the units that its newest config lists, and the units that were found last for
the sources that the config declares (`protocol.sources`).
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.protocol.declared_and_found_tasks import declared, fitting, together
from muster.protocol.events import GroupConfig, TopicsFound
from muster.protocol.sources import Found
from muster.protocol.tasks import Subtopology, TaskTable, Unit
from muster.state import removed_tasks
from muster.state.draft import Draft

_LISTED_MAX = 3


def absorb(draft: Draft, event: TopicsFound) -> None:
    """Absorb found topics; no effect on a group that was deleted or declares no source."""
    if draft.dead:
        return
    tasks = declared(draft.table.units, draft.found)
    _declare(draft, tasks, fitting(tasks, draft.sources, event.found))


def configured(draft: Draft, event: GroupConfig) -> None:
    """Absorb the tasks and sources of a config; topics found for a source are kept."""
    draft.sources = event.sources
    _declare(draft, event.tasks, fitting(event.tasks, event.sources, draft.found))


def _declare(draft: Draft, tasks: Sequence[Unit], found_sources: tuple[Found, ...]) -> None:
    units_before = _units(draft.found)
    draft.found = found_sources
    table = TaskTable(together(tasks, found_sources))
    if table == draft.table:
        return
    units_after = _units(found_sources)
    changes = _changes(units_before, units_after)
    if _are_alike(table.units, draft.table.units):
        # Only weights and racks differ: a generation is due if the assignor answers otherwise now.
        draft.table = table
        for text in changes or ["tasks declared anew"]:
            (draft.possible_causes if changes else draft.causes).add(text)
        return
    for text in changes:
        draft.causes.add(text)
    is_all_explained = bool(changes) and _are_alike(
        _rest(table.units, units_after), _rest(draft.table.units, units_before)
    )
    removed_tasks.declare(draft, table, explained=is_all_explained)


def _units(found_sources: Sequence[Found]) -> dict[str, Subtopology]:
    return {unit.name: unit for source in found_sources for unit in source.units}


def _rest(units: Sequence[Unit], found_units: dict[str, Subtopology]) -> tuple[Unit, ...]:
    """The units that were not found but declared."""
    return tuple(unit for unit in units if found_units.get(unit.name) is not unit)


def _are_alike(units: Sequence[Unit], others: Sequence[Unit]) -> bool:
    """Whether units of two tables, in the order of the tables, have the same tasks."""
    pairs = zip(units, others, strict=False)  # of different lengths, the answer is known
    return len(units) == len(others) and all(_tasks(unit) == _tasks(other) for unit, other in pairs)


def _tasks(unit: Unit) -> tuple[str, bool, int, bool]:
    return unit.name, isinstance(unit, Subtopology), unit.size, getattr(unit, "stateful", False)


def _changes(before: dict[str, Subtopology], after: dict[str, Subtopology]) -> list[str]:
    """What has changed, in words: "orders grew 12 → 24"."""
    changes: list[str] = []
    in_both = sorted(before.keys() & after.keys())
    resized = [name for name in in_both if before[name].partitions != after[name].partitions]
    for name in resized[:_LISTED_MAX]:
        old, new = before[name].partitions, after[name].partitions
        changes.append(f"{name} {'grew' if new > old else 'shrank'} {old} → {new}")
    if len(resized) > _LISTED_MAX:
        changes.append(f"{len(resized) - _LISTED_MAX} more topics changed size")
    changes += _listed_with_sizes(sorted(after.keys() - before.keys()), "found", after)
    changes += _listed_with_sizes(sorted(before.keys() - after.keys()), "gone", before)
    for field, words in (("weights", "measured anew"), ("source_racks", "on other racks")):
        names = [n for n in in_both if getattr(before[n], field) != getattr(after[n], field)]
        names = [name for name in names if name not in resized]
        if names:
            suffix = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
            changes.append(f"{', '.join(names[:_LISTED_MAX])}{suffix} {words}")
    return changes


def _listed_with_sizes(names: list[str], word: str, units: dict[str, Subtopology]) -> list[str]:
    if not names:
        return []
    listed = [f"{name} ({units[name].partitions})" for name in names[:_LISTED_MAX]]
    suffix = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return [f"{', '.join(listed)}{suffix} {word}"]
