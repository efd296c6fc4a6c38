"""The digests that members are expected to send, computed from what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.protocol.digest import RELEASING, mixed, set_hashes
from muster.protocol.ids import Role
from muster.protocol.tasks import TaskSet
from muster.state.ownership import NO_MEMBER, Ownership, codes, slot_of, task_of


def expected(owned: Ownership, hashes: NDArray[np.uint64], slots: int) -> NDArray[np.uint64]:
    """uint64[slots]: the digest of everything that the member of each slot holds.

    Args:
        owned: which member holds what.
        hashes: uint64[T], digest hash of every task.
        slots: number of slots.
    """
    digests = np.zeros(slots, dtype=np.uint64)
    held = np.flatnonzero(owned.holder != NO_MEMBER).astype(np.int32)
    active = codes(held, owned.holder[held])
    going = owned.revoking[held]
    parts = [
        (active[~going], int(Role.ACTIVE)),
        (active[going], Role.ACTIVE + RELEASING),
        (owned.duplicate, Role.ACTIVE + RELEASING),
    ]
    for role, copies in owned.copies.items():
        parts += [(copies.kept, int(role)), (copies.releasing, role + RELEASING)]
    with np.errstate(over="ignore"):
        for pairs, number in parts:
            if len(pairs):
                np.add.at(digests, slot_of(pairs), mixed(hashes[task_of(pairs)], number))
        for orphan in owned.orphans:
            task = TaskSet.of([orphan.task])
            digests[orphan.slot] += mixed(set_hashes(task), orphan.role + RELEASING)[0]
    return digests
