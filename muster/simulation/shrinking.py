"""Makes a failing list small: delta debugging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shrunk(
    given: Sequence[Item], breaks: Callable[[Sequence[Item]], bool], plays_max: int
) -> list[Item]:
    """Leave out halves, quarters, … single items while the rest still breaks.

    Args:
        given: the whole list, which breaks.
        breaks: returns whether a part of it breaks too.
        plays_max: how often `breaks` may be called.
    """
    small, plays = list(given), 0
    size = max(1, len(small) // 2)
    while True:
        at, left_out = 0, False
        while at < len(small) and plays < plays_max:
            part = small[:at] + small[at + size :]
            plays += 1
            if breaks(part):
                small, left_out = part, True
            else:
                at += size
        if plays >= plays_max or (size == 1 and not left_out):
            return small
        size = max(1, size // 2)
