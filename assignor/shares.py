"""How many tasks each member should hold: whole numbers out of relative capacities.

A member of capacity c among total capacity C is due ``total * c / C`` tasks. Its *share* is that
number rounded down or up, never further away, so that the loads (tasks per capacity) of any two
members differ by at most 1. Rounding up is the only freedom; whoever rounds up gets an *extra*.

Kinds of tasks (stateful, stateless, standbys) are shared out one after the other. Each kind is
fair by itself, and the sum over the kinds so far is fair too: extras go first to members that
would otherwise fall below their share of the sum, last to those that would exceed it.

This module knows counts only: no tasks, no owners.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def rounded_down(total: int, capacity: Counts) -> tuple[Counts, int]:
    """Shares rounded down, and how many extras are left to give.

    Args:
        total: tasks to share out.
        capacity: int64[M], at least one above 0; a member of capacity 0 is due nothing.
    """
    floor = total * capacity // capacity.sum()
    return floor, total - int(floor.sum())


def shares(total: int, capacity: Counts, held: Counts, before: Counts | None = None) -> Counts:
    """Shares of one kind of task, extras given where most tasks can stay.

    Extras go to members below their share of the sum of kinds, then to members that would be
    idle while there is work for everybody (EX-H10), then to those who hold more than their share
    rounded down, then in order of id.

    Args:
        total: tasks to share out.
        capacity: int64[M], at least one above 0.
        held: int64[M], how many of these tasks each member holds now.
        before: int64[M], tasks of the kinds shared out before this one; None = none.

    Returns:
        int64[M], summing up to `total`.
    """
    floor, extras = rounded_down(total, capacity)
    if extras == 0:
        return floor
    whole = int(capacity.sum())
    base = floor if before is None else floor + before
    everything = total if before is None else total + int(before.sum())
    due = everything * capacity
    due_nothing_more = total * capacity % whole == 0
    must = base < due // whole
    if everything >= np.count_nonzero(capacity):
        must |= base == 0
    beyond = base + 1 > -(-due // whole)
    level = np.where(must, 0, np.where(beyond, 4, 2)) + (held <= floor)
    level = np.where(due_nothing_more, 6, level).astype(np.int8)
    order = np.argsort(level, kind="stable")
    floor[order[:extras]] += 1
    return floor
