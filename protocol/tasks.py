"""The tasks of a group.

- `Subtopology` and `Connector`, the units: what a group's config declares.
- `TaskTable`: all tasks of a group with dense indexes, which owner vectors and placements use.
- `TaskSet`: any tasks without a table, per unit an ascending array of numbers. Records and reports
  carry task sets, so a member needs no table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster.protocol.errors import ConfigError
from muster.protocol.ids import CONNECTOR_ITSELF, Task, parse_task

IntArray: TypeAlias = NDArray[np.int32]
_SetOperation: TypeAlias = Callable[[IntArray, IntArray], IntArray]
RackLists: TypeAlias = tuple[tuple[tuple[str, ...], ...], ...]
"""Per partition, per topic read by the task, the racks that hold a replica."""
GROUP_TASKS_MAX = 1 << 24
"""Configs and snapshots with more tasks are refused, whatever `muster.group.tasks.max` allows."""
WEIGHT_MAX = 1e15
"""Largest weight; it keeps the sum over a group finite."""


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A unit of partitions, each of which is a task.

    Attributes:
        name: e.g. "0", or a topic.
        partitions: number of tasks, numbered from 0.
        stateful: whether a task has state to restore, and so may have standbys and learners.
        weight: load of each task.
        source_racks: per partition the racks of its inputs' replicas; None = unknown.
        changelog_racks: the same for its changelogs.
        weights: load of each task by number, in place of `weight`; None = all have `weight`.
    """

    name: str
    partitions: int
    stateful: bool = False
    weight: float = 1
    source_racks: RackLists | None = None
    changelog_racks: RackLists | None = None
    weights: tuple[float, ...] | None = None

    @property
    def size(self) -> int:
        """Number of tasks."""
        return self.partitions


@dataclass(frozen=True, slots=True)
class Connector:
    """A unit of a connector and its tasks. The connector itself is a task too, numbered -1.

    Attributes:
        name: connector name.
        tasks: number of tasks without the connector itself.
        weight: load of each task.
        connector_weight: load of the connector itself.
    """

    name: str
    tasks: int
    weight: float = 1
    connector_weight: float = 1

    @property
    def size(self) -> int:
        """Number of tasks, the connector itself included."""
        return self.tasks + 1


Unit: TypeAlias = Subtopology | Connector


def label_of(name: str, connector: bool) -> str:
    """A unit's label: the printed id of its tasks, without their number."""
    return name + ("-" if connector else "_")


def unit_order(name: str) -> tuple[int, int, str, str]:
    """Sort key of unit names: first numbers by value (Kafka's TaskId order), then text."""
    if name.isascii() and name.isdigit():
        # Not int(name): it refuses thousands of digits. The longer number is larger.
        digits = name.lstrip("0")
        return (0, len(digits), digits, name)
    return (1, 0, "", name)


class RackClasses(NamedTuple):
    """Tasks grouped into classes with equal replica racks, topic by topic.

    Attributes:
        class_of: int32[T], class of each task, -1 if its unit has no racks.
        racks: per class, per topic the racks that hold a replica.
    """

    class_of: IntArray
    racks: tuple[tuple[tuple[str, ...], ...], ...]


