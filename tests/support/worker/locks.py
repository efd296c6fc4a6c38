"""Was a task's ownership that of a lock with fencing tokens? Judges a history from what was noted.

Each task is a lock. An owner acquires it with a token when it begins to use the task, and releases
it when the task has stopped. A history is *linearizable* (Herlihy and Wing) if its operations can
be put in one order, each at a moment between its call and its return, in which the lock would have
answered as it did: it gives itself to one owner at a time, and each owner has a newer token than
the one before.

This check shares nothing with those of overlaps: it searches for an order (Wing and Gong's
algorithm). Simulated runs note histories (`fault_injection/history.py`); of real runs they are made
from the workers' logs (`overlap.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

Token: TypeAlias = tuple[int, int]
"""A fencing token: generation and epoch of the assignment in force."""
NEVER = float("inf")


class Operation(NamedTuple):
    """An operation on the lock of a task. Times are of one clock, in ms.

    Attributes:
        hold: number of the period of ownership that it begins or ends.
        owner: name of the member; a process that starts again has the same.
        token: the fencing token of an acquire; None = this is the release.
        called: the earliest moment at which it can have happened.
        returned: the latest such moment.
    """

    hold: int
    owner: str
    token: Token | None
    called: float
    returned: float

    def __str__(self) -> str:
        what = "releases" if self.token is None else f"acquires with token {self.token}"
        at_ms = self.called if self.token is None else self.returned
        return f"{at_ms:,.1f} ms  {self.owner} {what}"


class Lock(NamedTuple):
    """A lock with fencing tokens.

    Attributes:
        hold: number of the period for which it is owned; None = it is free.
        newest: token of the newest owner.
        owner: name of the newest owner.
    """

    hold: int | None = None
    newest: Token = (-1, -1)
    owner: str = ""

    def after(self, operation: Operation) -> Lock | None:
        """The lock after an operation; None = it would have answered otherwise.

        A member that returns under its name may get the token that it had.
        """
        token = operation.token
        if token is None:
            return self._replace(hold=None) if self.hold == operation.hold else None
        is_newer = token > self.newest or (token == self.newest and operation.owner == self.owner)
        if self.hold is not None or not is_newer:
            return None
        return Lock(operation.hold, token, operation.owner)


def unexplained(operations: Iterable[Operation]) -> list[Operation]:
    """The operations around the first one that no order of all explains; empty = there is an order.

    Args:
        operations: of one task.
    """
    waiting = sorted(operations, key=lambda each: (each.returned, each.called))
    count = len(waiting)
    longest: tuple[int, ...] = ()
    seen: set[tuple[int, Lock]] = set()
    # Each entry: the operations that are in order (one bit each), the lock after them, the order.
    stack: list[tuple[int, Lock, tuple[int, ...]]] = [(0, Lock(), ())]
    while stack:
        done, lock, order = stack.pop()
        if len(order) > len(longest) or not longest:
            longest = order
        rest = [index for index in range(count) if not done >> index & 1]
        if not rest or all(waiting[index].returned == NEVER for index in rest):
            return []  # what has not returned need not have happened
        soonest = min(waiting[index].returned for index in rest)
        for index in reversed(rest):
            operation = waiting[index]
            if operation.called > soonest:
                continue  # another one has returned before it was called
            then = lock.after(operation)
            if then is None:
                continue
            place = (done | 1 << index, then)
            if place not in seen:
                seen.add(place)
                stack.append((*place, (*order, index)))
    stuck = next(index for index in range(count) if index not in longest)
    return [waiting[index] for index in sorted({*longest[-6:], stuck})]


def held(
    hold: int, owner: str, token: Token, begun_ms: float, ended_ms: float
) -> tuple[Operation, Operation]:
    """The operations of a period of ownership, of which the owner saw only its own moments.

    Args:
        hold: its number.
        owner: name of the member.
        token: its fencing token.
        begun_ms: when it began to use the task: the lock was acquired before.
        ended_ms: when the task had stopped: the lock is released after.
    """
    return (
        Operation(hold, owner, token, -NEVER, begun_ms),
        Operation(hold, owner, None, ended_ms, NEVER),
    )
