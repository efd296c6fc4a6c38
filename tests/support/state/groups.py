"""Compares groups, and builds small ones."""

from __future__ import annotations

import numpy as np

from muster.state.assignor_outcome import Answer, to_json
from muster.state.group import Group

PARTS = ("owned", "target", "timers", "recovery")
DERIVED = ("sessions", "roster")
"""Fields that are compared as bytes, or part by part."""


def same_group(one: Group, other: Group) -> None:
    """Fail with the names of the fields that differ."""
    mine, others = _values(one), _values(other)
    differ = {n: (mine[n], others[n]) for n in mine if not _same(mine[n], others[n])}
    assert differ == {}
    assert one.sessions.to_bytes() == other.sessions.to_bytes()


def _values(group: Group) -> dict[str, object]:
    """The fields of a group and of its parts, by name."""
    values = {n: getattr(group, n) for n in Group.__slots__ if n not in (*DERIVED, *PARTS)}
    roster = group.roster
    values |= {"by_slot": tuple(roster.by_slot), "slots": roster.slots}
    values |= {"by_id": roster.by_id, "by_instance": roster.by_instance}
    for part in (getattr(group, name) for name in PARTS):
        values |= {n: getattr(part, n) for n in type(part).__slots__}
    return values


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Answer) and isinstance(other, Answer):
        return to_json(one) == to_json(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, tuple) and any(isinstance(part, np.ndarray) for part in one):
        return all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, tuple) and isinstance(other, tuple):
        # A restart drops free slots at the end.
        return _trimmed(one) == _trimmed(other)
    return one == other


def _trimmed(values: tuple) -> tuple:
    while values and values[-1] is None:
        values = values[:-1]
    return values
