"""The digests that members are expected to send, computed from what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import BoolArray
from muster.protocol.digest import RELEASING, mixed, numbered, unit_hashes
from muster.protocol.ids import Role
from muster.protocol.tasks import IntArray
from muster.state.ownership import Codes, Orphan, Ownership, slot_of, task_of


def of_members(
    owned: Ownership, hashes: NDArray[np.uint64], selected: BoolArray
) -> NDArray[np.uint64]:
    """uint64[slots]: the digest of everything that the member of each selected slot holds.

    Args:
        owned: which member holds what.
        hashes: uint64[T], digest hash of every task.
        selected: bool[slots + 1]; the last entry, `NO_MEMBER`, is false.
    """
    digests = np.zeros(len(selected) - 1, dtype=np.uint64)

    def add(tasks: IntArray, slots: IntArray, number: int) -> None:
        if len(tasks):
            np.add.at(digests, slots, mixed(hashes[tasks], number))

    def add_pairs(pairs: Codes, number: int) -> None:
        if len(pairs):
            selected_pairs = pairs[selected[slot_of(pairs)]]
            add(task_of(selected_pairs), slot_of(selected_pairs), number)

    held = np.flatnonzero(selected[owned.holder]).astype(np.int32)
    is_releasing = owned.revoking[held]
    kept, releasing = held[~is_releasing], held[is_releasing]
    with np.errstate(over="ignore"):
        add(kept, owned.holder[kept], int(Role.ACTIVE))
        add(releasing, owned.holder[releasing], Role.ACTIVE + RELEASING)
        add_pairs(owned.duplicate, Role.ACTIVE + RELEASING)
        for role, copies in owned.copies.items():
            add_pairs(copies.kept, int(role))
            add_pairs(copies.releasing, role + RELEASING)
        _add_orphans(digests, [orphan for orphan in owned.orphans if selected[orphan.slot]])
    return digests


def _add_orphans(digests: NDArray[np.uint64], orphans: list[Orphan]) -> None:
    """Add to the digests, by slot, what members hold that is not in the table."""
    if not orphans:
        return
    # Each unit is hashed once; its tasks refer to it by its place.
    place: dict[tuple[str, bool], int] = {}
    units = [place.setdefault((o.unit, o.connector), len(place)) for o in orphans]
    numbers = np.array([orphan.number for orphan in orphans], np.int32)
    hashes = numbered(unit_hashes([*place])[units], numbers)
    slots = np.array([orphan.slot for orphan in orphans], dtype=np.intp)
    roles = np.array([orphan.role for orphan in orphans], dtype=np.int8)
    for role in Role:
        in_role = roles == role
        np.add.at(digests, slots[in_role], mixed(hashes[in_role], role + RELEASING))
