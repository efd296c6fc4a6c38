"""The tasks that a member holds, and their 64-bit digest, which heartbeats carry.

Every task held adds ``mix(name + (number + 1) * GOLDEN + role * ROLE)``, modulo 2^64. Here name is
the FNV-1a hash of the unit name followed by ``_`` (subtopology) or ``-`` (connector), role is
`Role`, plus `RELEASING` for a task that the member must give up and still has, and mix is the
finaliser of SplitMix64. Because of `RELEASING` the digest changes as soon as a member reads a
record that takes a task away, so a wrong digest shows that a record was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.protocol.ids import Role
from muster.protocol.tasks import EMPTY, IntArray, TaskSet, TaskTable, label_of

GOLDEN = 0x9E3779B97F4A7C15
ROLE = 0xD1B54A32D192ED03
RELEASING = 4
"""Added to a role's number while the member is giving the task up."""

MANY_UNITS = 64
"""From this many units on, their names are hashed together, which is much faster."""

MASK = 0xFFFFFFFFFFFFFFFF


def fnv1a64(text: str) -> int:
    """FNV-1a, 64 bit, over UTF-8."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def unit_hash(name: str, connector: bool) -> int:
    """Hash of a unit's name; connectors and subtopologies of one name differ."""
    return fnv1a64(label_of(name, connector))


def unit_hashes(units: Sequence[tuple[str, bool]]) -> NDArray[np.uint64]:
    """uint64[N]: `unit_hash` of each unit, given by name and whether it is a connector."""
    if len(units) < MANY_UNITS:
        return np.array([unit_hash(*unit) for unit in units], dtype=np.uint64)
    return fnv1a64_of([label_of(*unit).encode() for unit in units])


def fnv1a64_of(texts: Sequence[bytes]) -> NDArray[np.uint64]:
    """uint64[N]: FNV-1a of each text; all texts advance by one byte at a time."""
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    order = np.argsort(-lengths, kind="stable")
    places = (np.cumsum(lengths) - lengths)[order]
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    values = np.full(len(texts), 0xCBF29CE484222325, dtype=np.uint64)
    longer_than = len(texts) - np.cumsum(np.bincount(lengths))
    with np.errstate(over="ignore"):
        for count in longer_than.tolist()[:-1]:
            hashed = values[:count]
            hashed ^= data[places[:count]]
            hashed *= np.uint64(0x100000001B3)
            places[:count] += 1
    hashes = np.empty_like(values)
    hashes[order] = values
    return hashes


def table_hashes(table: TaskTable) -> NDArray[np.uint64]:
    """uint64[T]: hash of every task of a table, before the role is added."""
    units = zip(table.units, table.is_connector_unit.tolist(), strict=True)
    names = unit_hashes([(unit.name, connector) for unit, connector in units])
    return numbered(names[table.unit_of], table.number_of)


def numbered(names: NDArray[np.uint64], numbers: IntArray) -> NDArray[np.uint64]:
    """uint64[K]: hash of every task, of the hash of its unit's name and its number."""
    steps = (numbers.astype(np.int64) + 1).astype(np.uint64)
    with np.errstate(over="ignore"):
        return names + steps * np.uint64(GOLDEN)


def set_hashes(tasks: TaskSet) -> NDArray[np.uint64]:
    """uint64[K]: hash of every task of a set, before the role is added."""
    if not tasks:
        return np.empty(0, dtype=np.uint64)
    names = unit_hashes([(name, connector) for name, connector, _ in tasks.units])
    numbers = [each for _, _, each in tasks.units]
    return numbered(np.repeat(names, [*map(len, numbers)]), np.concatenate(numbers))


def mixed(hashes: NDArray[np.uint64], role: int) -> NDArray[np.uint64]:
    """What each task adds to the digest in a role (`Role`, plus `RELEASING`)."""
    with np.errstate(over="ignore"):
        x = hashes + np.uint64((role * ROLE) & MASK)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Holding:
    """The tasks of one member, by role.

    Attributes:
        active: tasks it runs, including those it is giving up.
        standby: tasks it keeps a copy of.
        learner: tasks it restores in order to take over.
        ready: the learners and standbys that have caught up. Not part of the digest.
        releasing: tasks of `active`, `standby` and `learner` that it must give up and still has.
    """

    active: TaskSet = EMPTY
    standby: TaskSet = EMPTY
    learner: TaskSet = EMPTY
    ready: TaskSet = EMPTY
    releasing: TaskSet = EMPTY

    def __len__(self) -> int:
        return len(self.active) + len(self.standby) + len(self.learner)

    def digest(self) -> int:
        """The digest a heartbeat carries."""
        total = 0
        for role, tasks in zip(Role, (self.active, self.standby, self.learner), strict=True):
            for part, number in (
                (tasks - self.releasing, role),
                (tasks & self.releasing, role + RELEASING),
            ):
                if part:
                    total += int(np.add.reduce(mixed(set_hashes(part), number)))
        return total & MASK
