"""What a member holds, and its 64-bit digest.

A heartbeat carries the digest instead of the holding. Every task held counts as
``mix(name + (number + 1) * GOLDEN + role * ROLE)``, where name is the FNV-1a hash of the unit name
with ``_`` (subtopology) or ``-`` (connector) behind it, role is `Role` plus `RELEASING` for a task
the member was told to give up and still has, and mix is the finaliser of SplitMix64; the digest is
the sum modulo 2^64. A sum needs no order and no memory of the others, so a coordinator updates it
by what changed. A member that has not read its newest record has another digest than one that has,
because tasks being given up count differently: a lost record is noticed (design, idea 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.protocol.ids import Role
from muster.protocol.tasks import EMPTY, TaskSet, TaskTable

GOLDEN = 0x9E3779B97F4A7C15
ROLE = 0xD1B54A32D192ED03
RELEASING = 4
"""Added to a role's number while the member is giving the task up."""

MASK = 0xFFFFFFFFFFFFFFFF


def fnv1a64(text: str) -> int:
    """FNV-1a, 64 bit, over UTF-8."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def unit_hash(name: str, connector: bool) -> int:
    """Hash of a unit's name; connectors and subtopologies of one name differ."""
    return fnv1a64(name + ("-" if connector else "_"))


def table_hashes(table: TaskTable) -> NDArray[np.uint64]:
    """uint64[T]: hash of every task of a table, role not yet added."""
    names = np.array(
        [
            unit_hash(u.name, bool(c))
            for u, c in zip(table.units, table.is_connector_unit, strict=True)
        ],
        dtype=np.uint64,
    )
    steps = (table.number_of.astype(np.int64) + 1).astype(np.uint64)
    with np.errstate(over="ignore"):
        return names[table.unit_of] + steps * np.uint64(GOLDEN)


def set_hashes(tasks: TaskSet) -> NDArray[np.uint64]:
    """uint64 hash of every task of a set, role not yet added."""
    parts: list[NDArray[np.uint64]] = []
    for name, connector, numbers in tasks.units:
        steps = (numbers.astype(np.int64) + 1).astype(np.uint64)
        with np.errstate(over="ignore"):
            parts.append(np.uint64(unit_hash(name, connector)) + steps * np.uint64(GOLDEN))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def mixed(hashes: NDArray[np.uint64], role: int) -> NDArray[np.uint64]:
    """What each task adds to the digest when held in `role` (`Role`, plus `RELEASING`)."""
    with np.errstate(over="ignore"):
        x = hashes + np.uint64((role * ROLE) & MASK)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Holding:
    """What one member holds, by role.

    Attributes:
        active: tasks it runs, those it is giving up included.
        standby: tasks it keeps a copy of.
        learner: tasks it restores in order to take over.
        ready: the learners and standbys that have caught up. Not part of the digest.
        releasing: tasks of `active`, `standby` and `learner` it was told to give up and still has.
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
        for role, tasks in (
            (Role.ACTIVE, self.active),
            (Role.STANDBY, self.standby),
            (Role.LEARNER, self.learner),
        ):
            for part, number in (
                (tasks - self.releasing, role),
                (tasks & self.releasing, role + RELEASING),
            ):
                if part:
                    total += int(np.add.reduce(mixed(set_hashes(part), number)))
        return total & MASK