class TaskTable:
    """Every task of a group, densely indexed; immutable.

    Units are sorted (subtopologies before connectors, each by `unit_order`); within a unit tasks
    ascend by number, the connector itself first.

    Attributes:
        units: the declared units, sorted.
        start: int32[U + 1], index of each unit's first task; the last entry is the total.
    """

    def __init__(self, units: Iterable[Unit]) -> None:
        self.units: tuple[Unit, ...] = tuple(
            sorted(units, key=lambda u: (isinstance(u, Connector), unit_order(u.name)))
        )
        sizes = [unit.size for unit in self.units]
        starts = np.array([*accumulate(sizes, initial=0)], dtype=np.int64)
        self.start: IntArray = starts.astype(np.int32)
        self._unit_index: dict[tuple[str, bool], int] = {}
        self._printed: dict[str, int] = {}  # cache of `index`: placements look up pins each time
        for position, unit in enumerate(self.units):
            key = (unit.name, isinstance(unit, Connector))
            if key in self._unit_index:
                raise ConfigError("tasks", unit.name, "each subtopology and connector named once")
            self._unit_index[key] = position
        self._refuse_equal_ids()

    def _refuse_equal_ids(self) -> None:
        for unit in self.units:
            if not isinstance(unit, Connector):
                continue
            clash = self.find(parse_task(unit.name))
            if clash is not None and self.task(clash).unit != unit.name:
                raise ConfigError(
                    "tasks",
                    unit.name,
                    f"a connector name that does not print as task {self.task(clash)}",
                )

    def __len__(self) -> int:
        return int(self.start[-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskTable) and self.units == other.units

    def __hash__(self) -> int:
        return hash(self.units)

    @cached_property
    def unit_of(self) -> IntArray:
        """int32[T]: position in `units` of each task's unit."""
        return np.repeat(np.arange(len(self.units), dtype=np.int32), np.diff(self.start))

    @cached_property
    def number_of(self) -> IntArray:
        """int32[T]: `Task.number` of each task."""
        numbers = np.arange(len(self), dtype=np.int32) - self.start[self.unit_of]
        return (numbers - self.is_connector_unit[self.unit_of]).astype(np.int32)

    @cached_property
    def is_connector_unit(self) -> NDArray[np.bool_]:
        """bool[U]: whether the unit is a connector."""
        return np.array([isinstance(u, Connector) for u in self.units], dtype=np.bool_)

    @cached_property
    def is_connector(self) -> NDArray[np.bool_]:
        """bool[T]: whether the task is a connector itself (not one of its tasks)."""
        mask: NDArray[np.bool_] = self.number_of == CONNECTOR_ITSELF
        return mask

    @cached_property
    def stateful(self) -> NDArray[np.bool_]:
        """bool[T]: whether the task has state."""
        per_unit = np.array(
            [isinstance(u, Subtopology) and u.stateful for u in self.units], dtype=np.bool_
        )
        return per_unit[self.unit_of]

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        """float64[T]: declared load of each task."""
        per_unit = np.array([u.weight for u in self.units], dtype=np.float64)
        weights = per_unit[self.unit_of]
        for position, unit in enumerate(self.units):
            if isinstance(unit, Connector):
                weights[self.start[position]] = unit.connector_weight
            elif unit.weights is not None:
                weights[self.start[position] : self.start[position + 1]] = unit.weights
        return weights

    @cached_property
    def sources(self) -> RackClasses:
        """The tasks' classes by the racks of their inputs."""
        return self._rack_classes("source_racks")

    @cached_property
    def changelogs(self) -> RackClasses:
        """The tasks' classes by the racks of their changelogs."""
        return self._rack_classes("changelog_racks")

    def _rack_classes(self, field: str) -> RackClasses:
        number: defaultdict[tuple[tuple[str, ...], ...], int] = defaultdict()
        number.default_factory = number.__len__
        class_of = np.full(len(self), -1, dtype=np.int32)
        for start, unit in zip(self.start.tolist(), self.units, strict=False):
            lists: RackLists = getattr(unit, field, None) or ()
            classes = map(number.__getitem__, lists)
            end = start + len(lists)
            class_of[start:end] = np.fromiter(classes, dtype=np.int32, count=len(lists))
        return RackClasses(class_of, tuple(number))

    @cached_property
    def weigh_alike(self) -> bool:
        """Whether all tasks have the same load (the common case)."""
        return bool((self.weight[1:] == self.weight[:-1]).all())

    def task(self, index: int) -> Task:
        """The task at an index."""
        unit = int(self.unit_of[index])
        return Task(
            self.units[unit].name, int(self.number_of[index]), bool(self.is_connector_unit[unit])
        )

    def find(self, task: Task) -> int | None:
        """Index of a task; None if the group does not have it."""
        unit = self._unit_index.get((task.unit, task.connector))
        if unit is None:
            return None
        offset = task.number + 1 if task.connector else task.number
        return int(self.start[unit]) + offset if 0 <= offset < self.units[unit].size else None

    def index(self, text: str) -> int | None:
        """Index of a printed task id; None if the group has no such task."""
        place = self._printed.get(text)
        if place is None:
            place = self.find(Task(text, CONNECTOR_ITSELF, connector=True))
            if place is None and text:
                place = self.find(parse_task(text))
            if place is not None:
                self._printed[text] = place
        return place

    def printed(self, indexes: IntArray) -> list[str]:
        """The printed ids of the tasks at these indexes."""
        places = zip(self.unit_of[indexes].tolist(), self.number_of[indexes].tolist(), strict=True)
        labels = [label_of(unit.name, isinstance(unit, Connector)) for unit in self.units]
        return [labels[u][:-1] if n == CONNECTOR_ITSELF else f"{labels[u]}{n}" for u, n in places]

    def set_of(self, indexes: IntArray) -> TaskSet:
        """The `TaskSet` of ascending, distinct task indexes."""
        return self.sets_of(indexes, (0, len(indexes)))[0]

    def sets_of(self, indexes: IntArray, cuts: Sequence[int]) -> list[TaskSet]:
        """The `TaskSet`s of slices of task indexes, each ascending and distinct.

        The slices stand one after another; `cuts` are where each begins, and where the last ends.
        """
        units, numbers = self.unit_of[indexes], self.number_of[indexes]
        changes = np.flatnonzero(units[1:] != units[:-1]) + 1
        edges = sorted({*cuts, *changes.tolist()})
        parts: list[list[tuple[str, bool, IntArray]]] = [[] for _ in cuts[1:]]
        place = 0
        for begin, end in pairwise(edges):
            while cuts[place + 1] <= begin:
                place += 1
            unit = self.units[units[begin]]
            parts[place].append((unit.name, isinstance(unit, Connector), numbers[begin:end]))
        return [TaskSet.sorted(part) for part in parts]

    def indexes_of(self, tasks: TaskSet) -> tuple[IntArray, TaskSet]:
        """Ascending indexes of the tasks that the table has, and the set of the others."""
        if not tasks.units:
            return _NOTHING, EMPTY
        known: list[IntArray] = []
        unknown: list[tuple[str, bool, IntArray]] = []
        for name, connector, numbers in tasks.units:
            unit = self._unit_index.get((name, connector))
            if unit is None:
                unknown.append((name, connector, numbers))
                continue
            offsets = numbers.astype(np.int64) + int(connector)
            if len(tasks.units) == 1 and offsets[0] >= 0 and offsets[-1] < self.units[unit].size:
                return (self.start[unit] + offsets).astype(np.int32), EMPTY  # the common case
            inside = (offsets >= 0) & (offsets < self.units[unit].size)
            known.append((self.start[unit] + offsets[inside]).astype(np.int32))
            if not inside.all():
                unknown.append((name, connector, numbers[~inside]))
        indexes = np.sort(np.concatenate(known)) if known else _NOTHING
        return indexes, TaskSet(unknown)


class TaskSet:
    """A set of tasks, per unit an ascending array of numbers; immutable, ordered, hashable.

    Attributes:
        units: (unit name, whether it is a connector, int32 numbers ascending), sorted as in
            `TaskTable`; no unit is empty.
    """

    __slots__ = ("units",)

    def __init__(self, units: Iterable[tuple[str, bool, IntArray]] = ()) -> None:
        parts = [(n, c, np.asarray(a, dtype=np.int32)) for n, c, a in units if len(a)]
        parts.sort(key=lambda u: (u[1], unit_order(u[0])))
        self.units: tuple[tuple[str, bool, IntArray], ...] = tuple(parts)

    @classmethod
    def sorted(cls, units: Iterable[tuple[str, bool, IntArray]]) -> TaskSet:
        """The set of units that are as `TaskSet.units` must be; nothing is checked."""
        made = cls.__new__(cls)
        made.units = tuple(units)
        return made

    @classmethod
    def of(cls, tasks: Iterable[Task | str]) -> TaskSet:
        """The set of these tasks or printed task ids; duplicates count once."""
        numbers: dict[tuple[str, bool], set[int]] = {}
        for item in tasks:
            task = parse_task(item) if isinstance(item, str) else item
            numbers.setdefault((task.unit, task.connector), set()).add(task.number)
        return cls((n, c, np.array(sorted(s), dtype=np.int32)) for (n, c), s in numbers.items())

    def __iter__(self) -> Iterator[Task]:
        for name, connector, numbers in self.units:
            for number in numbers.tolist():
                yield Task(name, number, connector)

    def __len__(self) -> int:
        return sum(len(numbers) for _, _, numbers in self.units)

    def __contains__(self, task: object) -> bool:
        if not isinstance(task, Task):
            return False
        key = (task.connector, unit_order(task.unit))
        at = bisect_left(self.units, key, key=lambda unit: (unit[1], unit_order(unit[0])))
        if at == len(self.units) or self.units[at][:2] != (task.unit, task.connector):
            return False
        numbers = self.units[at][2]
        place = int(np.searchsorted(numbers, task.number))
        return place < len(numbers) and int(numbers[place]) == task.number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskSet):
            return NotImplemented
        return len(self.units) == len(other.units) and all(
            a[:2] == b[:2] and np.array_equal(a[2], b[2])
            for a, b in zip(self.units, other.units, strict=True)
        )

    def __hash__(self) -> int:
        return hash(tuple((n, c, a.tobytes()) for n, c, a in self.units))

    def __repr__(self) -> str:
        return f"TaskSet({', '.join(map(str, self))})"

    def __or__(self, other: TaskSet) -> TaskSet:
        if not (self.units and other.units):
            return self if self.units else other
        return self._combine(other, lambda a, b: np.union1d(a, b))

    def __sub__(self, other: TaskSet) -> TaskSet:
        if not (self.units and other.units):
            return self
        return self._combine(other, lambda a, b: np.setdiff1d(a, b, assume_unique=True))

    def __and__(self, other: TaskSet) -> TaskSet:
        if not (self.units and other.units):
            return EMPTY
        return self._combine(other, lambda a, b: np.intersect1d(a, b, assume_unique=True))

    def _combine(self, other: TaskSet, operation: _SetOperation) -> TaskSet:
        mine = {(n, c): a for n, c, a in self.units}
        others = {(n, c): a for n, c, a in other.units}
        return TaskSet(
            (n, c, operation(mine.get((n, c), _NOTHING), others.get((n, c), _NOTHING)))
            for n, c in {**mine, **others}
        )


EMPTY = TaskSet()
_NOTHING: IntArray = np.empty(0, dtype=np.int32)
