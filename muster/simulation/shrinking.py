"""Finds a small part of a failing list that still fails: delta debugging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shrunk(
    items: Sequence[Item], still_breaks: Callable[[Sequence[Item]], bool], plays_max: int
) -> list[Item]:
    """Leave out halves, quarters, … single items as long as the remaining items still break.

    Args:
        items: the whole list, which breaks.
        still_breaks: returns whether a part of it breaks too.
        plays_max: how often `still_breaks` may be called.
    """
    small, plays = list(items), 0
    size = max(1, len(small) // 2)
    while True:
        position, left_out = 0, False
        while position < len(small) and plays < plays_max:
            part = small[:position] + small[position + size :]
            plays += 1
            if still_breaks(part):
                small, left_out = part, True
            else:
                position += size
        if plays >= plays_max or (size == 1 and not left_out):
            return small
        size = max(1, size // 2)
