"""Compares groups, and builds small ones."""

from __future__ import annotations

import numpy as np

from muster.state.group import Group
from muster.state.outcome import Answer, to_json

DERIVED = ("sessions", "columns")
"""Fields that are compared as bytes, or rebuilt after a restart."""


def same_group(one: Group, other: Group) -> None:
    """Fail with the names of the fields that differ."""
    differ = [
        name
        for name in Group.__slots__
        if name not in DERIVED and not _same(getattr(one, name), getattr(other, name))
    ]
    assert differ == [], {n: (getattr(one, n), getattr(other, n)) for n in differ}
    assert one.sessions.to_bytes() == other.sessions.to_bytes()


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Answer) and isinstance(other, Answer):
        return to_json(one) == to_json(other)
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
