"""Metrics of the groups, computed from their published snapshots.

The published record is the state (`DESIGN.md`), so a reader of ``<prefix>.groups`` can compute all
figures about groups and asks nothing of the operator. `GroupStats` takes the snapshots one by one,
keeps a few numbers of each group, and adds what changed to `Metrics`; `observer` reads the topic.

A snapshot of another coordinator sets the state of its group, but adds nothing to the counters.

**Ownerless time** of a task runs from the last moment at which it surely had an owner to the record
that gives it the next one. For an owner that gave the task up, that moment is the broker's time of
its report; for one that expired, a session timeout before the group's clock. The time until the new
owner has fetched the record is not included.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, GroupState, MemberState
from muster.protocol.tasks import Subtopology, TaskTable, Unit
from muster.state.causes import EXPIRED, kind_of
from muster.streams.observability.metric_labels import GroupLabels
from muster.streams.observability.metrics import Metrics

NO_MEMBER = -1
_SETTLED = (GroupState.EMPTY, GroupState.STABLE, GroupState.DEAD)


@dataclass(slots=True)
class _Tasks:
    """Facts that follow from the declared tasks alone.

    Attributes:
        units: as declared.
        weight: float64[T], weight of each task.
        afar: rack → bool[T], whether the task reads a topic partition without a replica in that
            rack; "" is for racks that hold no replica of anything; empty = racks are not known.
    """

    units: tuple[Unit, ...]
    weight: NDArray[np.float64]
    afar: dict[str, NDArray[np.bool_]]


@dataclass(slots=True)
class Seen:
    """A group as its newest snapshot shows it.

    `placed` is the newest generation with a target, `unsettled_ms` the broker time since which the
    group is in another state than Stable, Empty or Dead. `incarnation` and `timeout_ms` are by
    slot. `orphaned` maps a task that lost its owner to the last moment at which it surely had one.
    """

    tasks: _Tasks
    generation: int = 0
    placed: int = 0
    state: GroupState = GroupState.EMPTY
    unsettled_ms: int | None = None
    holder: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    incarnation: dict[int, int] = field(default_factory=dict)
    timeout_ms: dict[int, int] = field(default_factory=dict)
    orphaned: dict[int, int] = field(default_factory=dict)
    members: Counter[MemberState] = field(default_factory=Counter)
    learners: int = 0
    lag: int = 0
    imbalance: float = 1.0
    cross_rack: int = 0
    quarantined: bool = False

    @property
    def unassigned(self) -> int:
        """Tasks that no member holds."""
        return int(np.count_nonzero(self.holder == NO_MEMBER))


class GroupStats:
    """Takes in published snapshots. Any thread may read `rows` meanwhile.

    `epochs` are this job's, by prefix; `groups_max` is as for `GroupLabels`.
    """

    def __init__(self, metrics: Metrics, epochs: Mapping[str, int], groups_max: int) -> None:
        self._metrics = metrics
        self._epochs = dict(epochs)
        self._groups: dict[tuple[str, GroupId], Seen] = {}
        self._labels = GroupLabels(groups_max)
        self._lock = threading.Lock()

    def snapshot(
        self, prefix: str, record: GroupSnapshot, published_ms: int, since_ms: int | None
    ) -> dict[str, object] | None:
        """Take in a group's newest snapshot; if this job has just placed it, return what to log.

        A generation that waits for its target (a delay, an assignor that is tried again) is
        returned when it has one, because its moves are not known before. `published_ms` is the
        record's timestamp, `since_ms` the broker time of the oldest event that it answers.
        """
        place = (prefix, record.group)
        if record.state is GroupState.DEAD and not record.members:
            self.gone(prefix, record.group)
            return None
        with self._lock:
            before = self._groups.get(place)
            now = _seen(record, before, published_ms)
            self._groups[place] = now
            unnamed = self._labels.name(place, has_tasks=len(now.holder) > 0)
        if unnamed is not None:
            self._drop_labels(unnamed)
        if record.coordinator_epoch != self._epochs.get(prefix):
            return None
        if since_ms is not None:
            self._metrics.latency.labels(prefix).observe(max(published_ms - since_ms, 0) / 1000)
        if before is not None:
            self._note_ownerless(prefix, before, now, record, published_ms, since_ms)
        if now.placed <= (before.placed if before is not None else 0):
            return None
        return self._note_generation(prefix, record)

    def gone(self, prefix: str, group: GroupId) -> None:
        """Drop a group that was forgotten, or deleted and left by its members."""
        with self._lock:
            self._groups.pop((prefix, group), None)
            has_label = self._labels.drop((prefix, group))
        if has_label:
            self._drop_labels((prefix, group))

    def _drop_labels(self, place: tuple[str, GroupId]) -> None:
        labels = {"prefix": place[0], "group": place[1]}
        self._metrics.generations.remove_by_labels(labels)
        self._metrics.moved.remove_by_labels(labels)

    def _note_generation(self, prefix: str, record: GroupSnapshot) -> dict[str, object]:
        cause = kind_of(record.cause)
        label = self._labels.of((prefix, record.group))
        self._metrics.generations.labels(prefix, label, cause).inc()
        for role, number in Counter(move.role for move in record.moves).items():
            self._metrics.moved.labels(prefix, label, str(role), cause).inc(number)
        return {
            "prefix": prefix,
            "group": str(record.group),
            "generation": record.generation,
            "cause": record.cause,
            "moves": len(record.moves),
            "members": len(record.members),
            "tasks": len(record.holder),
            "state": record.state.value,
        }

    def _note_ownerless(
        self,
        prefix: str,
        before: Seen,
        now: Seen,
        record: GroupSnapshot,
        published_ms: int,
        since_ms: int | None,
    ) -> None:
        if before.tasks is not now.tasks:
            return  # the tasks are different ones, so the owners cannot be compared
        expired = kind_of(record.cause) == EXPIRED
        given_up_ms = record.clock_ms if since_ms is None else since_ms
        for task in np.flatnonzero(before.holder != now.holder).tolist():
            was, is_now = int(before.holder[task]), int(now.holder[task])
            if was != NO_MEMBER:
                is_gone = now.incarnation.get(was) != before.incarnation.get(was)
                sure_ms = record.clock_ms - before.timeout_ms.get(was, 0)
                now.orphaned[task] = sure_ms if is_gone and expired else given_up_ms
            if is_now != NO_MEMBER and task in now.orphaned:
                spent_s = max(published_ms - now.orphaned.pop(task), 0) / 1000
                self._metrics.ownerless.labels(prefix).observe(spent_s)

    # ---- for collectors

    def rows(self) -> Iterator[tuple[str, str, Seen]]:
        """(prefix, group label, state) of every group."""
        with self._lock:
            known = list(self._groups.items())
        for place, seen in known:
            yield place[0], self._labels.of(place), seen


def _seen(record: GroupSnapshot, before: Seen | None, published_ms: int) -> Seen:
    same = before is not None and before.tasks.units == record.tasks
    tasks = before.tasks if before is not None and same else _tasks(record.tasks)
    slots = {entry.slot: entry for entry in record.members}
    settled = record.state in _SETTLED
    since_ms = None if before is None else before.unsettled_ms
    placed = 0 if before is None else before.placed
    return Seen(
        tasks=tasks,
        generation=record.generation,
        placed=placed if record.state is GroupState.ASSIGNING else record.generation,
        state=record.state,
        unsettled_ms=None if settled else since_ms or published_ms,
        holder=record.holder,
        incarnation={slot: entry.incarnation for slot, entry in slots.items()},
        timeout_ms={slot: entry.session_timeout_ms for slot, entry in slots.items()},
        orphaned=dict(before.orphaned) if before is not None and same else {},
        members=Counter(entry.state for entry in record.members),
        learners=len(record.learner),
        lag=_copy_lag(record),
        imbalance=_imbalance(record, tasks),
        cross_rack=_cross_rack(record, tasks),
        quarantined=record.quarantine is not None,
    )


def _copy_lag(record: GroupSnapshot) -> int:
    """Offsets that standbys and learners are behind, summed over those that tell.

    A group also knows lags of state that is no copy: files on a disk, and actives that restore.
    """
    if len(record.lags) == 0:
        return 0
    copies = np.concatenate((record.standby, record.learner)).astype(np.int64)
    is_copy = np.isin(_codes(record.lags), _codes(copies))
    return int(record.lags[is_copy, 2].sum())


def _codes(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[K]: one number for each row of (task, slot, …)."""
    return pairs[:, 0] << 32 | pairs[:, 1]


