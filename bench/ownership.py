"""Which member runs which task, as the members see it: starts, moves, overlaps, time without owner.

muster's members and Kafka's consumers keep the same book, so their figures can be compared.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

SETTLE_TIMEOUT_S = 180.0


@dataclass(slots=True)
class Counts:
    """What has happened to the tasks of one group, or of all.

    Attributes:
        starts: actives that members began to run.
        moves: starts of actives whose last owner ran elsewhere.
        overlaps: starts of actives that another member still ran.
        ownerless_s: seconds in which a task had no owner, summed over the tasks; counted from the
            first time that all have one.
    """

    starts: int = 0
    moves: int = 0
    overlaps: int = 0
    ownerless_s: float = 0


def place_of(member: str) -> str:
    """Where a member runs: the processes ``W1``, ``W1.2`` and ``W1.3`` follow each other there."""
    return member.partition(".")[0]


class Ownership:
    """The tasks of one group. Any thread may call it.

    Attributes:
        tasks: how many the group has.
    """

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self._counts = Counts()
        self._held: dict[str, set[Hashable]] = {}
        self._owner: dict[Hashable, str] = {}
        self._place: dict[Hashable, str] = {}  # where a task ran last
        self._sizes: Counter[int] = Counter()  # number of members by the number of tasks they run
        self._since_s: float | None = None  # time is counted up to here; None = not yet
        self._lock = threading.Lock()

    def come(self, member: str) -> None:
        """A member's process starts."""
        with self._lock:
            self._held[member] = set()
            self._sizes[0] += 1

    def go(self, member: str) -> None:
        """A member's process has ended, and its tasks with it."""
        self.stop(member, self.held(member))
        with self._lock:
            self._sizes[len(self._held.pop(member))] -= 1

    def held(self, member: str) -> set[Hashable]:
        """What a member runs."""
        return set(self._held.get(member, ()))

    def start(self, member: str, tasks: Iterable[Hashable]) -> None:
        """A member begins to run tasks."""
        place = place_of(member)
        with self._lock:
            self._pass_time()
            held, counts = self._held[member], self._counts
            new = set(tasks) - held
            for task in new:
                counts.starts += 1
                counts.moves += self._place.get(task, place) != place
                counts.overlaps += task in self._owner
                self._owner[task], self._place[task] = member, place
            self._resize(member, held | new)
            if self._since_s is None and len(self._owner) == self.tasks:
                self._since_s = time.monotonic()

    def stop(self, member: str, tasks: Iterable[Hashable]) -> None:
        """A member no longer runs tasks."""
        with self._lock:
            self._pass_time()
            held = self._held.get(member, set())
            ended = set(tasks) & held
            for task in ended:
                if self._owner.get(task) == member:
                    del self._owner[task]
            if ended:
                self._resize(member, held - ended)

    def is_shared_out(self, members: int) -> bool:
        """Whether every task has an owner, and each of so many members its share."""
        if len(self._owner) != self.tasks or len(self._held) != members or not members:
            return False
        fair = {self.tasks // members, -(-self.tasks // members)}
        with self._lock:
            return all(size in fair for size, count in self._sizes.items() if count)

    def await_shared_out(self, members: int) -> None:
        """Wait until `is_shared_out`.

        Raises:
            TimeoutError: the members did not settle in time.
        """
        until = time.monotonic() + SETTLE_TIMEOUT_S
        while not self.is_shared_out(members):
            if time.monotonic() > until:
                raise TimeoutError(f"not settled: {self.sizes()}")
            time.sleep(0.002)

    def sizes(self) -> list[int]:
        """How many tasks each member runs, ascending."""
        return sorted(self._sizes.elements())

    def counts(self) -> Counts:
        """What has happened until now."""
        with self._lock:
            self._pass_time()
            return replace(self._counts)

    def _resize(self, member: str, held: set[Hashable]) -> None:
        self._sizes[len(self._held[member])] -= 1
        self._sizes[len(held)] += 1
        self._held[member] = held

    def _pass_time(self) -> None:
        if self._since_s is not None:
            now_s = time.monotonic()
            without = max(self.tasks - len(self._owner), 0)
            self._counts.ownerless_s += without * (now_s - self._since_s)
            self._since_s = now_s
