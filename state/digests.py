"""The digests that members are expected to send, computed from what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muster.protocol.digest import RELEASING, mixed, numbered, unit_hash
from muster.protocol.ids import Role
from muster.state.ownership import NO_MEMBER, Orphan, Ownership, codes, slot_of, task_of


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
    add_orphans(digests, owned.orphans)
    return digests


def add_orphans(digests: NDArray[np.uint64], orphans: Sequence[Orphan]) -> None:
    """Add to the digests, by slot, what members hold that is not in the table."""
    if not orphans:
        return
    units = {(orphan.unit, orphan.connector) for orphan in orphans}
    name_hashes = {unit: unit_hash(*unit) for unit in units}
    hashes = numbered(
        np.array([name_hashes[orphan.unit, orphan.connector] for orphan in orphans], np.uint64),
        np.array([orphan.number for orphan in orphans], np.int32),
    )
    slots = np.array([orphan.slot for orphan in orphans], dtype=np.intp)
    roles = np.array([orphan.role for orphan in orphans], dtype=np.int8)
    with np.errstate(over="ignore"):
        for role in Role:
            in_role = roles == role
            np.add.at(digests, slots[in_role], mixed(hashes[in_role], role + RELEASING))