def _imbalance(record: GroupSnapshot, tasks: _Tasks) -> float:
    """Highest load of a member divided by the fair load; load = weight / capacity, 1 = balanced."""
    weight = float(tasks.weight.sum())
    if not record.members or not weight:
        return 1.0
    slots = np.array([entry.slot for entry in record.members])
    capacity = np.array([entry.capacity for entry in record.members], dtype=np.float64)
    held = np.bincount(record.holder + 1, weights=tasks.weight, minlength=int(slots.max()) + 2)
    return float((held[slots + 1] / capacity).max() / (weight / capacity.sum()))


def _cross_rack(record: GroupSnapshot, tasks: _Tasks) -> int:
    """Number of active tasks that read a topic partition without a replica in the owner's rack."""
    crossing = 0
    for entry in record.members:
        afar = None if entry.rack is None else tasks.afar.get(entry.rack, tasks.afar.get(""))
        if afar is not None:
            crossing += int(np.count_nonzero(afar & (record.holder == entry.slot)))
    return crossing


def _tasks(units: tuple[Unit, ...]) -> _Tasks:
    table = TaskTable(units)
    racks = {
        rack
        for unit in table.units
        if isinstance(unit, Subtopology)
        for topics in unit.source_racks or ()
        for replicas in topics
        for rack in replicas
    }
    # "" stands for every rack that holds no replica of anything.
    afar = {rack: np.zeros(len(table), dtype=np.bool_) for rack in [*racks, ""]} if racks else {}
    for start, unit in zip(table.start[:-1].tolist(), table.units, strict=True):
        if not isinstance(unit, Subtopology):
            continue
        for partition, topics in enumerate(unit.source_racks or ()):
            for rack, tells in afar.items():
                tells[start + partition] = any(rack not in replicas for replicas in topics)
    return _Tasks(units, table.weight, afar)
